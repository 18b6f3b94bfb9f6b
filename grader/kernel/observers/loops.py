"""Knows the loops of the functions that a kernel runs through, by frame. Runs inside the worker."""

from __future__ import annotations

import ast
import os
from typing import Any

from grader.kernel.given import FOLDER

_MOST_FRAMES = 64


class Loops:
    """The loops of the submission and of `given`, whose kernels a submission may call."""

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._of_file = {path: _File(source)}

    def knows(self, path: str) -> bool:
        """Whether a file is the submission, or one of `given`."""
        return path == self._path or path.startswith(FOLDER + os.sep)

    def is_own(self, frame: Any) -> bool:
        """Whether a frame is the submission's own."""
        return frame.f_code.co_filename == self._path

    def frames(self, frame: Any) -> list[Any]:
        """Return the frames of known files, the innermost first."""
        found: list[Any] = []
        while frame is not None and len(found) < _MOST_FRAMES:
            if self.knows(frame.f_code.co_filename):
                found.append(frame)
            frame = frame.f_back
        return found

    def around(self, frame: Any) -> list[tuple[int, range]]:
        """Return first line and lines of the head of each loop that a frame is in.

        The innermost comes first.
        """
        path = frame.f_code.co_filename
        if path not in self._of_file:
            with open(path, "rb") as file:
                self._of_file[path] = _File(file.read())
        of_file, function = self._of_file[path], frame.f_code.co_firstlineno
        inside = [
            (lines, head)
            for lines, head in of_file.loops
            if frame.f_lineno in lines and lines.start >= function
        ]
        inside.sort(key=lambda loop: -loop[0].start)
        return [(lines.start, head) for lines, head in inside]

    def assigned_before(self, frame: Any, first: int) -> set[str]:
        """Return the names that a function has as parameters or assigns before a line."""
        code = frame.f_code
        lines = range(code.co_firstlineno, first)
        stores = self._of_file[code.co_filename].stores
        return {*code.co_varnames[: code.co_argcount], *(n for n, at in stores if at in lines)}


class _File:
    """Lines of each loop and of its head, and name and line of each assignment."""

    def __init__(self, source: bytes) -> None:
        self.loops: list[tuple[range, range]] = []
        self.stores: list[tuple[str, int]] = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, (ast.For, ast.While)):
                head = range(node.lineno, max(node.body[0].lineno, node.lineno + 1))
                self.loops.append((range(node.lineno, (node.end_lineno or node.lineno) + 1), head))
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self.stores.append((node.id, node.lineno))
