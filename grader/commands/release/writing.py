"""Brings a release's folder up to date: file by file, each in one step, the ledger last.

A file that a release has written and nobody has changed is replaced. One that was changed since is
kept and named. A student's own file, the stub, is never written over once it was begun: where the
stub itself has changed, the new one is written beside it as `<file>.new`.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grader.base.atomic_write import write_whole_bytes
from grader.commands.release import ledger as ledgers
from grader.commands.release.contents import ReleaseError
from grader.commands.release.ledger import Ledger, digest

BESIDE = ".new"


class Action(enum.Enum):
    """What becomes of one file of a release's folder."""

    ADDED = "added"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    KEPT = "kept"  # somebody changed it
    YOURS = "yours"  # a stub that was begun
    REMOVED = "removed"


@dataclass(frozen=True)
class Plan:
    """What is done with each file, by path, and what is written there."""

    actions: dict[str, Action] = field(default_factory=dict)
    writes: dict[str, bytes] = field(default_factory=dict)
    # Kept, although the release has another version of it now.
    outdated: tuple[str, ...] = ()

    def of(self, *actions: Action) -> list[str]:
        """Return the paths with these actions, in order."""
        return sorted(path for path, action in self.actions.items() if action in actions)


@dataclass(frozen=True)
class Released:
    """What a run came to: where, the ledger before and after, and what was done to each file."""

    folder: str
    before: Ledger | None
    after: Ledger
    plan: Plan
    later: tuple[str, ...]


def plan(folder: Path, files: Mapping[str, bytes], stubs: Collection[str], before: Ledger) -> Plan:
    """Compare what is there with what a release should hold; nothing is written.

    Raises:
        ReleaseError: a folder inside of it is a link, or something is in the way.
    """
    made, outdated = Plan(), []
    wanted = dict(files)
    for path in stubs:
        there = _on_disk(folder, path)
        if there is None or before.is_own(path, digest(there)) or there == files[path]:
            continue
        changed = before.files.get(path) != digest(files[path])
        if changed or path + BESIDE in before.files:
            wanted[path + BESIDE] = files[path]
    for path, data in wanted.items():
        there = _on_disk(folder, path)
        if there is None:
            made.actions[path], made.writes[path] = Action.ADDED, data
        elif there == data:
            made.actions[path] = Action.UNCHANGED
        elif before.is_own(path, digest(there)):
            made.actions[path], made.writes[path] = Action.UPDATED, data
        elif path in stubs:
            made.actions[path] = Action.YOURS
        else:
            made.actions[path] = Action.KEPT
            if before.files.get(path) != digest(data):
                outdated.append(path)
    for path in before.files.keys() - wanted.keys():
        there = _on_disk(folder, path)
        if there is not None:
            own = before.is_own(path, digest(there))
            made.actions[path] = Action.REMOVED if own else Action.KEPT
    return Plan(made.actions, made.writes, tuple(sorted(outdated)))


def carry_out(
    folder: Path, made: Plan, files: Mapping[str, bytes], before: Ledger, after: Ledger
) -> Ledger:
    """Write what is planned, then the ledger; return it.

    What was written is kept where this is cut short: the ledger says first what is going to be
    written, so that the next run knows these files for its own.

    Raises:
        OSError: a file cannot be written; `filename` names it.
    """
    hashes = {path: digest(data) for path, data in made.writes.items()}
    if hashes:
        ledgers.write(folder, before.model_copy(update={"pending": before.pending | hashes}))
    for path, data in made.writes.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole_bytes(place, data)
    for path in made.of(Action.REMOVED):
        (folder / path).unlink(missing_ok=True)
    known = {
        path: hashes.get(path) or _known(path, action, files, before)
        for path, action in made.actions.items()
        if action is not Action.REMOVED
    }
    known = {path: sha256 for path, sha256 in sorted(known.items()) if sha256}
    done = after.model_copy(update={"files": known, "pending": {}})
    if done.model_copy(update={"date": before.date}) == before:
        return before
    ledgers.write(folder, done)
    return done


def _known(path: str, action: Action, files: Mapping[str, bytes], before: Ledger) -> str:
    """Return the hash to remember of a file that is not written this time."""
    if action is Action.KEPT or path not in files:
        return before.files.get(path, "")
    return digest(files[path])


def _on_disk(folder: Path, path: str) -> bytes | None:
    """Return a file's bytes, None where there is none; for a link, bytes that are nobody's.

    Raises:
        ReleaseError: a folder on the way is a link or a file, or the file cannot be read.
    """
    place = folder
    *above, name = path.split("/")
    for part in above:
        place = place / part
        if not os.path.lexists(place):
            return None
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise ReleaseError(f"DIR: got {place}, expected a folder; move it away, then run again")
    place = place / name
    if not os.path.lexists(place):
        return None
    mode = os.lstat(place).st_mode
    if stat.S_ISLNK(mode):
        return b"link to " + os.fsencode(os.readlink(place))
    if not stat.S_ISREG(mode):
        raise ReleaseError(f"DIR: got {place}, expected a file; move it away, then run again")
    try:
        return place.read_bytes()
    except OSError as error:
        raise ReleaseError(f"DIR: {place} cannot be read: {error.strerror}") from None
