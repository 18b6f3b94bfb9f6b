"""Counts the hints that were shown, in a file of the user's own. Nobody is graded by it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grader.base import user_state

FILE = "hints.json"


class Shown:
    """How many hints of each step were shown, kept in the file `path` (None: in memory)."""

    def __init__(self, path: Path | None) -> None:
        self._file = user_state.StateFile(path, "how many hints you took")
        self._counts: dict[str, dict[str, int]] = self._file.read(_counts) or {}

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
        self._file.write({"shown": self._counts})

    def forget(self, problem_id: str) -> None:
        """Begin anew with a problem and write the file."""
        self._counts.pop(problem_id, None)
        self._file.write({"shown": self._counts})


def _counts(state: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """Read the counts of a state.

    Raises:
        ValueError: they are no counts by problem and step.
    """
    shown = state.get("shown")
    if not isinstance(shown, dict) or not all(isinstance(s, dict) for s in shown.values()):
        raise ValueError("no counts by problem and step")
    for count in (count for steps in shown.values() for count in steps.values()):
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ValueError(f"got {count!r}, expected a count")
    return shown
