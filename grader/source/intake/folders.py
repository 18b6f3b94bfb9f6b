"""The files of a folder, without following links."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from grader.base.regular_file import FOLDER, open_below
from grader.source.intake.entries import (
    IGNORED,
    MAX_ENTRIES,
    ArchiveError,
    Entry,
    Kind,
    first_bytes,
    kind_of,
    too_many,
)

MAX_DEPTH = 12


@contextlib.contextmanager
def opened(path: Path, what: str) -> Iterator[list[Entry]]:
    """Give the entries of a folder, which can be read inside the context.

    Raises:
        ArchiveError: it cannot be opened, or has too many entries.
    """
    try:
        root = os.open(path, FOLDER)
    except OSError as error:
        raise ArchiveError(f"{what} cannot be read: {error.strerror}") from None
    try:
        found = list(itertools.islice(_walk(root, ()), MAX_ENTRIES + 1))
        if len(found) > MAX_ENTRIES:
            raise too_many(what)
        yield [
            Entry("/".join(name), kind, _reader(root, name))
            for name, kind in found
            if kind is not None
        ]
    finally:
        os.close(root)


def _walk(folder: int, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Kind | None]]:
    """Give each entry below an open folder, in order of names; a folder with None for its kind."""
    with os.scandir(folder) as found:
        # One more than is allowed, so that a folder with millions of files is not listed whole.
        listed = list(itertools.islice(found, MAX_ENTRIES + 1))
    for item in sorted(listed, key=lambda item: item.name):
        if item.name in IGNORED:
            continue
        name = (*above, item.name)
        try:
            kind, below = kind_of(item.stat(follow_symlinks=False).st_mode), None
            if kind is None and len(name) <= MAX_DEPTH:
                below = os.open(item.name, FOLDER, dir_fd=folder)
        except OSError:
            below, kind = None, Kind.UNOPENED
        if below is None:
            yield name, kind or Kind.UNOPENED
            continue
        try:
            yield name, None
            yield from _walk(below, name)
        finally:
            os.close(below)


def _reader(root: int, name: tuple[str, ...]) -> Callable[[], bytes]:
    def read() -> bytes:
        with open_below(root, name) as file:
            return first_bytes(file)

    return read
