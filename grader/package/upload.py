"""Lays out an upload as `grade` reads it: `python -m grader.package.upload UPLOAD ANSWERS`.

An upload holds the files of problems by their names, in folders or not. Exit code 0 when a file
was found, 1 when none was.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from grader.manifest import load_problem, problem_ids
from grader.render.text import clean
from grader.source import MAX_SOURCE_BYTES

_MAX_DEPTH = 8
_MAX_ENTRIES = 10_000


def main(arguments: Sequence[str] | None = None) -> int:
    """Copy what is found, say what that is; return the exit code."""
    upload, answers = map(Path, sys.argv[1:] if arguments is None else arguments)
    files = find(upload)
    for name, path in files.items():
        with contextlib.suppress(OSError):
            data = _read(path)
            (answers / name).parent.mkdir(parents=True, exist_ok=True)
            (answers / name).write_bytes(data)
            print(f"{name}: {clean(path.relative_to(upload))}")
    return 0 if files else 1


def find(upload: Path) -> dict[str, Path]:
    """Return the file for each `pNN/<file>.py`: the one in a folder pNN, or else the topmost."""
    wanted = {load_problem(id).file: id for id in problem_ids()}
    found: dict[str, list[Path]] = {}
    for path in _regular_files(upload):
        if path.name in wanted:
            found.setdefault(path.name, []).append(path)
    return {
        f"{wanted[name]}/{name}": min(
            paths, key=lambda path: (path.parent.name != wanted[name], len(path.parts), path)
        )
        for name, paths in sorted(found.items(), key=lambda item: wanted[item[0]])
    }


def _regular_files(upload: Path) -> Iterator[Path]:
    """Yield the files of a folder and of those in it; follow no link."""
    seen = 0
    for folder, folders, names in os.walk(upload):
        depth = len(Path(folder).relative_to(upload).parts)
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        if depth >= _MAX_DEPTH:
            folders.clear()
        for name in sorted(names):
            seen += 1
            if seen > _MAX_ENTRIES:
                return
            with contextlib.suppress(OSError):
                if stat.S_ISREG((Path(folder) / name).lstat().st_mode):
                    yield Path(folder) / name


def _read(path: Path) -> bytes:
    """Return the bytes; of a file that is too long so many that `grade` refuses it."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        return file.read(MAX_SOURCE_BYTES + 1)


if __name__ == "__main__":
    sys.exit(main())
