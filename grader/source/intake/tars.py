"""The entries of a tar archive, plain or compressed with gzip."""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import BinaryIO

from grader.source.intake.entries import (
    ADVICE,
    MAX_ENTRIES,
    ArchiveError,
    Entry,
    Kind,
    damaged,
    first_bytes,
    shown,
    too_many,
)
from grader.source.submission import MAX_SOURCE_BYTES

# Unpacked, all of it: a tar has no directory, so that everything before a file has to be unpacked.
MAX_UNPACKED_BYTES = 64 * 2**20
# A tar of many short files is mostly zeros, and shrinks by far more than text does.
_MAX_RATIO = 250
_FREE_BYTES = 2**20
# Headers that hold a long name or other attributes. `tarfile` before Python 3.11.10 searches them
# in quadratic time (CVE-2024-6232), hence a limit on the sum of squares: 2**28 takes two seconds.
_MAX_ATTRIBUTE_BYTES = 8 * 2**10
_MAX_SQUARED = 2**28
_ATTRIBUTES = (
    tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)  # fmt: skip
_FAULTS = (
    tarfile.TarError, zlib.error, EOFError, ValueError, IndexError, KeyError, RecursionError,
    OverflowError, OSError,
)  # fmt: skip


@contextlib.contextmanager
def opened(file: BinaryIO, what: str, *, zipped: bool) -> Iterator[list[Entry]]:
    """Open a tar; give its entries, which can be read inside the context.

    Raises:
        ArchiveError: it is damaged, unpacks to too much, or has too many entries.
    """
    data = _unpacked(file, what) if zipped else file.read()
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(
                tarfile.open(fileobj=io.BytesIO(data), mode="r:", tarinfo=_ModestInfo)
            )
            members = list(itertools.islice(archive, MAX_ENTRIES + 1))
            # `tarfile` takes a header that it cannot read for the end.
            at_end = data[archive.offset : archive.offset + tarfile.BLOCKSIZE]
            if at_end.strip(b"\0") and len(members) <= MAX_ENTRIES:
                raise tarfile.ReadError("a header in it cannot be read")
        except _FAULTS as error:
            raise damaged(what, error) from None
        if len(members) > MAX_ENTRIES:
            raise too_many(what)
        yield [Entry(m.name, _kind(m), _reader(archive, m)) for m in members if not m.isdir()]


class _ModestInfo(tarfile.TarInfo):
    """An entry whose extra headers are short; `_proc_member` is the hook for subclasses."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _ATTRIBUTES:
            squared = getattr(archive, "squared_attribute_bytes", 0) + self.size**2
            archive.squared_attribute_bytes = squared
            if not 0 <= self.size <= _MAX_ATTRIBUTE_BYTES or squared > _MAX_SQUARED:
                raise tarfile.ReadError("its headers hold too many bytes of attributes")
        return super()._proc_member(archive)


def _unpacked(file: BinaryIO, what: str) -> bytes:
    allowed = min(MAX_UNPACKED_BYTES, _FREE_BYTES + _MAX_RATIO * file.seek(0, 2))
    file.seek(0)
    try:
        with gzip.GzipFile(fileobj=file) as stream:
            data = stream.read(allowed + 1)
    except _FAULTS as error:
        raise damaged(what, error) from None
    if len(data) > allowed:
        size = f"{allowed / 2**20:.0f} MiB"
        raise ArchiveError(f"{what}: got more than {size} unpacked, expected nine files; {ADVICE}")
    return data


def _kind(member: tarfile.TarInfo) -> Kind:
    if member.issym() or member.islnk():
        return Kind.LINK
    return Kind.FILE if member.isreg() and not member.issparse() else Kind.SPECIAL


def _reader(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Callable[[], bytes]:
    def read() -> bytes:
        try:
            content = archive.extractfile(member)
            data = first_bytes(content) if content else b""
        except _FAULTS as error:
            raise damaged(shown(member.name), error) from None
        if len(data) < min(member.size, MAX_SOURCE_BYTES + 1):
            raise damaged(shown(member.name), EOFError("it ends too early"))
        return data

    return read
