"""Makes a problem's result of what was found: checks, components, points, what comes next."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from grader.judge import check_results, scoring
from grader.judge.request import Request
from grader.judge.testrun import Findings
from grader.report import state
from grader.source.submission import Source
from grader.spec.findings import Evidence, Finding
from grader.spec.grade_record import (
    SEVERITY,
    CheckResult,
    ComponentResult,
    MemoryFigures,
    Message,
    Points,
    ProblemResult,
    SpeedFigures,
    Verdict,
    WorkFigures,
    worst,
)
from grader.spec.problem import Problem
from grader.timing.choice import aimed
from grader.timing.possible import impossible

NOT_REACHED = "not run: interrupted"
_NO_GPU = "not measured: needs a CUDA GPU"
_QUICK = "not measured: QUICK=1"
_NO_COUNT = Evidence(verdict=Verdict.INTERNAL, reason="the judge recorded no count of work")
_NOT_RUN = Evidence(verdict=Verdict.SKIPPED, reason="not run")
_UNSEEN_WITHOUT_A_GPU = "passes all that a CPU can check; a GPU also checks what runs only there"
_ENDED = (Verdict.CRASH, Verdict.OUT_OF_MEMORY, Verdict.TIMEOUT)
_BROKEN = SEVERITY[: SEVERITY.index(Verdict.SKIPPED)]


@dataclasses.dataclass(frozen=True)
class Assembly:
    """Makes the result of one problem, whose file is `source`."""

    request: Request
    problem: Problem
    source: Source

    @property
    def _device(self) -> str:
        return self.request.environment.device

    def tested(
        self, findings: Findings, *, interrupted: bool, duration_s: float = 0.0
    ) -> ProblemResult:
        """Return the result of a test run, before speed and memory are measured."""
        problem, seed = self.problem, self.request.seed
        checks = check_results.check_results(problem, findings, seed=seed, source=self.source)
        correctness, scored = scoring.score_correctness(checks, problem.points.correctness)
        counts = scoring.hold(supporting(problem, checks, "work")) and not interrupted
        work = findings.work or (_NO_COUNT if counts else _NOT_RUN)
        found = {"work": work, "speed": self._pending(), "memory": self._pending()}
        components = {"correctness": correctness}
        components |= {name: self._component(name, found[name], checks) for name in found}
        blind = problem.uses_triton and self._device == "cpu" and scoring.is_complete(correctness)
        return ProblemResult(
            id=problem.id,
            title=problem.title,
            bonus=problem.bonus,
            **_together(components, scored),
            checks=tuple(scored),
            next_step=next_step(problem, self.source, scored, correctness, components["work"]),
            unseen=_UNSEEN_WITHOUT_A_GPU if blind else None,
            source_sha256=self.source.sha256 if self.source.data else None,
            duration_s=round(duration_s, 3),
        )

    def failed(self, text: str) -> Findings:
        """Return the findings where the judge itself failed."""
        return self._in_all_cases(Verdict.INTERNAL, f"the judge failed: {text}"[:600])

    def _in_all_cases(self, verdict: Verdict, headline: str) -> Findings:
        finding = Finding(verdict=verdict, message=Message(headline=headline))
        checks, seed = self.problem.checks, self.request.seed
        places = ((check.id, i) for check in checks for i in self.problem.cases(check, seed))
        return Findings(dict.fromkeys(places, finding))

    def unusable(self) -> ProblemResult:
        """Return the result of a file that cannot be run at all, or is still the stub."""
        source = self.source
        assert source.verdict is not None and source.message is not None
        not_run = self._in_all_cases(source.verdict, f"not run: {source.message.headline}")
        result = self.tested(not_run, interrupted=False)
        quiet = tuple(c.model_copy(update={"verdict": Verdict.SKIPPED}) for c in result.checks)
        update = {"verdict": source.verdict, "message": source.message, "checks": quiet}
        return result.model_copy(update=update)

    def measured(self, result: ProblemResult, speed: Evidence, memory: Evidence) -> ProblemResult:
        """Return `result` with speed and memory scored."""
        found = {"speed": speed, "memory": memory}
        measured = {name: self._component(name, found[name], result.checks) for name in found}
        components = result.components | measured
        return result.model_copy(update=_together(components, result.checks))

    def _pending(self) -> Evidence:
        """Return what is known of speed or memory before it is measured."""
        if not self.problem.benchmarks_on(self._device):
            return Evidence(verdict=Verdict.NOT_MEASURED, reason=_NO_GPU)
        if self.request.quick:
            return Evidence(verdict=Verdict.NOT_MEASURED, reason=_QUICK)
        return Evidence(verdict=Verdict.SKIPPED, reason=NOT_REACHED)

    def _component(
        self, name: str, evidence: Evidence, checks: Sequence[CheckResult]
    ) -> ComponentResult:
        possible = self.problem.points_of(name)
        if not possible:
            return scoring.withheld(Verdict.NOT_MEASURED, 0, f"this problem has no {name} part")
        score = self._score(name, possible, evidence)
        return scoring.gate(score, supporting(self.problem, checks, name))

    def _score(self, name: str, possible: float, evidence: Evidence) -> ComponentResult:
        problem, request = self.problem, self.request
        if evidence.verdict is not None:
            reason = evidence.reason or "no reason was recorded"
            return scoring.withheld(evidence.verdict, possible, reason)
        match name, evidence.figures:
            case "work", WorkFigures() as figures:
                return scoring.score_work(figures, possible)
            case "speed", SpeedFigures() as figures:
                if reason := impossible(problem, figures, request.environment):
                    return scoring.withheld(Verdict.FAIL, possible, reason, figures)
                figures = aimed(problem, figures, request.environment, request.calibration)
                return scoring.score_speed(figures, possible)
            case "memory", MemoryFigures() as figures:
                return scoring.score_memory(figures, possible)
        reason = f"the judge recorded no figures of {name}"
        return scoring.withheld(Verdict.INTERNAL, possible, reason)


def _together(
    components: Mapping[str, ComponentResult], checks: Sequence[CheckResult]
) -> dict[str, Any]:
    """Return the components of a problem, the sum of their points, and the worst verdict."""
    verdicts = [part.verdict for part in (*components.values(), *checks)]
    points = sum((component.points for component in components.values()), Points())
    return {"components": components, "points": points, "verdict": worst(verdicts)}


def supporting(
    problem: Problem, checks: Sequence[CheckResult], component: str
) -> list[CheckResult]:
    """Return the results of the checks that a component rests on."""
    named = getattr(problem.rests_on, component)
    return [check for check in checks if check.id in named]


def next_step(
    problem: Problem,
    source: Source,
    checks: Sequence[CheckResult],
    correctness: ComponentResult,
    work: ComponentResult,
) -> str:
    """Say what the student does next: the step, where it is explained, the command that helps."""
    if source.verdict not in (None, Verdict.NOT_IMPLEMENTED):
        return _to_mend(problem, source)
    again = f"make grade P={problem.id}"
    broken = next((c for c in checks if c.verdict in _BROKEN), None)
    step = source.next_step
    if step is None and broken is not None:
        step = broken.step
    if step is not None and step <= len(problem.steps):
        title = problem.steps[step - 1].title
        helps = _that_helps(problem, None if source.next_step else broken)
        return f"{problem.id} step {step} ({title}), problems/{problem.id}/README.md; {helps}"
    if broken is not None:
        return f"{problem.id}, check {broken.id} ({broken.title}); {_that_helps(problem, broken)}"
    lost = work.points.earned < work.points.available
    if scoring.is_complete(correctness) and lost and not scoring.is_wasteful(work):
        return f"{problem.id} has right results, and its work could not be counted"
    if scoring.is_complete(correctness) and scoring.is_wasteful(work):
        return f"{problem.id} is correct and does more than it needs: {again} MAP=1"
    if scoring.is_complete(correctness):
        return f"{problem.id} is correct; what makes it fast is in docs/making-it-fast.md"
    return again


def _to_mend(problem: Problem, source: Source) -> str:
    """Say what is to be done about a file that was not run."""
    line = source.message.line if source.message else None
    where = f"{problem.id}/{problem.file}" + (f" line {line}" if line else "")
    if source.verdict is Verdict.REJECTED:
        return f"fix {where}; make lint P={problem.id} lists all that the source policy refuses"
    return f"fix {where}"


def _that_helps(problem: Problem, broken: CheckResult | None) -> str:
    """Return the command that helps most with a failing check or, without one, with a step."""
    if broken is None:
        return f"make hint P={problem.id}"
    if broken.verdict is Verdict.INTERNAL:
        return f"make grade P={problem.id} once more"
    if broken.diagnosis is not None:
        return f"make explain ID={broken.diagnosis.id}"
    if broken.message is not None and broken.message.trace is not None:
        return state.command(broken.message.trace)
    if broken.verdict in _ENDED:
        return f"make explain ID={problem.id.upper()}-{str(broken.verdict).upper()}"
    return f"make hint P={problem.id}"
