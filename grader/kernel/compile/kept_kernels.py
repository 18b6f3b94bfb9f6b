"""Keeps kernels that were compiled, and the figures read off them, until they change.

Triton keeps all files of a kernel in a folder of its own, by a key of its source, the lines it
begins in, its constants and the chip. The figures lie beside them, for the assembler's log is not
kept, and what is kept speaks of the path that the submission had then.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from grader.base import scratch

MOST = 64  # some eight versions of the kernels of a problem, a third of a MiB each
FIGURES = "figures.json"


def only_with_figures() -> type:
    """Return a manager of Triton's cache that knows a kernel when its figures are kept too."""
    from triton.runtime.cache import FileCacheManager

    class Manager(FileCacheManager):
        def get_group(self, filename: str) -> dict[str, str] | None:
            """Return the files of a kernel, by name."""
            figures = read(Path(self.cache_dir, FIGURES))
            return super().get_group(filename) if figures is not None else None

    return Manager


def keep(cubin: str, figures: dict[str, Any]) -> None:
    """Write down the figures of a kernel, beside its machine code."""
    write(Path(cubin).with_name(FIGURES), figures)


def kept(cubin: str) -> dict[str, Any] | None:
    """Return the figures of a kernel, which count as used now; None where there are none."""
    path = Path(cubin).with_name(FIGURES)
    with contextlib.suppress(OSError):
        os.utime(path.parent)
    return read(path)


def write(path: Path, found: dict[str, Any]) -> None:
    """Write what was found of a kernel to a file, whole or not at all."""
    partial = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        partial.write_text(json.dumps(found), encoding="utf-8")
        os.replace(partial, path)


def read(path: Path) -> dict[str, Any] | None:
    """Return what such a file holds; None where there is none, or a damaged one."""
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text(encoding="utf-8"))
        return found if isinstance(found, dict) else None
    return None


def make_room(folder: Path) -> None:
    """Remove all kernels but the `MOST` that were used last; nobody may be compiling."""
    with contextlib.suppress(OSError):
        kernels = sorted(folder.iterdir(), key=lambda path: path.lstat().st_mtime)
        for path in kernels[:-MOST]:
            scratch.remove_tree(path)
