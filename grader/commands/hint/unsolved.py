"""Finds the first step that is not solved: one without code, else one whose test fails."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from grader.report.message import causes, headline_of
from grader.source.submission import Source, read_source
from grader.spec.grade_record import ProblemResult, Verdict
from grader.spec.problem import Problem, load_problem
from grader.spec.problem_tables import WORK

_DONE = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED)


@dataclasses.dataclass(frozen=True)
class Unsolved:
    """Where a student is: a step of a problem, or, without one, `told`, what is in the way of it.

    `seen` is what the first test that fails says, `cause` the id of a cause that was named. Where
    that is of no step, `check` is the one that fails and that the step turns green.
    """

    problem: Problem
    step: int | None = None
    told: str | None = None
    seen: str | None = None
    cause: str | None = None
    check: str | None = None


def find(
    problem_ids: Sequence[str],
    submission: Path,
    test: Callable[[str], ProblemResult],
) -> Unsolved | None:
    """Return the first step that is not solved, None where every test passes.

    Of several problems only the last one whose steps all have code is tested, which takes seconds:
    problems are solved in their order.
    """
    whole = None
    for problem in map(load_problem, problem_ids):
        source = read_source(problem, submission)
        found = _in_source(problem, source)
        if found is not None:
            earlier = None if whole is None else _in_tests(whole, test)
            return earlier or found
        whole = problem
    return None if whole is None else _in_tests(whole, test)


def _in_source(problem: Problem, source: Source) -> Unsolved | None:
    if source.other_release:
        told = "the steps of this file are those of another release; see CHANGELOG.md"
        return Unsolved(problem, told=told)
    if source.verdict not in (None, Verdict.NOT_IMPLEMENTED):
        message = source.message
        where = f" line {message.line}" if message and message.line else ""
        said = message.headline if message else str(source.verdict)
        return Unsolved(problem, told=f"{problem.id}/{problem.file}{where}: {said}")
    step = source.next_step
    if step is not None and step <= len(problem.steps):
        return Unsolved(problem, step)
    if source.verdict is Verdict.NOT_IMPLEMENTED:
        return Unsolved(problem, 1)
    return None


def _in_tests(problem: Problem, test: Callable[[str], ProblemResult]) -> Unsolved | None:
    result = test(problem.id)
    found = causes(result)
    failed = [check for check in result.checks if check.verdict not in _DONE]
    if not found and not failed:
        return _in_work(problem, result)
    if not found:
        return Unsolved(problem, told=f"{failed[0].title}: {failed[0].verdict}")
    first = found[0]
    seen, named = headline_of(first), first.diagnosis.id if first.diagnosis else None
    step = first.step if first.step is not None else first.message.step
    if step is None or step > len(problem.steps):
        behind = problem.first_step_behind([check.id for check in failed])
        if behind is None:
            return Unsolved(problem, told=seen, cause=named)
        return Unsolved(problem, behind[0], seen=seen, cause=named, check=behind[1])
    return Unsolved(problem, step, seen=seen, cause=named)


def _in_work(problem: Problem, result: ProblemResult) -> Unsolved | None:
    """Return the step that ends needless work, where every check passes and work costs points."""
    work, behind = result.components.get(WORK), problem.first_step_behind([WORK])
    if work is None or behind is None or work.points.earned >= work.points.available:
        return None
    earned, available = work.points.earned, work.points.available
    seen = f"work: {earned:g} of {available:g} points; every check passes"
    return Unsolved(problem, behind[0], seen=seen)
