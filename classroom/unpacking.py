"""Unpacks the archive of a whole class into a temporary folder.

It writes only regular files, none outside the folder, each no larger than a submission may be, and
no more than a class can have. Notes say what was left out.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import stat
import tarfile
import tempfile
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from classroom.records import CourseError
from grader.base import scratch
from grader.base.regular_file import open_regular
from grader.base.text import clean
from grader.source.intake.entries import IGNORED, MAX_ARCHIVE_BYTES, shown
from grader.spec.environment import EnvironmentFault

MAX_FILES = 200_000  # a thousand students with a whole repository each
MAX_TOTAL_BYTES = 8 * 2**30
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz")
_MAX_NOTES = 20
_MAX_PATH = 2000  # Linux's limit is 4096; the paths below need the rest
_CHUNK = 2**20
# Exceptions of the standard library's readers for malformed archives.
_FAULTS = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, ValueError, NotImplementedError,
    RuntimeError, OverflowError,
)  # fmt: skip


@contextlib.contextmanager
def unpacked(source: Path) -> Iterator[tuple[Path, list[str]]]:
    """Give the folder of the submissions, unpacked if it is an archive, and notes on omissions.

    Unpacked files are removed afterwards; if the process is killed, by the next one.

    Raises:
        CourseError: `source` is no folder or archive, is damaged, or holds too much.
    """
    if source.is_dir():
        yield source, []
        return
    if not source.is_file():
        raise CourseError(f"{source}: no such folder or archive")
    with own_folder() as folder:
        yield folder, _Unpacking(source, folder).run()


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Give a folder that is removed afterwards."""
    folder = Path(tempfile.mkdtemp(dir=scratch.folder()))
    try:
        yield folder
    finally:
        scratch.remove_tree(folder)


# The name of a file, why it is left out or "", when it was written, and how to open it.
_Member = tuple[str, str, float, Callable[[], IO[bytes]]]


def _of_zip(archive: zipfile.ZipFile) -> Iterator[_Member]:
    for info in archive.infolist():
        if not info.is_dir():
            is_regular = stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
            why = "" if is_regular else "is no regular file"
            why = why or "is encrypted" * (info.flag_bits & 0x1)
            written = time.mktime((*info.date_time, 0, 0, -1))
            yield info.filename, why, written, functools.partial(archive.open, info)


def _of_tar(archive: tarfile.TarFile) -> Iterator[_Member]:
    for info in archive:
        if not info.isdir():
            why = "" if info.isreg() and not info.issparse() else "is no regular file"
            yield info.name, why, info.mtime, functools.partial(archive.extractfile, info)


class _Unpacking:
    def __init__(self, source: Path, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._notes: list[str] = []
        self._files = 0
        self._bytes = 0
        self._folders = Counter[str]()  # number of files by the first two levels of folders

    def run(self) -> list[str]:
        try:
            if zipfile.is_zipfile(self._source):
                with zipfile.ZipFile(self._source) as archive:
                    self._unpack(_of_zip(archive))
            elif tarfile.is_tarfile(self._source):
                with tarfile.open(self._source) as archive:
                    self._unpack(_of_tar(archive))
            else:
                raise CourseError(
                    f"{self._source}: got something else, expected a folder, a .zip, a .tar or a"
                    " .tar.gz with the submissions of a class"
                )
        except _FAULTS as error:
            if isinstance(error, CourseError):
                raise
            reason = clean(str(error), 120) or type(error).__name__
            raise CourseError(
                f"{self._source}: the archive is damaged: {reason}; download it again"
            ) from None
        except OSError as error:
            words = f"{self._source}: cannot be unpacked: {error.strerror}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise EnvironmentFault(f"{words} in {self._folder}") from None
            raise CourseError(words) from None
        return self._notes

    def _unpack(self, members: Iterable[_Member]) -> None:
        for name, why_not, written, opened in members:
            if why_not:
                self._note(name, why_not)
            elif place := self._place(name):
                with opened() as member:
                    self._write(name, place, member, written)

    def _place(self, name: str) -> Path | None:
        """Return where to write a member, None if it is left out."""
        parts = name.split("/")
        self._files += 1
        self._folders["/".join(parts[:-1][:2])] += 1
        if self._files > MAX_FILES:
            (folder, most), *_ = self._folders.most_common(1)
            raise CourseError(
                f"{self._source}: got more than {MAX_FILES} files, {most} of them in"
                f" {shown(folder)}; split it into several archives"
            )
        if parts[0] == ".":
            parts = parts[1:]
        if not IGNORED.isdisjoint(parts):
            return None
        place = self._folder.joinpath(*parts)
        bad = any(part in ("", ".", "..") or "\\" in part or "\0" in part for part in parts)
        long = any(len(os.fsencode(part)) > 255 for part in parts)
        if bad or long or len(parts) > 40 or len(os.fsencode(place)) > _MAX_PATH:
            self._note(name, "has a path that is not used")
            return None
        return place

    def _write(self, name: str, place: Path, member: IO[bytes], written: float) -> None:
        if os.path.lexists(place):
            self._note(name, "is there twice: the first counts")
            return
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            self._note(name, "lies in a file")
            return
        size = 0
        with open(place, "xb") as file:
            while chunk := member.read(_CHUNK):
                size += len(chunk)
                self._bytes += len(chunk)
                if self._bytes > MAX_TOTAL_BYTES:
                    raise CourseError(
                        f"{self._source}: got more than {MAX_TOTAL_BYTES >> 30} GiB unpacked;"
                        " split it into several archives"
                    )
                if size > MAX_ARCHIVE_BYTES:
                    break
                file.write(chunk)
        if size > MAX_ARCHIVE_BYTES:
            place.unlink()
            self._note(name, f"has more than {MAX_ARCHIVE_BYTES >> 20} MiB")
            return
        with contextlib.suppress(OSError, OverflowError, ValueError):
            os.utime(place, (written, written))

    def _note(self, name: str, why: str) -> None:
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(f"{shown(name)} {why}: left out")


def copy_regular(source: Path, target: Path) -> None:
    """Copy a regular file, up to the largest size of a submission.

    Raises:
        OSError: the file cannot be read, or is not a regular file.
    """
    with open_regular(source) as file, open(target, "xb") as copy:
        copy.write(file.read(MAX_ARCHIVE_BYTES))


def is_archive(name: str) -> bool:
    """Whether a file's name is that of an archive."""
    return name.casefold().endswith(SUFFIXES)


def without_suffix(name: str) -> str:
    """Return the name of an archive without .zip and the like."""
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if name.casefold().endswith(suffix):
            return name[: -len(suffix)]
    return name
