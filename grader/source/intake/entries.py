"""What the readers of folders, zips and tars have in common: entries, limits, the words of errors.

An entry is a name as it is stored and a way to read its first bytes. Nothing is unpacked to disk,
no link is followed, and no size that an archive declares is believed.
"""

from __future__ import annotations

import enum
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from grader.base.text import clean
from grader.source.submission import MAX_SOURCE_BYTES

# A submission is nine files of a few KiB; the whole of a student's repository is 500 and 5 MiB.
MAX_ENTRIES = 10_000
MAX_ARCHIVE_BYTES = 32 * 2**20
ADVICE = "hand in the archive that `make submit` writes"
# What systems, editors and Python leave behind; nobody means to hand it in.
IGNORED = frozenset(
    "__MACOSX .DS_Store .git .gitignore __pycache__ .venv .cache .pytest_cache .ruff_cache"
    " .ipynb_checkpoints .idea .vscode Thumbs.db desktop.ini".split()
)
_HARMLESS = re.compile(r"[^\w ./+=@,()-]")
_NAME_LIMIT = 80


class ArchiveError(Exception):
    """A submission that cannot be read; the message says what was got and expected, what to do."""


class Kind(enum.Enum):
    """What an entry is; folders that were looked into have none."""

    FILE = enum.auto()
    LINK = enum.auto()
    SPECIAL = enum.auto()  # a pipe, a socket, a device, a file with holes
    UNOPENED = enum.auto()  # a folder that cannot be opened, or lies too deep


@dataclass(frozen=True)
class Entry:
    """One entry: its name as it is stored, and how to read it.

    `read` returns at most MAX_SOURCE_BYTES + 1 bytes, the last to show that there are more. It
    raises ArchiveError where the archive is damaged, and OSError where a file cannot be read.
    """

    name: str
    kind: Kind
    read: Callable[[], bytes]


def shown(name: str) -> str:
    """Return a name as one short line that means nothing to a terminal, Markdown or HTML."""
    return _HARMLESS.sub("?", clean(name, _NAME_LIMIT)) or "?"


def damaged(what: str, error: BaseException) -> ArchiveError:
    """Return the error of an archive that its reader does not understand."""
    reason = clean(str(error), 120) or type(error).__name__
    return ArchiveError(f"{what} is damaged: {reason}; pack it again, or {ADVICE}")


def too_many(what: str) -> ArchiveError:
    """Return the error of a submission with more than MAX_ENTRIES entries."""
    return ArchiveError(
        f"{what}: got more than {MAX_ENTRIES} entries, expected nine files; {ADVICE}"
    )


def kind_of(mode: int) -> Kind | None:
    """Return the kind of an entry of this `st_mode`, None for a folder; no type means a file."""
    form = stat.S_IFMT(mode)
    if form == stat.S_IFDIR:
        return None
    if form == stat.S_IFLNK:
        return Kind.LINK
    return Kind.FILE if form in (0, stat.S_IFREG) else Kind.SPECIAL


def first_bytes(file: BinaryIO) -> bytes:
    """Read what a source may have, and one byte more."""
    return file.read(MAX_SOURCE_BYTES + 1)
