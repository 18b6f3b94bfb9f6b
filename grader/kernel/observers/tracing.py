"""Writes down what a call's kernels read, multiply and store: a `Trace`.

What is known of tiles is followed for all programs at once. What is to be written down of a program
is kept until its launch is over, and is then handed on one program behind the other, so that what
comes first is always the same.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import numbers
from grader.kernel.machine.notes import NOTHING
from grader.kernel.machine.ttir import Operation
from grader.kernel.observers import trace
from grader.kernel.observers.combining import ELEMENTWISE, Combining
from grader.kernel.observers.knowledge import Note, handle
from grader.kernel.observers.lines import Where
from grader.kernel.observers.nans import Nans
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.pairs import Pairs
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.products import Products
from grader.kernel.observers.shapes import as_dot, moved
from grader.kernel.observers.sums import Sums
from grader.kernel.observers.touching import Touching
from grader.kernel.observers.trace import Counter
from grader.kernel.observers.uses import Uses

_MOST_LATER = 2**29  # elements of tiles that what is written down later may keep: 2 GB of fp32
_MOVES = ("tt.expand_dims", "tt.trans", "tt.reshape", "tt.broadcast")
OUT = trace.PRODUCTS.index("out")
_PRODUCT_OF = {"v": 0, "dout": 1, "q": 2, "k": 3}


class Tracing:
    """An observer of the launches of one call; `finish` writes the tables.

    `fault` is an error of its own, empty where there was none: from then on it sees nothing.
    """

    def __init__(
        self,
        shape: trace.TraceShape,
        memory: np.ndarray,
        path: str,
        source: bytes,
        inputs: dict[str, Any],
    ) -> None:
        """Trace kernels of the submission at `path`, which are given `inputs`."""
        self.fault = ""
        arrays = self._arrays = shape.arrays(memory)
        self._counters = arrays["counters"]
        known = {name: t for name, t in inputs.items() if t.dim() in (2, 4) or name == "w"}
        operands = [Operand.of(name, t) for name, t in known.items()]
        self._of_rows = operands[0].name == "x"
        self._where = Where(path, source)
        self._pairs, self._sums = Pairs(shape, arrays), Sums(arrays)
        placement = Placement(shape, arrays)
        # NaN are looked for in all that is computed, dots too.
        rooms = (self._where, self._pairs, self._sums, placement, Nans(self._counters))
        self._products = Products(arrays, *rooms)
        self._products.wide = operands[0].tensor.element_size() == 4
        given = operands, self._where, placement
        self._touching = Touching(shape, arrays, *given)
        self._combining = Combining(arrays, *given, self._do_later)
        self._kernels: list[str] = []
        self._kernel = 0
        self._grid = (0, 0, 0)
        self._uses = Uses()
        self._last: dict[Operation, Any] = {}  # what each dot of a program came to
        self._later: list[tuple[list[tuple[int, int]], Operation, Callable[[int], None]]] = []
        self._left = _MOST_LATER
        self._end = math.inf  # of the process's time that it may write in

    def __call__(self, event: events.Event) -> Any:
        """Look at one event; of what is computed, return what is known of the result."""
        if self.fault:
            return None
        try:
            return self._look(event)
        except MemoryError:  # the kernel's
            raise
        except Exception as error:  # none of the kernel's
            self.fault = f"{type(error).__name__} at line {self._where.running()}: {error}"
            return None

    def _look(self, event: events.Event) -> Any:
        if isinstance(event, events.Launched):
            self._launched(event)
        elif isinstance(event, events.Computed):
            name = event.op.name
            if name in ELEMENTWISE:
                return self._combining.computed(event)
            if name in _MOVES:
                note = event.notes[0]
                return note if note is NOTHING else moved(note, name, event.op, event.types)
            if name == "tt.dot":
                return self._multiplied(event)
            if name == "tt.reduce":
                return self._reduced(event)
            if name in ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas"):
                if name == "tt.store":
                    self._do_later(event, lambda row: self._note_store())
                return self._touching.touched(event, functools.partial(self._do_later, event))
        return None

    # -- launches -----------------------------------------------------------------------------

    def _launched(self, event: events.Launched) -> None:
        self._programs_end()
        self._where.launched()
        if event.name not in self._kernels:
            self._kernels.append(event.name)
        self._kernel = min(self._kernels.index(event.name), trace.KERNELS - 1)
        self._grid = event.grid
        self._counters[Counter.LAUNCHES] += 1
        self._combining.kernel = self._kernel
        self._touching.launched(event.memories, self._kernel)
        self._pairs.launched()

    def _do_later(
        self,
        event: events.Computed | events.RoundEnded,
        act: Callable[[int], None],
        rows: Iterable[int] | None = None,
    ) -> None:
        """Have `act` called with the place in the event of each program, or of some.

        Raises:
            RuntimeError: what is kept for later has become too much.
        """
        if isinstance(event, events.Computed):
            self._left -= sum(tile.numel() for tile in event.operands + event.results)
        if self._left < 0:
            raise RuntimeError("a launch computes more than a trace can keep")
        programs = numbers(event.programs)
        chosen = range(len(programs)) if rows is None else rows
        self._later.append(([(programs[row], row) for row in chosen], event.op, act))

    def _programs_end(self) -> None:
        x, y, z = self._grid
        self._grid = (0, 0, 0)
        by_program: list[list[tuple[Operation, Callable[[int], None], int]]] = []
        by_program += ([] for _ in range(x * y * z))
        for rows, op, act in self._later:
            for program, row in rows:
                by_program[program].append((op, act, row))
        self._later.clear()
        self._left = _MOST_LATER
        for program, acts in enumerate(by_program):
            self._program_begins(program % x, program // x % y, program // (x * y))
            for op, act, row in acts:
                if time.process_time() > self._end:
                    raise TimeoutError("the call takes too long to be traced")
                self._where.at(op)
                act(row)

    def _program_begins(self, x: int, y: int, z: int) -> None:
        self._touching.placed(x, y, z)
        self._program_ends()
        self._counters[Counter.PROGRAMS] += 1

    def _program_ends(self) -> None:
        for result in self._last.values():
            result.unused = False  # what nothing takes up behind the loop is not compiled either
        self._last.clear()
        self._sums.program_ends()

    # -- what is computed ---------------------------------------------------------------------

    def _reduced(self, event: events.Computed) -> Any:
        note, axis, line = event.notes[0], event.op.number("axis"), self._where.at(event.op)
        if note is NOTHING or not any(note.axes):
            return NOTHING
        combined = event.op.regions[0][0].operations[0].name
        if self._of_rows and combined == "arith.addf" and event.types[0].bits == 16:
            self._counters[Counter.HALF_SUM_LINE] = line
        if note.is_of_pairs and note.axes[axis].of_queries:
            self._counters[Counter.OVER_QUERIES_LINE] = line
        dot = as_dot(*note.factors, axis) if note.factors and combined == "arith.addf" else ()
        if dot:
            into = NOTHING, torch.zeros((1, 1, 1)), event.types[-1]
            notes, operands, kinds = zip(*dot, into, strict=True)
            kinds = (*kinds, event.types[-1])
            changed = {"notes": notes, "operands": operands, "types": kinds}
            return self._multiplied(dataclasses.replace(event, **changed))
        axes = (*note.axes[:axis], *note.axes[axis + 1 :])
        return Note(axes) if any(axes) else NOTHING

    def _multiplied(self, event: events.Computed) -> Any:
        replaced = self._uses.is_replaced(event)
        tiles = list(zip(event.notes[:3], event.types, event.operands, strict=False))

        def multiply(row: int) -> None:
            a, b, into = (handle(note, row, type, value) for note, type, value in tiles)
            result = types.SimpleNamespace()
            product = self._products.multiplied(result, a, b, into, self._kernel)
            result.unused = replaced
            self._last[event.op] = result
            self._note_product(event, product, a, b)

        self._do_later(event, multiply)
        left, right, into = event.notes[:3]
        if len(event.types[-1].shape) != 2:
            return NOTHING
        rows, inner = left.axes if left is not NOTHING else (None, None)
        other, columns = right.axes if right is not NOTHING else (None, None)
        self._combining.look_for_nan(event, (rows, columns))
        made = into.product if into is not NOTHING else None
        if inner and other:
            values = other if rows else inner
            if (rows or columns) and values.operand in _PRODUCT_OF:
                line = self._where.at(event.op)
                made = (_PRODUCT_OF[values.operand], line, values.column)
        if not rows and not columns and not made:
            return NOTHING
        return Note((rows, columns), product=made)

    def _note_product(self, event: events.Computed, product: int, a: Any, b: Any) -> None:
        """Note a product of two tiles of one program, for an observer of more."""

    def _note_store(self) -> None:
        """Note that a program stores, for an observer of more."""

    # -- the end ------------------------------------------------------------------------------

    def finish(self, results: dict[str, Any]) -> None:
        """Write the tables; `results` are what the entry point returned, by name."""
        self._end = math.inf
        with np.errstate(all="ignore"), torch.no_grad():
            self._programs_end()
            self._program_ends()
            self._products.write()
            self._touching.write(results)
