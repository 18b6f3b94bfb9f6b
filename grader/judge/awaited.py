"""Finds the empty step without which a check must fail, whatever else is seen of it."""

from __future__ import annotations

from grader.source.submission import Source
from grader.spec.findings import CauseFound
from grader.spec.grade_record import Verdict
from grader.spec.problem import Problem


def awaited(
    problem: Problem, source: Source, check: str, verdict: Verdict = Verdict.FAIL
) -> int | None:
    """Return the empty step without which `check` must fail, None if the step behind it has code.

    Where no numbers came out, it is the first step that is empty.
    """
    behind = problem.first_step_behind({check})
    if behind is None or not source.keeps_given or source.lines_of_step(behind[0]):
        return None
    earlier = range(1, behind[0]) if verdict is not Verdict.FAIL else ()
    return next((n for n in earlier if not source.lines_of_step(n)), behind[0])


def with_awaited(cause: CauseFound, problem: Problem, source: Source) -> CauseFound:
    """Return a cause with the empty step without which all its checks must fail, if any."""
    steps = [awaited(problem, source, check) for check, _ in cause.cases]
    empty = [step for step in steps if step is not None]
    if len(empty) < len(steps) or not empty:
        return cause
    return cause.model_copy(update={"step": min(empty), "fed_by": ()})
