"""Finds the line of the submission that is running, and of the loop around it. In the worker."""

from __future__ import annotations

import ast
import functools
import sys
from typing import Any


def running_line(path: str) -> int:
    """Return the line of the file at `path` that is running, the innermost; 0 if none is."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != path:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


def kernel_line(kernel: Any, path: str) -> int:
    """Return the line of `def` of a kernel that is compiled, 0 where it is not of that file."""
    if kernel.fn.__code__.co_filename != path:
        return 0
    heads = (n for n, row in enumerate(kernel.raw_src) if row.lstrip().startswith("def "))
    return kernel.starting_line_number + next(heads, 0)


@functools.lru_cache(maxsize=1)
def _loops(source: bytes) -> tuple[range, ...]:
    """Return the lines of each loop; of one file at a time, which several calls may ask about."""
    loops = (n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.For, ast.While)))
    return tuple(range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in loops)


class Lines:
    """The lines of one submission, whose source is at `path`."""

    def __init__(self, path: str, source: bytes) -> None:
        """Take the source in bytes: from these Python reads a byte order mark as it should."""
        self._path = path
        self._loops = _loops(source)

    def running(self) -> int:
        """Return the line that is running, 0 if none is."""
        return running_line(self._path)

    def loop(self) -> int:
        """Return the line of the innermost loop that is running, 0 if none is."""
        frame: Any = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename == self._path:
                around = [loop.start for loop in self._loops if frame.f_lineno in loop]
                if around:
                    return max(around)
            frame = frame.f_back
        return 0
