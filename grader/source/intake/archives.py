"""Reads a submission from whatever it came in: a folder, a zip, a tar, a single file.

Nothing is unpacked to disk, no link is followed, archives in archives are not opened. Time and
memory are bounded, whatever an archive says of itself.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from grader.base.regular_file import open_regular
from grader.source.intake import choosing, folders, tars, zips
from grader.source.intake.choosing import Contents, choose
from grader.source.intake.entries import (
    ADVICE,
    MAX_ARCHIVE_BYTES,
    ArchiveError,
    Entry,
    Kind,
    first_bytes,
    shown,
)
from grader.spec.problem import load_problem, problem_ids

__all__ = ["ArchiveError", "Contents", "read"]

_ZIP = (b"PK\3\4", b"PK\5\6")
_GZIP = b"\x1f\x8b"
_TAR, _TAR_AT = b"ustar", 257
_EXPECTED = "expected a folder, a .zip, a .tar, a .tar.gz or a .py file"


def read(path: Path) -> Contents:
    """Read the answers in a folder, a zip, a tar, a tar.gz, or a single .py file.

    Answers are named `<any prefix>/pNN/<file>.py`, with one prefix for all. Where no folder is
    called pNN, they are found by their own names.

    Raises:
        ArchiveError: it cannot be read, or holds no answer, two submissions or one answer twice.
    """
    what = shown(path.name or str(path))
    problems = [load_problem(id) for id in problem_ids()]
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such file"
        raise ArchiveError(f"{what} cannot be read: {reason}; {_EXPECTED}") from None
    if stat.S_ISDIR(mode):
        with folders.opened(path, what) as (entries, skipped):
            return choose(entries, problems, what, skipped)
    with _opened_file(path, mode, what) as file, _entries(file, path, what) as entries:
        return choose(entries, problems, what)


def holds_answers(folder: Path) -> bool:
    """Whether a folder has answers by their names; one that cannot be listed may have some."""
    problems = [load_problem(id) for id in problem_ids()]
    try:
        with folders.opened(folder, shown(folder.name)) as (entries, _):
            return choosing.holds_answers(entries, problems)
    except ArchiveError:
        return True


@contextlib.contextmanager
def _opened_file(path: Path, mode: int, what: str) -> Iterator[BinaryIO]:
    if stat.S_ISLNK(mode):
        raise ArchiveError(f"{what}: got a link, {_EXPECTED} itself")
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open_regular(path))
        except OSError as error:
            raise ArchiveError(f"{what} cannot be read: {error.strerror}; {_EXPECTED}") from None
        size = os.fstat(file.fileno()).st_size
        if size > MAX_ARCHIVE_BYTES:
            got, most = size // 2**20, MAX_ARCHIVE_BYTES // 2**20
            raise ArchiveError(f"{what}: got {got} MiB, expected at most {most} MiB; {ADVICE}")
        yield file


@contextlib.contextmanager
def _entries(file: BinaryIO, path: Path, what: str) -> Iterator[list[Entry]]:
    """Open what the first bytes of a file say that it is, whatever its name says."""
    head = file.read(_TAR_AT + len(_TAR))
    file.seek(0)
    if path.suffix == ".py":
        yield [Entry(path.name, Kind.FILE, lambda: first_bytes(file))]
    elif head.startswith(_ZIP):
        with zips.opened(file, what) as entries:
            yield entries
    elif head.startswith(_GZIP) or head[_TAR_AT:] == _TAR or path.suffix == ".tar":
        with tars.opened(file, what, zipped=head.startswith(_GZIP)) as entries:
            yield entries
    else:
        got = "an empty file" if not head else "something else"
        raise ArchiveError(f"{what}: got {got}, {_EXPECTED}; {ADVICE}")
