"""`.release.json`: what a release has written where, and when a problem's answers may go out."""

from __future__ import annotations

import datetime
import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, AwareDatetime, Field, ValidationError

from grader.base.atomic_write import write_whole
from grader.commands.release.contents import ReleaseError
from grader.spec.grade_record import Record

NAME = ".release.json"
_Id = Annotated[str, Field(pattern=r"^p\d\d$")]


def _inside(path: str) -> str:
    """Refuse a path that leads out of the folder: whoever has the folder can edit this file."""
    if path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError("expected a path inside of the release")
    return path


_Files = dict[Annotated[str, AfterValidator(_inside)], str]


class Ledger(Record):
    """The file's contents: version and day of the last release, its problems, its files' hashes.

    `files` are those that releases wrote, with the hash of what was written last; `pending` those
    of a release that has begun and not ended. `answers_after` says when a problem is over,
    `answers` of which problems the answers are out.
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
        """Whether a release wrote just these bytes there."""
        return sha256 in (self.files.get(path), self.pending.get(path))


def read(folder: Path, version: str) -> Ledger | None:
    """Return the ledger of a release, None where there is none.

    Raises:
        ReleaseError: it cannot be read, or is of a newer version than `version`.
    """
    try:
        ledger = Ledger.model_validate_json((folder / NAME).read_bytes())
        newer = Version(ledger.version) > Version(version)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReleaseError(f"DIR: {folder / NAME} cannot be read: {error.strerror}") from None
    except (ValidationError, InvalidVersion):
        raise ReleaseError(
            f"DIR: {folder / NAME} is not one that this version ({version}) writes; expected a"
            " folder that is empty, or a release"
        ) from None
    if newer:
        raise ReleaseError(
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
    """Return the hash by which files are compared."""
    return hashlib.sha256(data).hexdigest()


_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


def read_date(text: str) -> datetime.datetime:
    """Read an ISO date; without a time it is the end of that day, without a zone local time.

    Raises:
        ReleaseError: it is none.
    """
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ReleaseError(
            f"--answers-after: got {text!r}, expected a date such as 2027-01-31,"
            " 2027-01-31T18:00 or 2027-01-31T18:00+01:00"
        ) from None
    if _DAY.fullmatch(text.strip()):
        moment += datetime.timedelta(days=1)
    return moment.astimezone()


def with_date(
    before: Ledger, problems: tuple[str, ...], moment: datetime.datetime, now: datetime.datetime
) -> dict[str, datetime.datetime]:
    """Return when each problem is over, `problems` at `moment`.

    Raises:
        ReleaseError: that is past, for a problem that nobody was given before.
    """
    new = [id for id in problems if id not in before.problems]
    if new and moment <= now:
        raise ReleaseError(
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
    """Return the problems whose answers may be handed out now, and those that already were."""
    return tuple(
        id for id in problems if id in before.answers or (id in dates and dates[id] <= now)
    )


def shown(moment: datetime.datetime) -> str:
    """Return a moment as 2027-01-31 18:00 +01:00."""
    return moment.strftime("%Y-%m-%d %H:%M ") + f"{moment:%z}"[:3] + ":" + f"{moment:%z}"[3:5]
