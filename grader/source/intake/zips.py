"""The entries of a zip archive, and zips that depend on their files alone."""

from __future__ import annotations

import contextlib
import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import BinaryIO

from grader.source.intake.entries import (
    ADVICE,
    MAX_ENTRIES,
    ArchiveError,
    Entry,
    damaged,
    first_bytes,
    kind_of,
    shown,
    too_many,
)

# Only deflate is read in bounded steps: `zipfile` unpacks bzip2 and LZMA by the whole block.
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_ENCRYPTED = 0x1 | 0x40
# `zipfile` makes an object of each entry of the directory before anybody can count them. An entry
# has 46 bytes and its name; with names of usual length this many bytes are 10 000 to 20 000.
_MAX_DIRECTORY_BYTES = 2 * 2**20
_END = struct.Struct("<4s4H2LH")  # end of central directory: APPNOTE.TXT 6.3.10, 4.3.16
_MAX_COMMENT = 2**16
_LOCATOR_BYTES = 20  # of zip64, before that record
# What `zipfile` raises for bytes that are no zip, or one with a feature that it lacks.
_FAULTS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError,
    RuntimeError, OverflowError, OSError,
)  # fmt: skip


@contextlib.contextmanager
def opened(file: BinaryIO, what: str) -> Iterator[list[Entry]]:
    """Open a zip; give its entries, which can be read inside the context.

    Raises:
        ArchiveError: it is damaged, or has too many entries.
    """
    _expect_modest(file, what)
    try:
        archive = zipfile.ZipFile(file)
    except _FAULTS as error:
        raise damaged(what, error) from None
    with archive:
        infos = archive.infolist()
        if len(infos) > MAX_ENTRIES:
            raise too_many(what)
        yield [
            Entry(info.orig_filename, kind, _reader(archive, info))
            for info in infos
            if (kind := kind_of(info.external_attr >> 16))
            and not info.orig_filename.endswith(("/", "\\"))
        ]


def _expect_modest(file: BinaryIO, what: str) -> None:
    """Refuse a directory of entries that would take much memory, and the large form of zips."""
    size = file.seek(0, 2)
    file.seek(max(0, size - _END.size - _MAX_COMMENT))
    tail = file.read(_END.size + _MAX_COMMENT)
    at = tail.rfind(b"PK\5\6")
    if at < 0 or len(tail) - at < _END.size:
        raise damaged(what, zipfile.BadZipFile("its directory is missing"))
    *_, num_entries, directory_bytes, _, _ = _END.unpack_from(tail, at)
    if num_entries > MAX_ENTRIES or directory_bytes > _MAX_DIRECTORY_BYTES:
        raise too_many(what)
    if tail[at - _LOCATOR_BYTES :].startswith(b"PK\6\7"):
        raise ArchiveError(f"{what}: got zip64, the form for 4 GiB and more; {ADVICE}")


def _reader(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Callable[[], bytes]:
    def read() -> bytes:
        name = shown(info.orig_filename)
        if info.flag_bits & _ENCRYPTED:
            raise ArchiveError(f"{name} is encrypted; pack it without a password, or {ADVICE}")
        if info.compress_type not in _METHODS:
            method = zipfile.compressor_names.get(info.compress_type, info.compress_type)
            raise ArchiveError(f"{name}: got compression {method}, expected deflate; {ADVICE}")
        try:
            with archive.open(info) as member:
                return first_bytes(member)
        except _FAULTS as error:
            raise damaged(name, error) from None

    return read


_NO_TIME = (1980, 1, 1, 0, 0, 0)  # the first day that a zip can store
_UNIX = 3  # else the mode is not read


def packed(
    files: Mapping[str, bytes], scripts: Collection[str] = (), *, method: int = zipfile.ZIP_STORED
) -> bytes:
    """Return a zip of these files in their order; what is stored is the same with every zlib."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, _NO_TIME)
            entry.create_system, entry.compress_type = _UNIX, method
            entry.external_attr = (stat.S_IFREG | (0o755 if name in scripts else 0o644)) << 16
            archive.writestr(entry, data)
    return buffer.getvalue()
