"""Writes down what a call's kernels read, multiply and store: the `Trace` of today's interpreter.

What is known of tiles is followed for all programs at once. What is to be written down of a program
is kept until its launch is over, and then handed to the rooms of `grader.kernel.observers` that
know nothing of the interpreter, one program behind the other: what comes first is the same there.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import elementwise, events
from grader.kernel.machine.arrays import numbers
from grader.kernel.machine.notes import NOTHING
from grader.kernel.machine.observers import masks
from grader.kernel.machine.observers.knowledge import (
    Note,
    Rows,
    as_dot,
    handle,
    moved,
    per_program,
)
from grader.kernel.machine.observers.touching import Touching
from grader.kernel.machine.ttir import Operation
from grader.kernel.observers import trace
from grader.kernel.observers.lines import running_line
from grader.kernel.observers.nans import Nans
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.pairs import Pairs
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.products import Products
from grader.kernel.observers.sums import Sums
from grader.kernel.observers.trace import Counter

_MOVES = ("tt.expand_dims", "tt.trans", "tt.reshape", "tt.broadcast")
_ELEMENTWISE = elementwise.NAMES | {"arith.bitcast", "tt.bitcast"}
OUT = trace.PRODUCTS.index("out")
_PRODUCT_OF = {"v": 0, "dout": 1, "q": 2, "k": 3}
_KINDS = {
    **{"arith.subf": "subtract", "arith.addf": "add", "arith.mulf": "multiply"},
    **{"arith.divf": "divide", "math.exp2": "exp2", "math.exp": "exp", "tt.dot": "dot"},
}


class Where:
    """Which line of the submission is written about, and the loop around it.

    In a kernel that is not of the submission it is the line that launched it.
    """

    def __init__(self, path: str, source: bytes) -> None:
        self._path = path
        nodes = (n for n in ast.walk(ast.parse(source)) if isinstance(n, (ast.For, ast.While)))
        self._loops = [range(n.lineno, (n.end_lineno or n.lineno) + 1) for n in nodes]
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
        return (self._op.place.line_in(self._path) if self._op else 0) or self._launch

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


class Tracing:
    """An observer of the launches of one call; `finish` writes the tables."""

    def __init__(
        self,
        shape: trace.TraceShape,
        memory: np.ndarray,
        path: str,
        source: bytes,
        inputs: dict[str, Any],
    ) -> None:
        """Trace kernels of the submission at `path`, which are given `inputs`."""
        arrays = self._arrays = shape.arrays(memory)
        self._counters = arrays["counters"]
        known = {name: t for name, t in inputs.items() if t.dim() in (2, 4) or name == "w"}
        operands = [Operand.of(name, t) for name, t in known.items()]
        self._of_rows = operands[0].name == "x"
        self._where = Where(path, source)
        self._nans, self._pairs, self._sums = (
            Nans(self._counters),
            Pairs(shape, arrays),
            Sums(arrays),
        )
        self._placement = Placement(shape, arrays)
        rooms = (self._where, self._pairs, self._sums, self._placement, self._nans)
        self._products = Products(arrays, *rooms)
        self._products.wide = operands[0].tensor.element_size() == 4
        self._touching = Touching(shape, arrays, operands, self._where, self._placement)
        self._kernels: list[str] = []
        self._kernel = 0
        self._grid = (0, 0, 0)
        self._later: list[tuple[list[tuple[int, int]], Operation, Callable[[int], None]]] = []

    def __call__(self, event: events.Event) -> Any:
        """Look at one event; of what is computed, return what is known of the result."""
        if isinstance(event, events.Launched):
            self._launched(event)
        elif isinstance(event, events.Computed):
            name = event.op.name
            if name in _ELEMENTWISE:
                return self._elementwise(event)
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
        self._touching.launched(event.memories, self._kernel)
        self._pairs.launched()

    def _do_later(
        self,
        event: events.Computed | events.RoundEnded,
        act: Callable[[int], None],
        rows: Iterable[int] | None = None,
    ) -> None:
        """Have `act` called with the place in the event of each program, or of some."""
        programs = numbers(event.programs)
        chosen = range(len(programs)) if rows is None else rows
        self._later.append(([(programs[row], row) for row in chosen], event.op, act))

    def _programs_end(self) -> None:
        x, y, z = self._grid
        by_program: list[list[tuple[Operation, Callable[[int], None], int]]] = []
        by_program += ([] for _ in range(x * y * z))
        for rows, op, act in self._later:
            for program, row in rows:
                by_program[program].append((op, act, row))
        self._later.clear()
        for program, acts in enumerate(by_program):
            self._program_begins(program % x, program // x % y, program // (x * y))
            for op, act, row in acts:
                self._where.at(op)
                act(row)
        self._grid = (0, 0, 0)

    def _program_begins(self, x: int, y: int, z: int) -> None:
        self._touching.placed(x, y, z)
        self._sums.program_ends()
        self._counters[Counter.PROGRAMS] += 1

    # -- what is computed ---------------------------------------------------------------------

    def _elementwise(self, event: events.Computed) -> Any:
        type = event.types[-1]
        notes = [
            note if own.shape == type.shape else NOTHING
            for note, own in zip(event.notes, event.types, strict=False)
        ]
        known = [note for note in notes if note is not NOTHING]
        self._look_for_nan(event, merged(known))
        rounded = self._rounded(event, known)
        if not known:
            return Note((None,) * len(type.shape), rounded_at=rounded) if rounded else NOTHING
        self._meet(event, notes)
        axes = merged(known)
        product = next((note.product for note in known if note.product), None)
        factors = ()
        if event.op.name == masks.PRODUCT and len(axes) == 3 and len(known) == 2:
            factors = tuple(zip(known, event.operands, event.types, strict=False))
        note = Note(axes, rounded_at=rounded, product=product, factors=factors)
        if note.is_of_pairs:
            return self._of_pairs(event, notes, note)
        if self._of_rows and any(axes) and event.op.name == "arith.addf" and type.bits == 16:
            self._counters[Counter.HALF_SUM_LINE] = self._where.at(event.op)
        return note

    def _of_pairs(self, event: events.Computed, notes: list[Any], note: Note) -> Note:
        (result,), name, line = event.results, event.op.name, self._where.at(event.op)
        known = [other for other in notes if other is not NOTHING]
        weights = name in masks.EXPONENTIALS or any(other.weights for other in known)
        over_queries = note.axes[0].of_queries
        keys = 2 if over_queries else 1
        tiles = event.operands, notes
        hidden, mask = masks.follow(name, result, *tiles, keys, weights=weights)
        mask_line = max(other.mask_line for other in known)
        by_factor = name == masks.PRODUCT and mask is not None
        if name == masks.CHOICE or (by_factor and not mask_line):
            mask_line = self._made_at(event) or line
            self._arrays["mask_lines"][self._kernel] = mask_line
            rows = "queries" if over_queries else "keys"
            self._arrays["mask_rows"][self._kernel] = trace.MASK_ROWS.index(rows)
        axes, rounded, product = note.axes, note.rounded_at, note.product
        note = Note(axes, hidden, mask, mask_line, weights, False, rounded, product)
        if name in masks.EXPONENTIALS:
            shown = masks.shows(result, note, keys)
            if shown is not None and bool(shown.any()):
                self._counters[Counter.SHOWN_LINE] = line
        if by_factor and bool(masks.raises(result, *tiles, weights=weights).any()):
            self._arrays["raised_lines"][self._kernel] = line
        return note

    def _made_at(self, event: events.Computed) -> int:
        """Return the line where the condition of a mask was made, 0 where that is not known."""
        maker = event.makers[0]
        if maker is None or maker.name not in _ELEMENTWISE or event.types[0].element != "i1":
            return 0
        return self._where.at(maker)

    def _rounded(self, event: events.Computed, known: list[Note]) -> int:
        """Return the line which rounded what a result is made of from 32 bits to 16."""
        earlier = max((note.rounded_at for note in known), default=0)
        if earlier or not self._products.wide:
            return earlier
        before, after = event.types[0], event.types[-1]
        narrow = after.is_float and after.bits == 16 and before.element == "f32"
        return self._where.at(event.op) if narrow else 0

    def _meet(self, event: events.Computed, notes: list[Any]) -> None:
        """Note where tiles are combined that hold other rows at the same places."""
        known = [note for note in notes if note is not NOTHING and any(note.axes)]
        pairs = itertools.combinations(known, 2)
        if not any(_may_differ(one, other) for one, other in pairs):
            return

        def meet(row: int) -> None:
            tiles = zip(notes, event.types, event.operands, strict=False)
            handles = [handle(note, row, type, value) for note, type, value in tiles]
            self._placement.meet(handles, self._where.running())

        self._do_later(event, meet)

    def _look_for_nan(self, event: events.Computed, axes: tuple[Rows | None, ...]) -> None:
        (result,), type = event.results, event.types[-1]
        if not type.is_float:
            return
        born = result.isnan()
        if not bool(born.any()):
            return

        def look(row: int) -> None:
            of_all = handle(Note(axes), row, type, result)
            pairs = zip(event.types, event.operands, strict=False)
            operands = [handle(NOTHING, row, own, value) for own, value in pairs]
            operation = types.SimpleNamespace(__name__=_KINDS.get(event.op.name, ""))
            self._nans.look(of_all, operands, operation, self._where.running)

        self._do_later(event, look, per_program(born, len(event.programs)))

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
        tiles = list(zip(event.notes[:3], event.types, event.operands, strict=False))

        def multiply(row: int) -> None:
            a, b, into = (handle(note, row, type, value) for note, type, value in tiles)
            result = types.SimpleNamespace(unused=False)
            product = self._products.multiplied(result, a, b, into, self._kernel)
            result.unused = False
            self._note_product(event, product, a, b)

        self._do_later(event, multiply)
        left, right, into = event.notes[:3]
        if len(event.types[-1].shape) != 2:
            return NOTHING
        rows, inner = left.axes if left is not NOTHING else (None, None)
        other, columns = right.axes if right is not NOTHING else (None, None)
        self._look_for_nan(event, (rows, columns))
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
        with np.errstate(all="ignore"), torch.no_grad():
            self._programs_end()
            self._sums.program_ends()
            self._products.write()
            self._touching.write(results)


def merged(known: list[Note]) -> tuple[Rows | None, ...]:
    """Return the rows of what is computed element by element.

    The first operand that knows an axis decides, an input before what the call made.
    """
    axes: list[Rows | None] = list(known[0].axes) if known else []
    for note in known[1:]:
        for axis, rows in enumerate(note.axes):
            held = axes[axis]
            made = held is not None and held.operand in ("out", trace.STATISTIC)
            if rows is not None and (held is None or made):
                axes[axis] = rows
    return tuple(axes)


def _may_differ(one: Note, other: Note) -> bool:
    """Whether two tiles may hold other rows at the same places."""
    for first, second in zip(one.axes, other.axes, strict=True):
        if first is None or second is None or first.ids is second.ids:
            continue
        if first.of_queries != second.of_queries or not torch.equal(first.ids, second.ids):
            return True
    return False
