"""Reads a submission from whatever it came in: a folder, a zip, a tar, a single file.

Nothing is unpacked to disk, no link is followed, archives in archives are not opened. Time and
memory are bounded, whatever an archive says of itself.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

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

__all__ = ["ArchiveError", "Contents", "read"]

_ZIP = (b"PK\3\4", b"PK\5\6")
_GZIP = b"\x1f\x8b"
_TAR, _TAR_AT = b"ustar", 257
_EXPECTED = "expected a folder, a .zip, a .tar, a .tar.gz or a .py file"


def read(path: Path, *, or_requests: bool = False) -> Contents:
    """Read the answers in a folder, a zip, a tar, a tar.gz, or a single .py file.

    Answers are named `<any prefix>/pNN/<file>.py`, with one prefix for all. Where no folder is
    called pNN, they are found by their own names. With `or_requests` a regrade.md may come alone.

    Raises:
        ArchiveError: it cannot be read, or holds no answer, two submissions or one answer twice.
    """
    what = shown(path.name or str(path))
    with contextlib.ExitStack() as stack:
        return choose(_entries(path, what, stack), what, or_requests=or_requests)


def holds_answers(folder: Path) -> bool:
    """Whether a folder has answers by their names; one that cannot be listed may have some."""
    try:
        with folders.opened(folder, shown(folder.name)) as entries:
            return choosing.holds_answers(entries)
    except ArchiveError:
        return True


def _entries(path: Path, what: str, stack: contextlib.ExitStack) -> list[Entry]:
    """Open a folder, or what the first bytes of a file say that it is, whatever its name says."""
    try:
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            return stack.enter_context(folders.opened(path, what))
        if stat.S_ISLNK(mode):
            raise ArchiveError(f"{what}: got a link, {_EXPECTED} itself")
        file = stack.enter_context(open_regular(path))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no such file"
        raise ArchiveError(f"{what} cannot be read: {reason}; {_EXPECTED}") from None
    size = os.fstat(file.fileno()).st_size
    if size > MAX_ARCHIVE_BYTES:
        got, most = size // 2**20, MAX_ARCHIVE_BYTES // 2**20
        raise ArchiveError(f"{what}: got {got} MiB, expected at most {most} MiB; {ADVICE}")
    head = file.read(_TAR_AT + len(_TAR))
    file.seek(0)
    if path.suffix == ".py":
        return [Entry(path.name, Kind.FILE, lambda: first_bytes(file))]
    if head.startswith(_ZIP):
        return stack.enter_context(zips.opened(file, what))
    if head.startswith(_GZIP) or head[_TAR_AT:] == _TAR or path.suffix == ".tar":
        return stack.enter_context(tars.opened(file, what, zipped=head.startswith(_GZIP)))
    got = "an empty file" if not head else "something else"
    raise ArchiveError(f"{what}: got {got}, {_EXPECTED}; {ADVICE}")
