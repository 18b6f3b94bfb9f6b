"""What a student does next in a problem, in one line of its report."""

from __future__ import annotations

from collections.abc import Sequence

from grader.judge import scoring
from grader.report import state
from grader.source.submission import Source
from grader.spec.grade_record import SEVERITY, CheckResult, ComponentResult, Verdict
from grader.spec.problem import Problem

_ENDED = (Verdict.CRASH, Verdict.OUT_OF_MEMORY, Verdict.TIMEOUT)
_BROKEN = SEVERITY[: SEVERITY.index(Verdict.SKIPPED)]


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
    """Return the command that says most of a check that fails, or, of none, of a step."""
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
