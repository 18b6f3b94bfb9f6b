"""Grades one submission: runs the tests, measures what can be measured, scores, builds the record.

Tests run in one pytest process per problem, several in parallel; speed and memory are measured
afterwards, one problem at a time. A failure in one problem does not affect the others.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Callable
from typing import Protocol

from grader.isolate.processes import GRACE_S, Children, Ending
from grader.judge import scoring
from grader.judge.request import Request
from grader.judge.results import NOT_REACHED, Assembly, supporting
from grader.judge.sealed import is_sealed, unnamed
from grader.judge.testrun import Findings, TestRun
from grader.source.submission import read_source
from grader.spec.findings import (
    MEASURE_S,
    Evidence,
    Measured,
    MeasureRequest,
    Phase,
    SourceFile,
    read_event,
)
from grader.spec.grade_record import GradeRecord, Points, ProblemResult, Verdict
from grader.spec.problem import Problem, load_problem


class Listener(Protocol):
    """Receives the progress of a grading, from any thread."""

    def case_done(self, problem_id: str, check_id: str, verdict: Verdict) -> None:
        """Report a finished case."""

    def phase(self, problem_id: str, text: str) -> None:
        """Report the current activity for a problem, such as "speed"."""

    def problem_done(
        self, problem_id: str, verdict: Verdict, points: Points, *, more: str = ""
    ) -> None:
        """Report a finished problem, or a part of it: `more` says what is still to come."""


@dataclasses.dataclass
class _Measuring:
    """One measuring process: the problems measured, and those whose submitted code has run in it.

    `running` is the problem whose submitted code was running when the process ended, if any.
    """

    measured: set[str] = dataclasses.field(default_factory=set)
    ran: set[str] = dataclasses.field(default_factory=set)
    running: str | None = None
    ending: Ending = dataclasses.field(default_factory=Ending)


class Grader:
    """Grades one request. `record` works at any time: it marks what was not reached."""

    def __init__(
        self,
        request: Request,
        progress: Listener,
        on_result: Callable[[GradeRecord], None] = lambda record: None,
        children: Children | None = None,
    ) -> None:
        """Prepare to grade `request`; after each problem `on_result` gets the record so far.

        A caller that passes `children` closes them, and may reuse their warm server.
        """
        self.request = request
        self.progress = progress
        self._on_result = on_result
        self.interrupted = False
        self._device = request.environment.device
        self._started = time.monotonic()
        self._problems = [load_problem(p) for p in request.problems]
        self._sources = {
            p.id: read_source(p, request.submission, policy=request.policy) for p in self._problems
        }
        self._assemblies = {p.id: Assembly(request, p, self._sources[p.id]) for p in self._problems}
        self._results: dict[str, ProblemResult] = {}
        self._children = children or Children()
        self._closes_children = children is None
        self._runs: list[TestRun] = []

    @property
    def sources(self) -> dict[str, bytes]:
        """The bytes that are graded, by their path in the submission."""
        return {f"{p.id}/{p.file}": self._sources[p.id].data for p in self._problems}

    def run(self) -> GradeRecord:
        """Grade everything; Ctrl-C ends the run early without losing finished results."""
        try:
            self._grade_correctness()
            if not self.request.quick:
                self._grade_performance()
        except KeyboardInterrupt:
            self._interrupt()
        finally:
            if self._closes_children:
                self._children.close()
        return self.record()

    def stop(self, grace_s: float | None = None) -> None:
        """End the run early, from another thread than that of `run`; the rest is skipped."""
        self._interrupt(grace_s)

    def _interrupt(self, grace_s: float | None = None) -> None:
        self.interrupted = True
        for run in self._runs:
            run.interrupted = True
        self._children.stop(grace_s)

    def record(self, *, unfinished: bool = False) -> GradeRecord:
        """Return the record as of now; that of an `unfinished` run is marked interrupted."""
        empty = Findings(missing=NOT_REACHED)
        results = tuple(
            self._results.get(id) or assembly.tested(empty, interrupted=self.interrupted)
            for id, assembly in self._assemblies.items()
        )
        totals, bonus = scoring.total(results)
        record = GradeRecord(
            mode="official" if self.request.official else "local",
            environment=self.request.environment,
            seed=self.request.seed,
            submission=self.request.shown_as,
            problems=results,
            totals=totals,
            bonus=bonus,
            interrupted=self.interrupted or unfinished,
            duration_s=round(time.monotonic() - self._started, 3),
        )
        is_case = is_sealed(self.request.submission) and not self.request.official
        return unnamed(record) if is_case else record

    # -- correctness -----------------------------------------------------------------------------

    def _grade_correctness(self) -> None:
        pending = []
        for problem in self._problems:
            if self._sources[problem.id].verdict is None:
                pending.append(problem)
            else:
                self._done(self._assemblies[problem.id].unusable())
        pending.sort(key=_weight, reverse=True)  # the longest first
        if pending:
            self._children.open_server(differentiate=any(p.gradients for p in pending))
        jobs = max(1, self.request.jobs)
        cores = self.request.cores / max(1, sum(map(_weight, pending[:jobs])))
        pool = concurrent.futures.ThreadPoolExecutor(jobs)
        futures = {
            pool.submit(self._test, problem, max(1, int(cores * _weight(problem)))): problem
            for problem in pending
        }
        try:
            for future in concurrent.futures.as_completed(futures):
                self._done(future.result())
        except KeyboardInterrupt:
            self._interrupt()
            for future, problem in futures.items():
                future.cancel()
                with contextlib.suppress(concurrent.futures.CancelledError, TimeoutError):
                    self._results.setdefault(problem.id, future.result(GRACE_S))
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _test(self, problem: Problem, compile_workers: int) -> ProblemResult:
        start, assembly = time.monotonic(), self._assemblies[problem.id]
        self.progress.phase(problem.id, "starting")
        run = TestRun(
            problem,
            self._sources[problem.id].data,
            self.request,
            self._children,
            compile_workers=compile_workers,
            on_case=lambda check, verdict: self.progress.case_done(problem.id, check, verdict),
            on_phase=lambda text: self.progress.phase(problem.id, text),
        )
        self._runs.append(run)
        run.interrupted = self.interrupted
        try:
            findings = run.run()
        except Exception as error:  # a bug of the judge, which must not affect other problems
            findings = assembly.failed(f"{type(error).__name__}: {error}")
        if self.interrupted:
            findings.missing = NOT_REACHED
        duration_s = time.monotonic() - start
        return assembly.tested(findings, interrupted=self.interrupted, duration_s=duration_s)

    # -- speed and memory ------------------------------------------------------------------------

    def _grade_performance(self) -> None:
        pending = [
            problem.id
            for problem in self._problems
            if problem.benchmarks_on(self._device)
            and any(
                scoring.hold(supporting(problem, self._results[problem.id].checks, component))
                for component in ("speed", "memory")
            )
        ]
        groups, tried = [pending] if pending else [], set[str]()
        while groups:
            group = groups.pop(0)
            run = self._run_measuring(group)
            alone, others = [], []
            for id in (id for id in group if id not in run.measured):
                if why := self._why_unmeasured(id, run, is_retry=id in tried):
                    self._measured_nothing(id, *why)
                else:  # a suspect, or a problem that failed twice, gets the next process alone
                    (alone if id in run.ran or id in tried else others).append(id)
            groups += [others] * bool(others) + [[id] for id in alone]
            tried.update(alone, others)

    def _why_unmeasured(
        self, id: str, run: _Measuring, *, is_retry: bool
    ) -> tuple[Verdict, str] | None:
        """Return what is said of a problem that was not measured; None where it is tried again."""
        may_harm = not self.request.jailed  # a jailed submission cannot harm the process
        if id == run.running and may_harm:
            # Only the submission was running beside the judge's process when that ended.
            how = "was stopped" if run.ending.timed_out or run.ending.silent else "died"
            return Verdict.CRASH, f"the judge's measuring process {how} while your code ran"
        if not is_retry or run.ran - {id}:
            return None
        if id in run.ran and may_harm:
            return Verdict.CRASH, "your code did something to the judge's measuring process"
        return Verdict.INTERNAL, f"the measurement ended early: {run.ending.last_line}"

    def _run_measuring(self, problem_ids: list[str]) -> _Measuring:
        """Measure these problems in one process.

        A fault of the judge after submitted code has run is dropped: that code may have caused it.
        """
        sources = tuple(SourceFile.of(id, self._sources[id].data) for id in problem_ids)
        request = MeasureRequest(
            **self.request.of_child(), sources=sources, official=self.request.official
        )
        run = _Measuring()
        for line in self._children.events(
            "grader.judge.measure", [], request.model_dump_json(), MEASURE_S, run.ending
        ):
            event = read_event(line, request.token)
            if isinstance(event, Phase) and event.problem in problem_ids:
                run.running = event.problem if event.submission else None
                run.ran |= {event.problem} if event.submission else set()
                self.progress.phase(event.problem, event.text)
            elif isinstance(event, Measured) and event.problem in set(problem_ids) - run.measured:
                run.running = None
                if Verdict.INTERNAL in (event.speed.verdict, event.memory.verdict) and run.ran:
                    continue
                run.measured.add(event.problem)
                self._add_measurements(event.problem, event.speed, event.memory)
        return run

    def _measured_nothing(self, problem_id: str, verdict: Verdict, reason: str) -> None:
        evidence = Evidence(verdict=verdict, reason=reason)
        self._add_measurements(problem_id, evidence, evidence)

    def _add_measurements(self, problem_id: str, speed: Evidence, memory: Evidence) -> None:
        result = self._results[problem_id]
        self._done(self._assemblies[problem_id].measured(result, speed, memory))

    def _done(self, result: ProblemResult) -> None:
        self._results[result.id] = result
        waits = any(
            component.verdict is Verdict.SKIPPED and component.reason == NOT_REACHED
            for component in result.components.values()
        )
        more = "speed and memory to come" if waits and not self.interrupted else ""
        self.progress.problem_done(result.id, result.verdict, result.points, more=more)
        self._on_result(self.record(unfinished=True))


def _weight(problem: Problem) -> int:
    """Return roughly how many kernels a problem compiles and runs."""
    return len(problem.outputs)
