"""Times an answer, naive PyTorch and PyTorch's own kernels in turns, in a process of the judge.

It measures as grader/judge/measure.py does: each contender in a worker, with new inputs in each
call, by the judge's clock, with verified outputs. Nothing is scored.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
from collections.abc import Iterator

import reference
from grader.checks import performance
from grader.isolate.arena import Layout
from grader.isolate.device_memory import DeviceMemoryFault
from grader.isolate.sandbox import Sandbox
from grader.isolate.session import Budget
from grader.judge import measure
from grader.judge.measure import Emit
from grader.judge.measurement import reason_of, submission_worker
from grader.spec.cases import Case
from grader.spec.findings import Lane, MeasureRequest, Phase, Raced
from grader.spec.problem import ROOT, Problem, load_problem
from grader.spec.protocol import Ended, Status
from grader.timing import device_lock, memory, speed
from grader.timing.stopwatch import Bench, CallFailed, CallOutputs, Timed

ROUNDS = 3
_HEAT_GOES = 3
NO_ROOM = "naive PyTorch does not fit this GPU's free memory"
_REFERENCE = ROOT / "reference"
# By function of reference/library.py, the name to show.
_ATTENTION = {
    "flash": "SDPA, FlashAttention-2",
    "cudnn": "SDPA, cuDNN",
    "efficient": "SDPA, memory-efficient",
}
_ROWS = {"mv": "torch.mv"}


def race(request: MeasureRequest, emit: Emit) -> None:
    """Time the only file of `request`, and emit the result."""
    with device_lock.held(request.device_uuid or request.device, alone=True):
        try:
            raced = _raced(request, emit)
        except (DeviceMemoryFault, _Lost) as error:
            lost = error if isinstance(error, _Lost) else _Lost(_NO_SHARED.format(str(error)[:200]))
            problem = request.sources[0].problem
            raced = Raced(problem=problem, fault=str(lost), internal=lost.internal)
    emit(raced)


_NO_SHARED = "no GPU memory shared between processes ({})"  # WSL has none, for one


class _Lost(Exception):
    """The race cannot be run; says why, and whether the judge is to blame."""

    def __init__(self, why: str, *, internal: bool = False) -> None:
        super().__init__(why)
        self.internal = internal


def _raced(request: MeasureRequest, emit: Emit) -> Raced:
    problem, bench = load_problem(request.sources[0].problem), Bench(request.device)
    for case in speed.fitting_shapes(problem, request.device):
        try:
            return _Race(bench, problem, case, request, emit).run()
        except CallFailed as error:  # of naive; failures of the others go into their lanes
            if isinstance(error.result, Ended) or error.result.status != Status.OUT_OF_MEMORY:
                why = f"naive PyTorch failed: {reason_of(error.result)}"
                raise _Lost(why, internal=True) from None
    raise _Lost(NO_ROOM)


@dataclasses.dataclass
class _Runner:
    """A contender: its name, worker and shape, its timed blocks, and why it is out of the race."""

    name: str
    timed: Timed | None
    problem: Problem
    case: Case
    blocks: list[speed.Block] = dataclasses.field(default_factory=list)
    reason: str | None = None


@dataclasses.dataclass
class _Race:
    """The race of all contenders at one shape."""

    bench: Bench
    problem: Problem
    case: Case
    request: MeasureRequest
    emit: Emit

    def __post_init__(self) -> None:
        self._overheads: dict[tuple[tuple[str, ...], int], float] = {}

    def run(self) -> Raced:
        """Time the contenders in turns.

        Raises:
            CallFailed: naive PyTorch failed.
            _Lost: the worker of naive PyTorch or of the library cannot be used.
        """
        problem, case, bench = self.problem, self.case, self.bench
        with (
            _worker("naive.py", bench.device) as naive,
            _worker("library.py", bench.device) as library,
            submission_worker(self.request.sources[0], self.request) as submission,
        ):
            trusted = self._trusted(naive, problem.oracle)
            self._naive = _Runner("naive PyTorch", trusted, problem, case)
            yours = _Runner("your answer", None, problem, case)
            try:
                yours.timed = bench.attach(submission, budget=Budget(problem.limits))
            except CallFailed as error:
                yours.reason = reason_of(error.result)
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
            shape=str(case),
            naive=lanes[0],
            library=lanes[1] if fastest and not fastest.reason else None,
            yours=lanes[-1],
            left_out=tuple(left_out),
        )

    def _heats(self, timed: Timed, left_out: list[str]) -> _Runner | None:
        """Return the library's fastest kernel; add to `left_out` why the others are not."""
        times: list[tuple[float, _Runner]] = []
        for runner in self._entrants(timed):
            self._phase(f"heat of {runner.name}")
            try:
                layout = self.bench.layout(runner.problem, runner.case)
                _, results = self._go(runner, layout)
                margin = self._margin(runner, results)
                if not margin <= 1.0:
                    left_out.append(f"{runner.name}: its error is {margin:.2g} x the allowed one")
                    continue
                times.append((self._heat(runner, layout), runner))
            except CallFailed as error:
                left_out.append(f"{runner.name}: {reason_of(error.result)}")
                if isinstance(error.result, Ended) or error.result.status == Status.DEVICE_FAULT:
                    break  # this worker computes nothing more
            self._release(runner)
        if not times:
            return None
        ranked = sorted(times, key=lambda pair: pair[0])
        fastest = ranked[0][1]
        for seconds, runner in ranked[1:]:
            took = f"{1000.0 * seconds:.3g} ms in a heat, " if seconds > 0 else ""
            left_out.append(f"{runner.name}: {took}slower than {fastest.name}")
        return fastest

    def _heat(self, runner: _Runner, layout: Layout) -> float:
        """Return the seconds of one call, from runs long enough to make the overhead negligible."""
        one_s = self._go(runner, layout)[0] - self._overhead(runner, 1)
        calls = speed.calls_of_go(self.bench, layout, one_s)
        seconds = min(self._go(runner, layout, sets=calls)[0] for _ in range(_HEAT_GOES))
        return (seconds - self._overhead(runner, calls)) / calls

    def _go(
        self, runner: _Runner, layout: Layout, sets: int = 1
    ) -> tuple[float, list[CallOutputs]]:
        return self.bench.go(runner.timed, runner.problem, runner.case, layout, sets=sets)

    def _entrants(self, timed: Timed) -> Iterator[_Runner]:
        problem, case = self.problem, self.case
        names = _ROWS
        if case.rows is None:
            names = _ATTENTION
            problem = problem.model_copy(update={"returns": ("out",)})
            rules = reference.rules(problem.id, case.kwargs)
            case = dataclasses.replace(case, options=tuple(rules.items()))
        for entry, name in names.items():
            yield _Runner(name, dataclasses.replace(timed, entry=entry), problem, case)

    def _take_turn(self, runner: _Runner, number: int) -> None:
        """Time a block; a submission or a library kernel that fails does not run again."""
        if runner.reason is not None or runner.timed is None:
            return
        untrusted = runner.timed.budget is not None
        self._phase(f"round {number} of {ROUNDS}: {runner.name}", submission=untrusted)
        doubted = runner is not self._naive
        try:
            self._release(self._naive)
            block = speed.run_block(
                self.bench,
                runner.timed,
                runner.problem,
                runner.case,
                overhead_s=self._overhead(runner, 1),
                margin_of=functools.partial(self._margin, runner) if doubted else None,
            )
        except CallFailed as error:
            if runner is self._naive:
                raise
            runner.reason = reason_of(error.result)
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
        """Return the seconds of a run that computes nothing; they depend on the outputs to copy."""
        key = (runner.problem.returns, sets)
        if key not in self._overheads:
            given = (self.bench, self._naive.timed, runner.problem, runner.case, sets)
            self._overheads[key] = speed.overhead(*given)
        return self._overheads[key]

    def _margin(self, runner: _Runner, results: list[CallOutputs]) -> float:
        return performance.margin(runner.problem, runner.case, self.bench.device, results)

    def _release(self, runner: _Runner) -> None:
        """Have a trusted worker free its cached memory: naive's scores can fill a GPU."""
        if self.bench.device == "cuda" and runner.timed is not None:
            memory.release(runner.timed, forget=True)

    def _trusted(self, worker: Sandbox, entry: str) -> Timed:
        try:
            return self.bench.attach(worker, entry=entry)
        except CallFailed as error:
            died, why = isinstance(error.result, Ended), reason_of(error.result)[:200]
            text = f"a worker of the judge's died ({why})" if died else _NO_SHARED.format(why)
            raise _Lost(text, internal=died) from None

    def _phase(self, text: str, *, submission: bool = False) -> None:
        self.emit(Phase(problem=self.problem.id, text=text, submission=submission))


def _worker(name: str, device: str) -> Sandbox:
    data = (_REFERENCE / name).read_bytes()
    return Sandbox(data, name, "attention", device=device)


if __name__ == "__main__":
    measure.main(race)
