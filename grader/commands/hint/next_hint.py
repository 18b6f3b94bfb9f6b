"""Picks the next hint of the first step that is not solved, and counts it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

from grader.commands.hint.hints import hints_of
from grader.commands.hint.shown import Shown
from grader.commands.hint.unsolved import Unsolved, find
from grader.spec.grade_record import ProblemResult
from grader.spec.problem import Problem


@dataclasses.dataclass(frozen=True)
class Hint:
    """What is shown: hint `number` of `count` of a step in Markdown, or none where `text` is None.

    `taken` counts the hints of the problem so far, this one with them.
    """

    where: Unsolved
    text: str | None = None
    number: int = 0
    count: int = 0
    taken: int = 0


def next_hint(
    problem_ids: Sequence[str],
    submission: Path,
    shown: Shown,
    test: Callable[[str], ProblemResult],
    *,
    restart: bool = False,
) -> Hint | None:
    """Return the next hint and count it; None where nothing is left to solve.

    `test` grades one problem without its measurements; it is asked where every step has code.

    Raises:
        ManifestError: a problem has no hints.
    """
    where = find(problem_ids, submission, test)
    if where is None:
        return None
    if restart:
        shown.forget(where.problem.id)
    if where.step is None:
        return Hint(where, taken=shown.in_all(where.problem.id))
    return _next(where, where.problem, where.step, shown)


def _next(where: Unsolved, problem: Problem, step: int, shown: Shown) -> Hint:
    hints = hints_of(problem)[step]
    number = shown.of(problem.id, step)
    text = None
    if number < len(hints):
        text = hints[number]
        shown.add(problem.id, step)
        number += 1
    return Hint(where, text, number, len(hints), shown.in_all(problem.id))
