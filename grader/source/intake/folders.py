"""The files of a folder, without following links."""

from __future__ import annotations

import contextlib
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
def opened(path: Path, what: str) -> Iterator[tuple[list[Entry], list[str]]]:
    """Give the entries of a folder, which can be read inside the context, and what was left out.

    Raises:
        ArchiveError: it cannot be opened, or has too many entries.
    """
    try:
        root = os.open(path, FOLDER)
    except OSError as error:
        raise ArchiveError(f"{what} cannot be read: {error.strerror}") from None
    try:
        entries: list[Entry] = []
        skipped: list[str] = []
        budget = MAX_ENTRIES
        for name, kind in _walk(root, (), skipped):
            budget -= 1
            if budget < 0:
                raise too_many(what)
            if kind is not None:
                entries.append(Entry("/".join(name), kind, _reader(root, name)))
        yield entries, skipped
    finally:
        os.close(root)


def _walk(
    folder: int, above: tuple[str, ...], skipped: list[str]
) -> Iterator[tuple[tuple[str, ...], Kind | None]]:
    """Give each entry below an open folder, in order of names; a folder with None for its kind."""
    with os.scandir(folder) as found:
        # One more than is looked at, so that a folder with millions of files is not listed whole.
        listed = [item for item, _ in zip(found, range(MAX_ENTRIES + 1), strict=False)]
    for item in sorted(listed, key=lambda item: item.name):
        if item.name in IGNORED:
            continue
        name = (*above, item.name)
        try:
            kind = kind_of(item.stat(follow_symlinks=False).st_mode)
        except OSError:
            skipped.append("/".join(name))
            continue
        yield name, kind
        if kind is not None:
            continue
        if len(name) > MAX_DEPTH:
            skipped.append("/".join(name))
            continue
        try:
            below = os.open(item.name, FOLDER, dir_fd=folder)
        except OSError:
            skipped.append("/".join(name))
            continue
        try:
            yield from _walk(below, name, skipped)
        finally:
            os.close(below)


def _reader(root: int, name: tuple[str, ...]) -> Callable[[], bytes]:
    def read() -> bytes:
        with open_below(root, name) as file:
            return first_bytes(file)

    return read
