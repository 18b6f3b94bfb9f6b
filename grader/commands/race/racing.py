"""Times an answer, naive PyTorch and PyTorch's own kernels in turns: a process of the judge's.

All go through the door of a measurement (grader/judge/measure.py): workers of their own, inputs
that are new in each call, the judge's clock, and outputs that are verified. Nothing is scored.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import statistics
from collections.abc import Callable, Iterator

import torch

import reference
from grader.checks import outcome, performance
from grader.isolate import capacity, forks
from grader.isolate.arena import Layout
from grader.isolate.device_memory import DeviceMemoryFault
from grader.isolate.pipe import EventPipe, read_request
from grader.isolate.sandbox import Sandbox, prepare
from grader.isolate.session import Budget
from grader.source.policy.operators import opened
from grader.spec.cases import Case
from grader.spec.findings import (
    Alive,
    Event,
    Lane,
    MeasureRequest,
    Phase,
    Raced,
    SourceFile,
    write_event,
)
from grader.spec.problem import ROOT, Problem, load_problem
from grader.spec.protocol import Ended, Status
from grader.timing import device_lock, memory, speed
from grader.timing.stopwatch import Bench, CallFailed, Result, Timed

ROUNDS = 3
_HEAT_GOES = 3
NO_ROOM = "naive PyTorch does not fit this GPU's free memory"
_REFERENCE = ROOT / "reference"
# Functions of reference/library.py, and their names.
_ATTENTION = {
    "flash": "SDPA, FlashAttention-2",
    "cudnn": "SDPA, cuDNN",
    "efficient": "SDPA, memory-efficient",
}
_ROWS = {"mv": "torch.mv"}


def main() -> None:
    """Time the file of the request, and write one event about all that took part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--request-fd", type=int, required=True)
    parser.add_argument("--events-fd", type=int, required=True)
    options = parser.parse_args()
    request = MeasureRequest.model_validate_json(read_request(options.request_fd))
    pipe = EventPipe(options.events_fd, write_event(Alive(), request.token))
    prepare(jailed=False, gpu=request.device_uuid)
    try:
        torch.set_num_threads(max(1, int(capacity.cores())))
        reference.make_first_calls()
        race(request, lambda event: pipe.send(write_event(event, request.token)))
    finally:
        forks.close_server()


def race(request: MeasureRequest, emit: Callable[[Event], None]) -> None:
    """Time the only file of `request`, and emit what it came to."""
    (file,) = request.sources
    with device_lock.held(request.device_uuid or request.device, alone=True):
        try:
            emit(_raced(file, request.device, emit))
        except (DeviceMemoryFault, _NoWorker) as fault:  # WSL has none, for one
            text = f"no GPU memory shared between processes ({str(fault)[:200]})"
            emit(Raced(problem=file.problem, fault=text))
        except _WorkerDied as fault:
            text = f"a worker of the judge's died ({str(fault)[:200]})"
            emit(Raced(problem=file.problem, fault=text, internal=True))


class _NoWorker(Exception):
    """A trusted worker cannot take part; says why."""


class _WorkerDied(Exception):
    """A trusted worker was gone before it took part; says how."""


def _raced(file: SourceFile, device: str, emit: Callable[[Event], None]) -> Raced:
    problem, bench = load_problem(file.problem), Bench(device)
    for case in speed.fitting_shapes(problem, device):
        try:
            return _Race(bench, problem, case, file.data, emit).run()
        except CallFailed as error:  # of naive; that of others is in their lanes
            if isinstance(error.result, Ended) or error.result.status != Status.OUT_OF_MEMORY:
                fault = f"naive PyTorch failed: {_reason(error)}"
                return Raced(problem=problem.id, fault=fault, internal=True)
    return Raced(problem=problem.id, fault=NO_ROOM)


@dataclasses.dataclass
class _Runner:
    """One that is timed: as what, by whom, and the median milliseconds of its blocks so far."""

    name: str
    timed: Timed | None
    problem: Problem
    case: Case
    blocks: list[speed.Block] = dataclasses.field(default_factory=list)
    reason: str | None = None


class _Race:
    """All that are timed at one shape."""

    def __init__(
        self,
        bench: Bench,
        problem: Problem,
        case: Case,
        source: bytes,
        emit: Callable[[Event], None],
    ) -> None:
        self._bench = bench
        self._problem = problem
        self._case = case
        self._source = source
        self._emit = emit
        self._overheads: dict[tuple[tuple[str, ...], int], float] = {}

    def run(self) -> Raced:
        """Let all take turns.

        Raises:
            CallFailed: naive PyTorch did not come to its end.
            _NoWorker: no worker can share memory with this process.
            _WorkerDied: naive PyTorch or the library has no worker any more.
        """
        problem, bench = self._problem, self._bench
        with (
            _worker("naive.py", bench.device) as naive,
            _worker("library.py", bench.device) as library,
            self._submission() as submission,
        ):
            self._naive = _Runner(
                "naive PyTorch", self._trusted(naive, problem.oracle), problem, self._case
            )
            yours = _Runner("your answer", None, problem, self._case)
            try:
                yours.timed = bench.attach(submission, budget=Budget(problem.limits))
            except CallFailed as error:
                yours.reason = _reason(error)
            left_out: list[str] = []
            fastest = self._heats(self._trusted(library, "mv"), left_out)
            runners = [self._naive, *filter(None, (fastest, yours))]
            for number in range(1, ROUNDS + 1):
                for runner in runners:
                    self._take_turn(runner, number)
            lanes = [self._lane(runner) for runner in runners]
        if fastest and fastest.reason:
            left_out.append(f"{fastest.name}: {fastest.reason}")
        return Raced(
            problem=problem.id,
            shape=str(self._case),
            naive=lanes[0],
            library=lanes[1] if fastest and not fastest.reason else None,
            yours=lanes[-1],
            left_out=tuple(left_out),
        )

    def _heats(self, timed: Timed, left_out: list[str]) -> _Runner | None:
        """Return the fastest kernel of the library; say of the others why they are not it."""
        times: dict[str, tuple[float, _Runner]] = {}
        for entry, runner in self._entrants(timed):
            self._phase(f"heat of {runner.name}")
            try:
                layout = self._bench.layout(runner.problem, runner.case)
                go = (self._bench, runner.timed, runner.problem, runner.case, layout)
                _, results = Bench.go(*go)
                margin = max(self._margin(runner, result) for result in results)
                if not margin <= 1.0:
                    left_out.append(f"{runner.name}: its error is {margin:.2g} x the allowed one")
                    continue
                times[entry] = self._heat(runner, layout), runner
            except CallFailed as error:
                left_out.append(f"{runner.name}: {_reason(error)}")
                if isinstance(error.result, Ended) or error.result.status == Status.DEVICE_FAULT:
                    break  # this worker computes nothing more
            self._release(runner)
        if not times:
            return None
        ranked = sorted(times.values(), key=lambda pair: pair[0])
        fastest = ranked[0][1]
        for seconds, runner in ranked[1:]:
            took = f"{1000.0 * seconds:.3g} ms in a heat, " if seconds > 0 else ""
            left_out.append(f"{runner.name}: {took}slower than {fastest.name}")
        return fastest

    def _heat(self, runner: _Runner, layout: Layout) -> float:
        """Return the seconds of one call, in goes that are long beside what is subtracted."""
        go = (self._bench, runner.timed, runner.problem, runner.case, layout)
        one_s = Bench.go(*go)[0] - self._overhead(runner, 1)
        calls = speed.calls_of_go(self._bench, layout, one_s)
        seconds = min(Bench.go(*go, sets=calls)[0] for _ in range(_HEAT_GOES))
        return (seconds - self._overhead(runner, calls)) / calls

    def _entrants(self, timed: Timed) -> Iterator[tuple[str, _Runner]]:
        problem, case = self._problem, self._case
        names = _ROWS
        if case.rows is None:
            names = _ATTENTION
            problem = problem.model_copy(update={"returns": ("out",)})
            rules = reference.rules(problem.id, case.kwargs)
            case = dataclasses.replace(case, options=tuple(rules.items()))
        for entry, name in names.items():
            yield entry, _Runner(name, dataclasses.replace(timed, entry=entry), problem, case)

    def _take_turn(self, runner: _Runner, number: int) -> None:
        """Add a block; a submission or a library that fails does not run again."""
        if runner.reason is not None or runner.timed is None:
            return
        whose = runner.timed.budget
        self._phase(f"round {number} of {ROUNDS}: {runner.name}", submission=whose)
        doubted = runner is not self._naive
        try:
            self._release(self._naive)
            block = speed.run_block(
                self._bench,
                runner.timed,
                runner.problem,
                runner.case,
                overhead_s=self._overhead(runner, 1),
                margin_of=functools.partial(self._margin, runner) if doubted else None,
            )
        except CallFailed as error:
            if runner is self._naive:
                raise
            runner.reason = _reason(error)
            return
        if not block.margin <= 1.0:
            runner.reason = f"a timed output is wrong ({block.margin:.2g} x the allowed error)"
        runner.blocks.append(block)

    def _lane(self, runner: _Runner) -> Lane:
        if runner.reason is not None:
            return Lane(name=runner.name, reason=runner.reason[:300])
        medians = [
            statistics.median(block.per_call_ms(self._overhead(runner, block.sets)))
            for block in runner.blocks
        ]
        if min(medians) <= 0:
            return Lane(
                name=runner.name, reason="shorter than what the clock can tell from nothing"
            )
        spread = 100.0 * (max(medians) / min(medians) - 1.0)
        return Lane(name=runner.name, ms=statistics.median(medians), spread_percent=spread)

    def _overhead(self, runner: _Runner, sets: int) -> float:
        """Seconds of a go that computes nothing; outputs that are fewer take less to copy."""
        key = (runner.problem.returns, sets)
        if key not in self._overheads:
            given = (self._bench, self._naive.timed, runner.problem, runner.case, sets)
            self._overheads[key] = speed.overhead(*given)
        return self._overheads[key]

    def _margin(self, runner: _Runner, result: Result) -> float:
        inputs = self._bench.inputs_of(runner.problem, runner.case, result)
        return performance.verify(runner.problem, runner.case, inputs, result.outputs)

    def _release(self, runner: _Runner) -> None:
        """Let a trusted worker give back what it keeps: naive's scores fill a GPU."""
        if self._bench.device == "cuda" and runner.timed is not None:
            memory.release(runner.timed, forget=True)

    def _trusted(self, worker: Sandbox, entry: str) -> Timed:
        try:
            return self._bench.attach(worker, entry=entry)
        except CallFailed as error:
            kind = _WorkerDied if isinstance(error.result, Ended) else _NoWorker
            raise kind(_reason(error)) from None

    def _submission(self) -> Sandbox:
        problem, device = self._problem, self._bench.device
        file, rules = (self._source, problem.file, problem.entry), opened(problem)
        return Sandbox(*file, device=device, interpret=False, threads=1, operators=rules)

    def _phase(self, text: str, *, submission: object = None) -> None:
        given = {"problem": self._problem.id, "text": text}
        self._emit(Phase(**given, submission=submission is not None))


def _worker(name: str, device: str) -> Sandbox:
    data = (_REFERENCE / name).read_bytes()
    return Sandbox(data, name, "attention", device=device, interpret=False, threads=1)


def _reason(error: CallFailed) -> str:
    told = outcome.of_result(error.result)
    return told.headline[:300] if told else "no reason"


if __name__ == "__main__":
    main()
