"""Looks through a student's answers and packs those that there are into one archive."""

from __future__ import annotations

import datetime
import enum
import io
import os
import stat
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from grader import __version__
from grader.base.atomic_write import write_whole_bytes
from grader.base.regular_file import open_regular
from grader.source.intake import receipt, zips
from grader.source.intake.archives import read
from grader.source.intake.entries import ArchiveError
from grader.source.steps import steps_begun
from grader.source.submission import Source, read_source
from grader.spec.grade_record import Verdict
from grader.spec.problem import Problem

# The first day that a zip can tell: the same answers make the same archive.
_NO_TIME = (1980, 1, 1, 0, 0, 0)
_UNIX = 3
_READABLE = stat.S_IFREG | 0o644


class State(enum.Enum):
    """What is there of one problem."""

    READY = "ready"
    NOT_STARTED = "not started"
    REFUSED = "refused"
    MISSING = "missing"


@dataclass(frozen=True)
class PackedAnswer:
    """One problem's file and what would become of it; `source` is None where there is no file."""

    problem: Problem
    state: State
    source: Source | None = None

    @property
    def name(self) -> str:
        """The file's name in a submission, pNN/<file>.py."""
        return f"{self.problem.id}/{self.problem.file}"


@dataclass(frozen=True)
class Packed:
    """What was looked through, and the archive that was written, if any."""

    answers: tuple[PackedAnswer, ...]
    archive: str | None = None
    num_files: int = 0
    num_bytes: int = 0
    code: str = ""


def look_through(problems: Iterable[Problem], submission: Path) -> tuple[PackedAnswer, ...]:
    """Return what a submission holds for each problem; nothing is run."""
    return tuple(_answer(problem, submission) for problem in problems)


def _answer(problem: Problem, submission: Path) -> PackedAnswer:
    if not os.path.lexists(submission / problem.id / problem.file):
        return PackedAnswer(problem, State.MISSING)
    source = read_source(problem, submission)
    if source.verdict not in (None, Verdict.NOT_IMPLEMENTED):
        return PackedAnswer(problem, State.REFUSED, source)
    begun = source.verdict is None or steps_begun(source.data.decode("utf-8-sig", "replace"))
    return PackedAnswer(problem, State.READY if begun else State.NOT_STARTED, source)


def files_of(answers: Iterable[PackedAnswer]) -> dict[str, bytes]:
    """Return the bytes of all answers that could be read, refused ones too, by name."""
    return {a.name: a.source.data for a in answers if a.source is not None and a.source.data}


def pack(files: Mapping[str, bytes], date: datetime.date) -> bytes:
    """Return an archive of these files and their receipt; the same files give the same bytes.

    Stored, not compressed: how `zlib` compresses depends on its version.
    """
    made = receipt.receipt_of(files, __version__, date).model_dump_json(indent=1) + "\n"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, data in [*sorted(files.items()), (receipt.NAME, made.encode())]:
            info = zipfile.ZipInfo(name, _NO_TIME)
            info.create_system, info.external_attr = _UNIX, _READABLE << 16
            archive.writestr(info, data)
    return packed.getvalue()


def write_archive(path: Path, files: Mapping[str, bytes], date: datetime.date) -> int:
    """Write the archive and read it back as the instructor's tools will; return its size in bytes.

    Raises:
        OSError: it cannot be written.
        ArchiveError: what can be read back is something else.
    """
    data = pack(files, date)
    write_whole_bytes(path, data)
    found = read(path)
    if dict(found.files) != dict(files) or found.notes:
        raise ArchiveError("what can be read back differs from what was written; submit again")
    return len(data)


def is_own(path: Path) -> bool:
    """Whether there is an archive here that `submit` has written."""
    try:
        with open_regular(path) as file, zips.opened(file, path.name) as entries:
            data = [entry.read() for entry in entries if entry.name == receipt.NAME]
    except (OSError, ArchiveError):
        return False
    return len(data) == 1 and receipt.read_receipt(data[0]) is not None
