"""Grades one submission: runs the tests, measures what can be measured, scores, builds the record.

Tests run in one pytest process a problem, several side by side; speed and memory come afterwards,
one at a time, when nothing else runs.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grader import scoring, testrun
from grader.environment import Environment
from grader.manifest import Problem, load_problem
from grader.model import (
    SEVERITY,
    CheckResult,
    ComponentResult,
    GradeRecord,
    Message,
    ProblemResult,
    Verdict,
)
from grader.policy import Source, read_source
from grader.processes import GRACE_S, Children
from grader.render.progress import Progress

_NO_WORK = "not measured: counting tiles is not part of this version"
_NO_GPU = "not measured: needs a CUDA GPU"
_NOT_REACHED = "not run: interrupted"
_MEASURE_DEADLINE_S = 1800.0


@dataclasses.dataclass(frozen=True)
class Request:
    """What to grade and how; `jobs` problems are tested side by side."""

    submission: Path
    shown_as: str
    problems: tuple[str, ...]
    environment: Environment
    seed: str
    mode: str = "local"
    jobs: int = 2


class Grader:
    """One run. `record` may be asked for at any time: what was not reached is said to be so."""

    def __init__(self, request: Request, progress: Progress) -> None:
        self.request = request
        self.progress = progress
        self.interrupted = False
        self._device = request.environment.device
        self._started = time.monotonic()
        self._problems = [load_problem(p) for p in request.problems]
        self._sources = {p.id: read_source(p, request.submission) for p in self._problems}
        self._results: dict[str, ProblemResult] = {}
        self._children = Children()

    def run(self) -> GradeRecord:
        """Grade everything; Ctrl-C ends the run early and keeps what was earned."""
        try:
            self._grade_correctness()
            self._grade_performance()
        except KeyboardInterrupt:
            self.interrupted = True
            self._children.stop()
        return self.record()

    def record(self) -> GradeRecord:
        """Return the record of what is known now."""
        for problem in self._problems:
            if problem.id not in self._results:
                self._results[problem.id] = self._tested(problem, {}, _NOT_REACHED, 0.0)
        results = tuple(self._results[problem.id] for problem in self._problems)
        totals, bonus = scoring.total(results)
        return GradeRecord(
            mode=self.request.mode,
            environment=self.request.environment.facts,
            seed=self.request.seed,
            submission=self.request.shown_as,
            problems=results,
            totals=totals,
            bonus=bonus,
            interrupted=self.interrupted,
            duration_s=round(time.monotonic() - self._started, 3),
        )

    # -- correctness -----------------------------------------------------------------------------

    def _grade_correctness(self) -> None:
        pending = []
        for problem in self._problems:
            if self._sources[problem.id].verdict is None:
                pending.append(problem)
            else:
                self._done(self._unusable(problem))
        pool = concurrent.futures.ThreadPoolExecutor(max(1, self.request.jobs))
        futures = {pool.submit(self._test, problem): problem for problem in pending}
        try:
            for future in concurrent.futures.as_completed(futures):
                self._done(future.result())
        except KeyboardInterrupt:
            self.interrupted = True
            self._children.stop()
            for future, problem in futures.items():
                future.cancel()
                with contextlib.suppress(concurrent.futures.CancelledError, TimeoutError):
                    self._results.setdefault(problem.id, future.result(GRACE_S))
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _test(self, problem: Problem) -> ProblemResult:
        start = time.monotonic()
        findings, failure = testrun.run_tests(
            problem,
            submission=self.request.submission,
            device=self._device,
            seed=self.request.seed,
            children=self._children,
            on_case=lambda check, verdict: self.progress.check_done(problem.id, check, verdict),
        )
        if failure and not self.interrupted:
            finding = {
                "verdict": Verdict.INTERNAL.value,
                "message": {"headline": failure},
                "candidates": [],
                "duration_s": 0.0,
            }
            findings = {check.id: {0: finding} for check in problem.checks}
        return self._tested(problem, findings, _NOT_REACHED, time.monotonic() - start)

    def _tested(
        self, problem: Problem, findings: testrun.Findings, missing: str, duration_s: float
    ) -> ProblemResult:
        causes = testrun.likely_causes(f for cases in findings.values() for f in cases.values())
        checks = [
            testrun.check_result(
                problem, check, self._device, findings.get(check.id, {}), missing, causes
            )
            for check in problem.checks
        ]
        return self._assemble(problem, checks, duration_s=duration_s)

    def _unusable(self, problem: Problem) -> ProblemResult:
        """A problem whose file cannot be run at all, or is still the stub."""
        source = self._sources[problem.id]
        assert source.verdict is not None and source.message is not None
        not_run = Message(f"not run: {source.message.headline}")
        checks = [
            CheckResult(
                id=check.id,
                title=testrun.title(problem, check),
                step=check.step,
                verdict=source.verdict,
                weight=check.weight,
                message=not_run,
                cases_total=len(check.cases_on(self._device, triton=problem.uses_triton)),
            )
            for check in problem.checks
        ]
        result = self._assemble(problem, checks)
        quiet = tuple(
            dataclasses.replace(check, verdict=Verdict.SKIPPED) for check in result.checks
        )
        return dataclasses.replace(
            result, verdict=source.verdict, message=source.message, checks=quiet
        )

    # -- speed and memory ------------------------------------------------------------------------

    def _grade_performance(self) -> None:
        complete = [
            problem.id
            for problem in self._problems
            if self._results[problem.id].components["correctness"].verdict is Verdict.PASS
            and problem.benchmarks_on(self._device)
        ]
        if not complete:
            return
        arguments = [
            f"--submission={self.request.submission}",
            f"--device={self._device}",
            f"--seed={self.request.seed}",
            *complete,
        ]
        outcome: dict[str, Any] = {}
        measured = set()
        for event in self._children.events(
            "grader.measure", arguments, _MEASURE_DEADLINE_S, outcome
        ):
            if "phase" in event:
                self.progress.phase(event["problem"], event["phase"])
            else:
                measured.add(event["problem"])
                self._add_measurements(event["problem"], event["measured"])
        why = "ran into its deadline" if outcome.get("timed_out") else "ended early"
        last = (outcome["output"].strip().splitlines() or ["no output"])[-1]
        reason = f"the measurement {why}: {last[-200:]}"
        for problem_id in complete:
            if problem_id not in measured:
                fault = {"verdict": Verdict.INTERNAL.value, "reason": reason, "figures": {}}
                self._add_measurements(problem_id, {"speed": fault, "memory": fault})

    def _add_measurements(self, problem_id: str, measured: dict[str, dict]) -> None:
        problem, result = load_problem(problem_id), self._results[problem_id]
        components = dict(result.components)
        for name, evidence in measured.items():
            if problem.points[name]:
                component = self._score(problem, name, evidence)
                components[name] = scoring.gate(component, components["correctness"])
        self._done(
            dataclasses.replace(
                result,
                components=components,
                points=scoring.problem_points(components),
                verdict=scoring.problem_verdict(components, result.checks),
            )
        )

    def _score(self, problem: Problem, name: str, evidence: dict[str, Any]) -> ComponentResult:
        possible, figures = problem.points[name], evidence["figures"]
        if evidence.get("verdict"):
            verdict, reason = Verdict(evidence["verdict"]), evidence["reason"]
            if verdict is Verdict.NOT_MEASURED:
                return scoring.not_measured(possible, reason)
            if verdict is Verdict.INTERNAL:
                return scoring.internal(possible, reason)
            return scoring.withheld(verdict, possible, reason)
        if name == "speed":
            targets = problem.targets(self.request.environment.device_name)
            return scoring.score_speed(figures, possible, floor=targets.floor, full=targets.full)
        return scoring.score_memory(figures, possible)

    # -- results ---------------------------------------------------------------------------------

    def _assemble(
        self, problem: Problem, checks: Sequence[CheckResult], *, duration_s: float = 0.0
    ) -> ProblemResult:
        correctness, scored = scoring.score_correctness(checks, problem.points["correctness"])
        components = {"correctness": correctness}
        for name, reason in (("work", _NO_WORK), ("speed", _NO_GPU), ("memory", _NO_GPU)):
            possible = problem.points[name]
            if possible and name != "work" and problem.benchmarks_on(self._device):
                pending = scoring.withheld(Verdict.SKIPPED, possible, _NOT_REACHED)
                components[name] = scoring.gate(pending, correctness)
            elif possible:
                components[name] = scoring.not_measured(possible, reason)
        components = scoring.complete_components(components, problem.points)
        source = self._sources[problem.id]
        return ProblemResult(
            id=problem.id,
            title=problem.title,
            bonus=problem.bonus,
            verdict=scoring.problem_verdict(components, scored),
            points=scoring.problem_points(components),
            components=components,
            checks=tuple(scored),
            next_step=_next_step(problem, source, scored),
            source_sha256=source.sha256 if source.data else None,
            duration_s=round(duration_s, 3),
        )

    def _done(self, result: ProblemResult) -> None:
        self._results[result.id] = result
        self.progress.problem_done(result.id, result.verdict, result.points)


def _next_step(problem: Problem, source: Source, checks: Sequence[CheckResult]) -> str:
    """Say what the student does next: the step, where it is explained, the command."""
    command = f"make grade P={problem.id}"
    if source.verdict not in (None, Verdict.NOT_IMPLEMENTED):
        return f"mend {problem.id}/{problem.file}, then {command}"
    step = source.next_step
    if step is None:
        broken = SEVERITY[: SEVERITY.index(Verdict.SKIPPED)]
        step = next((c.step for c in checks if c.step and c.verdict in broken), None)
    if step is None or step > len(problem.steps):
        return command
    title = problem.steps[step - 1].title
    return f"{problem.id} step {step} ({title}), problems/{problem.id}/README.md; {command}"
