"""Picks the next hint of the first step that is not solved, and counts it in a file of the user."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from grader.base import user_state
from grader.commands.hint.hints import hints_of
from grader.commands.hint.unsolved import Unsolved, find
from grader.spec.grade_record import ProblemResult
from grader.spec.problem import Problem

STATE = "hints.json"


class _Counts(user_state.State):
    """The file: how many hints were shown, by problem and step."""

    shown: dict[str, dict[str, Annotated[int, Field(ge=0, strict=True)]]]


class Shown:
    """How many hints of each step were shown, kept in the file `path` (None: in memory)."""

    def __init__(self, path: Path | None) -> None:
        self._file = user_state.StateFile(path, "how many hints you took", _Counts(shown={}))
        self._counts = self._file.state.shown

    @property
    def notices(self) -> list[str]:
        """What is to be told to the reader."""
        return self._file.notices

    def of(self, problem_id: str, step: int) -> int:
        """Return how many hints of a step were shown."""
        return self._counts.get(problem_id, {}).get(str(step), 0)

    def in_all(self, problem_id: str) -> int:
        """Return how many hints of a problem were shown."""
        return sum(self._counts.get(problem_id, {}).values())

    def add(self, problem_id: str, step: int) -> None:
        """Count one more hint of a step and write the file."""
        self._counts.setdefault(problem_id, {})[str(step)] = self.of(problem_id, step) + 1
        self._file.write(_Counts(shown=self._counts))

    def forget(self, problem_id: str) -> None:
        """Begin anew with a problem and write the file."""
        self._counts.pop(problem_id, None)
        self._file.write(_Counts(shown=self._counts))


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
