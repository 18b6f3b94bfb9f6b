"""The trace of a call in the making: its arrays, and the launch and line that run."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from grader.base.functions import is_reached
from grader.kernel.lines import running_line
from grader.kernel.machine import events
from grader.kernel.machine.ttir import Operation
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.trace import KERNELS, OPTIONS, Counter, TraceShape

_OF_OPTION = 2**31 - 1  # the largest that a table holds; below 0 it is none
as_numpy = torch.Tensor.numpy  # the original, not a submission's


class Where:
    """The running line of the submission, and the line of the loop around it, 0 if none.

    In a kernel outside the submission, the line is that of the launch.
    """

    def __init__(self, path: str, source: bytes) -> None:
        self.line = self.loop = 0
        self._path = path
        self._loops, self._computing, self._calls, self._begun = _read(source)
        self._source = source
        self._launch = 0
        self._known: dict[Operation, tuple[int, int]] = {}  # of this launch

    def launched(self) -> None:
        """Find the line that launches a kernel now."""
        self._launch = running_line(self._path)
        self._known.clear()

    def at(self, op: Operation) -> None:
        if op not in self._known:
            self._known[op] = self.line_of(op), self._loop(op)
        self.line, self.loop = self._known[op]

    def line_of(self, op: Operation) -> int:
        """Return the line of an operation."""
        return self._first(op, op.place.line_in(self._path)) or self._launch

    def in_kernel(self, op: Operation) -> int:
        """Return the innermost line of an operation that is in a loop, or that in its kernel."""
        places = (op.place.file, op.place.line), *op.place.callers
        lines = [self._first(op, line) for file, line in places if file == self._path]
        looped = (line for line in lines if any(line in loop for loop in self._loops))
        return next(looped, lines[-1] if lines else self._launch)

    def loops_of(self, kernels: Collection[str]) -> set[int]:
        """Return the lines of the loops of some kernels, and of the functions that these call."""
        lines = {loop.start for loop in self._loops}
        return {line for line in lines if is_reached(_tree(self._source), set(kernels), line)}

    def _first(self, op: Operation, line: int) -> int:
        """Return the line where an expression begins: Triton gives that of its last operand."""
        name = op.name.rpartition(".")[2]
        name = "where" if name == "select" else name
        called = [lines for of, lines in self._calls if of == name and line in lines]
        if called:
            return min(called, key=len).start
        if line in self._begun:
            return line
        return next((lines.start for lines in self._computing if line in lines), line)

    def _loop(self, op: Operation) -> int:
        inner = (op.place.file, op.place.line), *op.place.callers
        for file, line in (*inner, (self._path, self._launch)):
            if file == self._path:
                around = [loop.start for loop in self._loops if line in loop]
                if around:
                    return max(around)
        return 0


class Record:
    """What the observers of a trace share; `inputs` are those of the call that they can recognise.

    `kernel` is the number of the running kernel; `programs` counts the programs of this launch and
    `before` those of earlier launches.
    """

    def __init__(
        self, shape: TraceShape, memory: np.ndarray, where: Where, inputs: dict[str, Any]
    ) -> None:
        self.shape = shape
        self.arrays = shape.arrays(memory)
        self.counters = self.arrays["counters"]
        self.where = where
        known = {name: t for name, t in inputs.items() if t.dim() in (2, 4) or name == "w"}
        self.inputs = [Operand.of(name, t) for name, t in known.items()]
        self.of_rows = self.inputs[0].name == "x"
        self.kernel, self.grid, self.programs, self.before = 0, (0, 0, 0), 0, 0
        self._kernels: list[str] = []
        self._ran: set[tuple[int, int]] = set()  # kernels, with lines of loops that had a round

    def launched(self, event: events.Launched) -> None:
        """Begin a launch."""
        self.where.launched()
        is_new = event.name not in self._kernels and len(self._kernels) < KERNELS
        if event.name not in self._kernels:
            self._kernels.append(event.name)
        self.kernel = min(self._kernels.index(event.name), KERNELS - 1)
        for name in OPTIONS:
            value = max(-1, min(event.numbers.get(name, -1), _OF_OPTION)) + 1
            is_one = is_new or self.of_kernel[name] == value
            self.of_kernel[name] = value if is_one else 0
        self.before += self.programs
        self.grid, self.programs = event.grid, math.prod(event.grid)
        self.counters[Counter.LAUNCHES] += 1
        self.counters[Counter.PROGRAMS] += self.programs

    def round_ended(self, event: events.RoundEnded) -> None:
        """Note that a loop has had a round."""
        self._ran.add((self.kernel, self.where.in_kernel(event.op)))

    def write(self) -> None:
        """Write the lines of loops without a round, which TTIR may leave out: see `KERNEL`."""
        idle = self.where.loops_of(self._kernels) - {line for _, line in self._ran}
        self.counters[Counter.IDLE_LOOP_LINE] = idle.pop() if len(idle) == 1 else 0
        for kernel, name in enumerate(self._kernels[: KERNELS - 1]):
            loops = self.where.loops_of([name])
            if len(loops) == 1 and not any((kernel, line) in self._ran for line in loops):
                self.arrays["kernels"][kernel]["idle_loop"] = loops.pop()

    @property
    def of_kernel(self) -> Any:
        """The running kernel's row of the table of kernels: numbers by name."""
        return self.arrays["kernels"][self.kernel]

    def count_products(self, number: int, *, of_elements: bool) -> None:
        """Count products outside dots: multiply-adds `of_elements`, or others."""
        elements = [Counter.MULTIPLY_ADDS, Counter.OF_ELEMENTS]
        self.counters[elements if of_elements else [Counter.BESIDE]] += number

    def note_line(self, counter: Counter) -> None:
        self.counters[counter] = self.where.line

    @property
    def has_unwritten(self) -> bool:
        """Whether the call has read an element that nobody wrote: later ones may come from it."""
        seen = Counter.UNWRITTEN_ELEMENT_LINE, Counter.UNWRITTEN_OPERAND_LINE
        return bool(self.counters[[*seen]].any())


def _lines(node: Any) -> range:
    return range(node.lineno, (node.end_lineno or node.lineno) + 1)


@functools.lru_cache(2)
def _tree(source: bytes) -> ast.Module:
    return ast.parse(source)


@functools.lru_cache(maxsize=1)
def _read(source: bytes) -> tuple[Any, ...]:
    """Return lines of loops, of expressions over several lines, of such calls, and first lines."""
    nodes = list(ast.walk(_tree(source)))
    loops = [_lines(n) for n in nodes if isinstance(n, (ast.For, ast.While))]
    computing = [_lines(n) for n in nodes if isinstance(n, (ast.Call, ast.BinOp, ast.Compare))]
    calls = [
        (getattr(n.func, "attr", getattr(n.func, "id", "")), _lines(n))
        for n in nodes
        if isinstance(n, ast.Call) and n.end_lineno != n.lineno
    ]
    begun = {lines.start for lines in computing}
    return loops, sorted((n for n in computing if len(n) > 1), key=len), calls, begun
