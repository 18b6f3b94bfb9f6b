"""Speed and memory of one problem, in workers of the submission beside those of the baseline."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch

from grader.checks import outcome, performance
from grader.isolate import capacity
from grader.isolate.sandbox import Sandbox
from grader.isolate.session import Budget
from grader.source.policy.operators import opened
from grader.spec.cases import Case
from grader.spec.findings import Event, Evidence, Measured, MeasureRequest, Phase, SourceFile
from grader.spec.grade_record import MemoryFigures, SpeedFigures, Verdict
from grader.spec.problem import ROOT, Problem, load_problem
from grader.spec.protocol import Ended, Reply, Status
from grader.timing import memory, speed
from grader.timing.stopwatch import Bench, CallFailed, CallOutputs, Timed
from grader.timing.workers_ahead import WorkersAhead

BASELINE = ROOT / "reference" / "naive.py"
NO_ROOM = "not measured: naive PyTorch does not fit this device's free memory"
_RETRIES = 2
# The most that a file of a measured call may hold: more than any log, less than a score matrix.
_FILE_BYTES = 2**20


class Measurement:
    """Speed and memory of one problem."""

    def __init__(
        self,
        bench: Bench,
        naive: Timed,
        file: SourceFile,
        emit: Callable[[Event], None],
        request: MeasureRequest,
        ahead: WorkersAhead,
    ) -> None:
        self.bench = bench
        self.problem: Problem = load_problem(file.problem)
        self.naive = dataclasses.replace(naive, entry=self.problem.oracle)
        self.emit = emit
        self._submission = functools.partial(submission_worker, file, request)
        self._ahead = ahead
        self._jailed = request.jailed
        self._blocks = speed.student_blocks(bench.device, official=request.official)
        self._budget = Budget(self.problem.limits)
        self._memory: Evidence | None = None

    def run(self) -> Measured:
        """Return evidence for the components speed and memory."""
        found = self._speed()
        memory = self._memory or self._measure_memory()
        return Measured(problem=self.problem.id, speed=found, memory=memory)

    def _phase(self, text: str, *, submission: bool = False) -> None:
        event = Phase(problem=self.problem.id, text=text, submission=submission)
        self.emit(event)

    def _margin_of(self, case: Case) -> speed.MarginOf:
        return functools.partial(performance.margin, self.problem, case, self.bench.device)

    # -- speed ----------------------------------------------------------------------------------

    def _speed(self) -> Evidence:
        for case in speed.fitting_shapes(self.problem, self.bench.device):
            try:
                for attempt in range(_RETRIES + 1):
                    if attempt:
                        self._phase("busy machine, measuring again")
                    found = self._measure_speed(case)
                    if found.verdict is not Verdict.NOT_MEASURED:
                        break
                return found
            except CallFailed as error:  # of the baseline: the submission's are caught below
                result = error.result
                if isinstance(result, Ended) or result.status != Status.OUT_OF_MEMORY:
                    reason = f"the baseline failed: {reason_of(result)}"
                    return Evidence(verdict=Verdict.INTERNAL, reason=reason)
        return Evidence(verdict=Verdict.NOT_MEASURED, reason=NO_ROOM)

    def _measure_speed(self, case: Case) -> Evidence:
        held = self._held()
        try:
            return self._measure_in(held, case)
        finally:
            for worker in held:  # whose turn did not come
                worker.close()

    def _held(self) -> list[Sandbox]:
        """Return a worker for each block, started before anything is timed, where that takes long.

        No worker imports the submission before its turn.
        """
        if not self._jailed or self.bench.device != "cuda":
            return []
        ahead = self._ahead.take(self.problem.id)
        return ahead or [self._submission(held=True) for _ in range(self._blocks)]

    def _measure_in(self, held: list[Sandbox], case: Case) -> Evidence:
        """Measure the speed of `case` in workers that are held, or are started at their turn."""
        bench, problem = self.bench, self.problem
        naive_extra = self._naive_memory() if bench.device == "cuda" else []
        for worker in held:
            worker.wait_for_imports()
        for worker in held:  # side by side; from now on contexts take no more of the device
            worker.warm_up()
        for worker in held:
            worker.wait_for_start()
        overheads = {1: speed.overhead(bench, self.naive, problem, case, 1)}
        self._phase("speed of naive PyTorch")
        naive = [self._naive_block(case, overheads[1])]
        student: list[speed.Block] = []
        for number in range(self._blocks):
            self._phase("speed of your answer", submission=True)
            try:
                # Starting a worker takes seconds on a GPU: the same one serves for memory.
                of_memory = bench.device == "cuda" and self._memory is None
                # A held worker has its context by now; what the file allocates at import counts.
                before = self._bytes_before() if of_memory and held else None
                with held.pop(0) if held else self._submission() as worker:
                    timed = self._attach(worker)
                    if of_memory:
                        self._memory = self._memory_of([timed, timed], naive_extra, before)
                    like, margin_of = student[0] if student else None, self._margin_of(case)
                    student.append(self._block(timed, case, overheads[1], like, margin_of))
            except CallFailed as error:
                failure = _failure(error)
                self._memory = self._memory or failure
                return failure
            is_last = number + 1 == self._blocks or not student[-1].margin <= 1.0
            if is_last or bench.device == "cpu":  # where the clock drifts from block to block
                self._phase("speed of naive PyTorch")
                naive.append(self._naive_block(case, overheads[1], like=naive[0]))
            if is_last:
                break
        # Every block has the overhead of its own number of sets: copying them is part of it.
        for sets in {block.sets for block in student + naive} - {1}:
            overheads[sets] = speed.overhead(bench, self.naive, problem, case, sets)
        clock = "wall" if bench.device == "cuda" else "cpu"
        figures = performance.speed_figures(student, naive, overheads, clock=clock)
        name = torch.cuda.get_device_name() if clock == "wall" else "cpu, one thread"
        figures = figures.model_copy(update={"shape": str(case), "device": name})
        return speed_evidence(figures, problem.id)

    def _naive_block(
        self, case: Case, overhead_s: float, like: speed.Block | None = None
    ) -> speed.Block:
        self._release_naive()
        block = self._block(self.naive, case, overhead_s, like)
        self._release_naive()
        return block

    def _block(
        self,
        timed: Timed,
        case: Case,
        overhead_s: float,
        like: speed.Block | None,
        margin_of: speed.MarginOf | None = None,
    ) -> speed.Block:
        how = {"overhead_s": overhead_s, "margin_of": margin_of, "like": like}
        return speed.run_block(self.bench, timed, self.problem, case, **how)

    def _release_naive(self) -> None:
        if self.bench.device == "cuda":
            torch.cuda.empty_cache()  # what the outputs of the submission and the oracle took
            memory.release(self.naive, forget=True)

    # -- memory ---------------------------------------------------------------------------------

    def _measure_memory(self) -> Evidence:
        """Measure in a fresh worker for each length, where speed has not done so already."""
        cases = self.problem.memory_cases(self.bench.device)
        if cases is None:
            return Evidence(verdict=Verdict.NOT_MEASURED, reason="not measured on this device")
        if self.bench.device == "cpu":
            # Linux would kill a worker, and that would look like the submission's doing.
            needed = max(speed.host_bytes(case, workers=len(cases)) for case in cases)
            if needed > capacity.free_bytes():
                return Evidence(verdict=Verdict.NOT_MEASURED, reason=NO_ROOM)
        naive_extra = self._naive_memory()
        self._phase("memory of your answer", submission=True)
        try:
            with self._submission(fresh=True) as short, self._submission(fresh=True) as long:
                return self._memory_of(list(map(self._attach, (short, long))), naive_extra)
        except CallFailed as error:
            return _failure(error)

    def _memory_of(
        self, workers: list[Timed], naive_extra: list[int], before: int | None = None
    ) -> Evidence | None:
        """Make a call at each length; what the first leaves allocated counts in the second too.

        `before` is the memory in use before the workers imported the submission, None if unknown.
        """
        cases, device = self.problem.memory_cases(self.bench.device), self.bench.device
        if cases is None:
            return None
        before = self._bytes_before() if before is None else before
        extra: list[int] = []
        results: list[list[CallOutputs]] = []
        for case, timed in zip(cases, workers, strict=True):
            if device == "cuda":
                memory.release(timed)
            taken, found = memory.extra_bytes(self.bench, timed, self.problem, case, before)
            extra.append(taken)
            results.append(found)
        # The oracle's own memory would count while the submission's is read.
        pairs = zip(cases, results, strict=True)
        margin = max(self._margin_of(case)(found) for case, found in pairs)
        figures = performance.memory_figures(self.problem, cases, extra, naive_extra, device)
        return memory_evidence(figures, margin)

    def _bytes_before(self) -> int:
        """Return the device memory in use, with the judge's own inputs and outputs of both calls.

        torch caches what is freed here, so that the calls themselves take nothing more.
        """
        if self.bench.device == "cpu":
            return 0
        held = []
        for case in self.problem.memory_cases("cuda") or ():
            layout = self.bench.layout(self.problem, case)
            held.append(self.bench.go(self.naive, self.problem, case, layout, null=True))
        del held
        return memory.taken_bytes()

    def _naive_memory(self) -> list[int]:
        """Return the extra memory of the baseline, for comparison; nothing if it does not fit."""
        cases = self.problem.memory_cases(self.bench.device)
        if cases is None:
            return []
        self._phase("memory of naive PyTorch")
        self._release_naive()
        before = self._bytes_before()
        found = []
        for case in cases:
            self._release_naive()
            try:
                taken, _ = memory.extra_bytes(self.bench, self.naive, self.problem, case, before)
            except CallFailed:
                return []
            found.append(taken)
        self._release_naive()
        return found

    def _attach(self, worker: Sandbox) -> Timed:
        return self.bench.attach(worker, budget=self._budget)


def speed_evidence(figures: SpeedFigures, problem_id: str) -> Evidence:
    """Return the evidence from figures of speed; a wrong output outweighs a busy machine."""
    margin = figures.worst_error_over_allowed
    if margin is None or not margin <= 1.0:
        reason = f"a timed output is wrong ({margin or 0.0:.2g} x the allowed error)"
        return Evidence(verdict=Verdict.FAIL, reason=reason, figures=figures)
    if figures.speedup is None:
        drift = figures.naive_drift_percent or 0.0
        reason = (
            f"not measured: the machine is busy (two baselines {drift:.0f} % apart);"
            f" make grade P={problem_id} again"
        )
        return Evidence(verdict=Verdict.NOT_MEASURED, reason=reason)
    return Evidence(figures=figures)


def memory_evidence(figures: MemoryFigures, margin: float) -> Evidence:
    """Return the evidence from figures of memory."""
    if not margin <= 1.0:
        reason = f"an output is wrong ({margin:.2g} x the allowed error) when memory is measured"
        return Evidence(verdict=Verdict.FAIL, reason=reason, figures=figures)
    return Evidence(figures=figures)


def submission_worker(file: SourceFile, request: MeasureRequest, **settings: bool) -> Sandbox:
    """Start a worker with a submitted file and return at once."""
    problem = load_problem(file.problem)
    options = {"operators": opened(problem) if request.policy else None} | settings
    options["differentiates"] = bool(problem.gradients)
    return _worker(file.data, problem.file, problem.entry, request.device, **options)


def baseline_worker(device: str, **settings: bool) -> Sandbox:
    """Start a worker with naive PyTorch and return at once."""
    options = {"fresh": device == "cpu"} | settings
    return _worker(BASELINE.read_bytes(), BASELINE.name, "attention", device, **options)


def _worker(source: bytes, file: str, entry: str, device: str, **settings: Any) -> Sandbox:
    """Start a worker; where host memory is measured a fresh one, since a fork has less resident."""
    if device == "cpu":  # a file may lie in memory, where it counts for no process
        settings["file_limit_bytes"] = _FILE_BYTES
    return Sandbox(source, file, entry, device=device, **settings)


def reason_of(result: Reply | Ended) -> str:
    failure = outcome.of_result(result)
    return failure.headline[:300] if failure else "no reason"


def _failure(error: CallFailed) -> Evidence:
    failure = outcome.of_result(error.result)
    assert failure is not None
    return Evidence(verdict=failure.verdict, reason=f"a call failed: {failure.headline}"[:300])


def unmeasured(problem: str, verdict: Verdict, reason: str) -> Measured:
    """Return evidence without figures for both components."""
    evidence = Evidence(verdict=verdict, reason=reason)
    return Measured(problem=problem, speed=evidence, memory=evidence)
