"""A small JSON file of a user's own state, outside of any checkout: quiz answers, hints shown.

A fault of the file never ends a command: a notice says it once, and the command goes on.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, Literal, TypeVar

from grader.base.atomic_write import write_whole
from grader.base.record import Record

FOLDER = "flash-attention-problems"


def state_path(environment: Mapping[str, str], file: str) -> Path | None:
    """Return where the state belongs: under XDG_STATE_HOME, else ~/.local/state; None if nowhere.

    A relative XDG_STATE_HOME is ignored, as the XDG base directory specification asks.
    """
    state = Path(environment.get("XDG_STATE_HOME", ""))
    if not state.is_absolute():
        home = Path(environment.get("HOME", ""))
        if not home.is_absolute():
            return None
        state = home / ".local" / "state"
    return state / FOLDER / file


class State(Record):
    """The content of a state file; a subclass declares its fields."""

    schema_version: Literal[1] = 1


_State = TypeVar("_State", bound=State)


class StateFile(Generic[_State]):
    """A file of state; with the `path` None nothing is stored. Notices call its content `what`.

    `state` is what the file held when it was opened, or `empty` if there was no file or a damaged
    one, which is set aside. `notices` are for the user; whoever shows them empties the list.
    """

    def __init__(self, path: Path | None, what: str, empty: _State) -> None:
        self._path = path
        self._what = what
        self.notices: list[str] = []
        if path is None:
            self.notices.append(f"there is no home folder: {what} is not kept")
        self.state: _State = self._read(type(empty)) or empty

    @property
    def kept(self) -> bool:
        """Whether what is written outlasts this run."""
        return self._path is not None

    def _read(self, kind: type[_State]) -> _State | None:
        if self._path is None:
            return None
        try:
            return kind.model_validate_json(self._path.read_bytes())
        except FileNotFoundError:
            pass
        except OSError as error:
            self._give_up(f"cannot read {self._path}: {error.strerror}")
        except ValueError:
            self._set_aside(self._path)
        return None

    def write(self) -> None:
        """Write the state in one step, so that an interrupt leaves the old one or the new one."""
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, self.state.model_dump_json(indent=1) + "\n")
        except OSError as error:
            self._give_up(f"cannot write {self._path}: {error.strerror}")

    def _set_aside(self, path: Path) -> None:
        damaged = path.with_name(path.name + ".damaged")
        try:
            os.replace(path, damaged)
        except OSError as error:
            self._give_up(f"{path} is damaged and cannot be moved: {error.strerror}")
        else:
            self.notices.append(
                f"{path} is damaged and set aside as {damaged.name}; you start over"
            )

    def _give_up(self, reason: str) -> None:
        self._path = None
        self.notices.append(f"{reason}; {self._what} is not kept")
