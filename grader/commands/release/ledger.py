"""The ledger of a release, and the plan by which its folder is updated.

The ledger, `.release.json`, has the hashes of the files written, and when a problem's answers may
go out. Each file is written in one step, the ledger last. An update replaces a file that nobody has
changed; it leaves and names a file that was changed. It never overwrites a stub that a student has
begun: if the stub itself has changed, the new one is written beside it as `<file>.new`.
"""

from __future__ import annotations

import datetime
import enum
import hashlib
import os
import re
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, AwareDatetime, Field, ValidationError

from grader.base.atomic_write import write_whole, write_whole_bytes
from grader.commands.options import UsageError
from grader.spec.grade_record import Record

NAME = ".release.json"
_Id = Annotated[str, Field(pattern=r"^p\d\d$")]


def _inside(path: str) -> str:
    """Refuse a path that leads out of the folder: anyone with the folder can edit the ledger."""
    if path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError("expected a path inside of the release")
    return path


_Files = dict[Annotated[str, AfterValidator(_inside)], str]


class Ledger(Record):
    """The contents of the ledger: version and day of the last release, its problems and files.

    `files` has the hash last written of each file, `pending` those of a release that has begun and
    not ended. `answers_after` says when a problem is over, `answers` which problems' answers are
    out.
    """

    format: Literal["flash-attention-problems/release-1"] = "flash-attention-problems/release-1"
    version: str
    date: datetime.date
    problems: tuple[_Id, ...]
    answers_after: dict[_Id, AwareDatetime] = Field(default_factory=dict)
    answers: tuple[_Id, ...] = ()
    files: _Files = Field(default_factory=dict)
    pending: _Files = Field(default_factory=dict)

    def is_own(self, path: str, sha256: str) -> bool:
        """Whether a release wrote the bytes of this hash to this path."""
        return sha256 in (self.files.get(path), self.pending.get(path))


def read(folder: Path, version: str) -> Ledger | None:
    """Return the ledger in a folder, None where there is none.

    Raises:
        UsageError: the ledger cannot be read, or its version is newer than `version`.
    """
    try:
        ledger = Ledger.model_validate_json((folder / NAME).read_bytes())
        newer = Version(ledger.version) > Version(version)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"DIR: {folder / NAME} cannot be read: {error.strerror}") from None
    except (ValidationError, InvalidVersion):
        raise UsageError(
            f"DIR: {folder / NAME} is not one that this version ({version}) writes; expected a"
            " folder that is empty, or a release"
        ) from None
    if newer:
        raise UsageError(
            f"DIR: got a release of version {ledger.version}, which is newer than this checkout's"
            f" {version}; update the checkout, or take another folder"
        )
    return ledger


def write(folder: Path, ledger: Ledger) -> None:
    """Write the ledger in one step.

    Raises:
        OSError: it cannot be written.
    """
    write_whole(folder / NAME, ledger.model_dump_json(indent=1) + "\n")


def digest(data: bytes) -> str:
    """Return the hash with which files are compared."""
    return hashlib.sha256(data).hexdigest()


_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def read_date(text: str) -> datetime.datetime:
    """Read an ISO date; without a time it is the end of that day, without a zone local time.

    Raises:
        UsageError: `text` is no date.
    """
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise UsageError(
            f"--answers-after: got {text!r}, expected a date such as 2027-01-31,"
            " 2027-01-31T18:00 or 2027-01-31T18:00+01:00"
        ) from None
    if _DAY.fullmatch(text.strip()):
        moment += datetime.timedelta(days=1)
    return moment.astimezone()


def with_date(
    before: Ledger, problems: tuple[str, ...], moment: datetime.datetime, now: datetime.datetime
) -> dict[str, datetime.datetime]:
    """Return the moments at which problems are over, with `moment` for `problems`.

    Raises:
        UsageError: `moment` is past, and one of the problems is new.
    """
    new = [id for id in problems if id not in before.problems]
    if new and moment <= now:
        raise UsageError(
            f"--answers-after: got {shown(moment)}, which is past, for {new[0]}, which is new;"
            " expected a time to come"
        )
    return before.answers_after | dict.fromkeys(problems, moment)


def over(
    problems: tuple[str, ...],
    before: Ledger,
    dates: dict[str, datetime.datetime],
    now: datetime.datetime,
) -> tuple[str, ...]:
    """Return the problems whose answers may go out now, or are out already."""
    return tuple(
        id for id in problems if id in before.answers or (id in dates and dates[id] <= now)
    )


def shown(moment: datetime.datetime) -> str:
    """Return a moment as 2027-01-31 18:00 +01:00."""
    return moment.strftime("%Y-%m-%d %H:%M ") + f"{moment:%z}"[:3] + ":" + f"{moment:%z}"[3:5]


BESIDE = ".new"


class Action(enum.Enum):
    """What an update does with a file that differs from the release."""

    ADDED = "added"
    UPDATED = "updated"
    KEPT = "kept"  # somebody changed it
    REMOVED = "removed"


@dataclass(frozen=True)
class Plan:
    """By path the action, the bytes to write, and the hash for the ledger.

    `outdated` files stay because they were changed here, although the release has new versions.
    """

    actions: dict[str, Action] = field(default_factory=dict)
    writes: dict[str, bytes] = field(default_factory=dict)
    hashes: dict[str, str] = field(default_factory=dict)
    outdated: list[str] = field(default_factory=list)

    def of(self, *actions: Action) -> list[str]:
        """Return the paths with these actions, in order."""
        return [path for path, action in self.actions.items() if action in actions]


@dataclass(frozen=True)
class Released:
    """The outcome of a run: the folder, the ledger before and after, and the plan carried out.

    `opened` are modules of `given` with the answer to a problem that students have not had before:
    it is handed out in this run, or later.
    """

    folder: str
    before: Ledger | None
    after: Ledger
    plan: Plan
    later: tuple[str, ...]
    opened: Mapping[str, str] = field(default_factory=dict)


def plan(folder: Path, files: Mapping[str, bytes], stubs: Collection[str], before: Ledger) -> Plan:
    """Compare a folder with the files it should hold; nothing is written.

    Raises:
        UsageError: a folder in it is a link, or a path is blocked by another kind of file.
    """
    made, wanted = Plan(), dict(files)
    for path in stubs:
        there = _on_disk(folder, path)
        if there is None or before.is_own(path, digest(there)) or there == files[path]:
            continue
        changed = before.files.get(path) != digest(files[path])
        if changed or path + BESIDE in before.files:
            wanted[path + BESIDE] = files[path]
    for path in sorted(wanted.keys() | before.files.keys()):
        there, data = _on_disk(folder, path), wanted.get(path)
        known, sha256 = before.files.get(path), None if data is None else digest(data)
        if there == data:
            action = None
        elif there is None:
            action = Action.ADDED
        elif before.is_own(path, digest(there)):
            action = Action.UPDATED if data is not None else Action.REMOVED
        else:
            action = None if path in stubs else Action.KEPT
        if action is not None:
            made.actions[path] = action
        if action in (Action.ADDED, Action.UPDATED):
            made.writes[path] = data
        if action is Action.KEPT:
            if sha256 not in (None, known):
                made.outdated.append(path)
            sha256 = known
        if sha256 is not None:
            made.hashes[path] = sha256
    return made


def carry_out(folder: Path, made: Plan, before: Ledger, after: Ledger) -> Ledger:
    """Carry out the plan, then write the ledger and return it.

    The ledger lists the files as pending first, so that the next run recognises those that an
    interrupted run has written.

    Raises:
        OSError: a file cannot be written; `filename` names it.
    """
    pending = {path: made.hashes[path] for path in made.writes}
    if pending:
        write(folder, before.model_copy(update={"pending": before.pending | pending}))
    for path, data in made.writes.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole_bytes(place, data)
    for path in made.of(Action.REMOVED):
        (folder / path).unlink(missing_ok=True)
    done = after.model_copy(update={"files": made.hashes})
    if done.model_copy(update={"date": before.date}) == before:
        return before
    write(folder, done)
    return done


def _on_disk(folder: Path, path: str) -> bytes | None:
    """Return a file's bytes, None if it is missing; for a link, bytes that match no release's."""
    place = folder
    *above, name = path.split("/")
    for part in above:
        place = place / part
        if not os.path.lexists(place):
            return None
        if not stat.S_ISDIR(os.lstat(place).st_mode):
            raise UsageError(f"DIR: got {place}, expected a folder; move it away, then run again")
    place = place / name
    if not os.path.lexists(place):
        return None
    mode = os.lstat(place).st_mode
    if stat.S_ISLNK(mode):
        return b"link to " + os.fsencode(os.readlink(place))
    if not stat.S_ISREG(mode):
        raise UsageError(f"DIR: got {place}, expected a file; move it away, then run again")
    try:
        return place.read_bytes()
    except OSError as error:
        raise UsageError(f"DIR: {place} cannot be read: {error.strerror}") from None
