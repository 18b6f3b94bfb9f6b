"""Keeps what was answered in a small JSON file, so that the quiz can be resumed.

Nothing that goes wrong with that file ends the quiz: it is told once, and the quiz goes on.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
FOLDER = "flash-attention-problems"
FILE = "quiz.json"


class Outcome(enum.StrEnum):
    """What became of one question."""

    RIGHT = "right"
    PARTLY = "partly right"
    WRONG = "wrong"
    SKIPPED = "skipped"


def state_path(environment: Mapping[str, str]) -> Path | None:
    """Return where the state belongs: under XDG_STATE_HOME, else ~/.local/state; None if nowhere.

    A relative XDG_STATE_HOME is to be ignored, as the XDG base directory specification asks.
    """
    state = Path(environment.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        home = Path(environment.get("HOME", ""))
        if not home.is_absolute():
            return None
        state = home / ".local" / "state"
    return state / FOLDER / FILE


class Progress:
    """Outcomes by question id, kept in the file `path`; only in memory where there is none.

    `notices` holds what is to be told to the reader and is emptied by whoever tells it.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.notices: list[str] = []
        self.outcomes: dict[str, Outcome] = {}
        if path is None:
            self.notices.append("there is no home folder: what you answer is not kept")
            return
        try:
            self.outcomes = _outcomes(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            pass
        except OSError as error:
            self._give_up(f"cannot read {path}: {error.strerror}")
        except (ValueError, RecursionError):
            self._set_aside(path)

    @property
    def kept(self) -> bool:
        """Whether outcomes outlast this run."""
        return self._path is not None

    def add(self, question_id: str, outcome: Outcome) -> None:
        """Note an outcome and write the file."""
        self.outcomes[question_id] = outcome
        self._write()

    def forget(self, question_ids: Collection[str]) -> None:
        """Drop the outcomes of some questions and write the file."""
        self.outcomes = {id: o for id, o in self.outcomes.items() if id not in question_ids}
        self._write()

    def _write(self) -> None:
        """Write the file in one step, so that an interrupt leaves the old one or the new one."""
        if self._path is None:
            return
        partial = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        state = {"schema_version": SCHEMA_VERSION, "outcomes": self.outcomes}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
            os.replace(partial, self._path)
        except OSError as error:
            self._give_up(f"cannot write {self._path}: {error.strerror}")
        finally:
            with contextlib.suppress(OSError):
                partial.unlink(missing_ok=True)

    def _set_aside(self, path: Path) -> None:
        damaged = path.with_name(path.name + ".damaged")
        try:
            os.replace(path, damaged)
        except OSError as error:
            self._give_up(f"{path} is damaged and cannot be moved: {error.strerror}")
        else:
            self.notices.append(
                f"{path} is damaged and set aside as {damaged.name}; you begin anew"
            )

    def _give_up(self, reason: str) -> None:
        self._path = None
        self.notices.append(f"{reason}; what you answer is not kept")


def _outcomes(state: Any) -> dict[str, Outcome]:
    """Read the outcomes of a state file.

    Raises:
        ValueError: it is not a state file of this version.
    """
    if not isinstance(state, dict) or state.get("schema_version") != SCHEMA_VERSION:
        raise ValueError("not a state of the quiz")
    outcomes = state.get("outcomes")
    if not isinstance(outcomes, dict):
        raise ValueError("no outcomes")
    return {question_id: Outcome(outcome) for question_id, outcome in outcomes.items()}
