"""Which line of the submission an operation is of, as Python says while it runs it."""

from __future__ import annotations

import ast
import functools
from typing import Any

from grader.kernel.lines import running_line
from grader.kernel.machine.ttir import Operation


class Where:
    """Which line of the submission is written about, and the loop around it.

    In a kernel that is not of the submission it is the line that launched it.
    """

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        self._loops, self._computing, self._calls, self._begun = _read(source)
        self._op: Operation | None = None
        self._launch = 0

    def launched(self) -> None:
        """Know the line that launches a kernel now."""
        self._launch = running_line(self._path)

    def at(self, op: Operation) -> int:
        """Write about an operation from now on; return its line."""
        self._op = op
        return self.running()

    def running(self) -> int:
        """Return the line, 0 if there is none."""
        line = self._op.place.line_in(self._path) if self._op else 0
        return self._first(line) or self._launch

    def _first(self, line: int) -> int:
        """Return the line where an expression begins that Triton places at its last operand."""
        name = self._op.name.rpartition(".")[2] if self._op else ""
        name = "where" if name == "select" else name
        called = [lines for of, lines in self._calls if of == name and line in lines]
        if called:
            return min(called, key=len).start
        if line in self._begun:
            return line
        return next((lines.start for lines in self._computing if line in lines), line)

    def loop(self) -> int:
        """Return the line of the innermost loop around it, 0 if there is none."""
        place = self._op.place if self._op else None
        inner = ((place.file, place.line), *place.callers) if place else ()
        for file, line in (*inner, (self._path, self._launch)):
            if file == self._path:
                around = [loop.start for loop in self._loops if line in loop]
                if around:
                    return max(around)
        return 0


def _lines(node: Any) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@functools.lru_cache(maxsize=1)
def _read(source: bytes) -> tuple[Any, ...]:
    """Return lines of loops, of what computes over several, of calls that do, and first lines."""
    nodes = list(ast.walk(ast.parse(source)))
    loops = [_lines(n) for n in nodes if isinstance(n, (ast.For, ast.While))]
    computing = [_lines(n) for n in nodes if isinstance(n, (ast.Call, ast.BinOp, ast.Compare))]
    calls = [
        (getattr(n.func, "attr", getattr(n.func, "id", "")), _lines(n))
        for n in nodes
        if isinstance(n, ast.Call) and n.end_lineno != n.lineno
    ]
    begun = {lines.start for lines in computing}
    return loops, sorted((n for n in computing if len(n) > 1), key=len), calls, begun
