"""Finds the line of the submission that is running, and that of a kernel. In the worker."""

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
    """Return the line of `def` of a kernel that is compiled, 0 where it is not of that file.

    By its code: the lists in which Triton keeps the kernel's text are in the file's reach.
    """
    code = kernel.fn.__code__
    if code.co_filename != path:
        return 0
    return _heads(path).get((code.co_name, code.co_firstlineno), code.co_firstlineno)


@functools.lru_cache(maxsize=1)
def _heads(path: str) -> dict[tuple[str, int], int]:
    """Return the line of `def` of each function, by its name and its first line."""
    with open(path, "rb") as file:
        functions = [n for n in ast.walk(ast.parse(file.read())) if isinstance(n, ast.FunctionDef)]
    return {
        (n.name, min([n.lineno, *(d.lineno for d in n.decorator_list)])): n.lineno
        for n in functions
    }
