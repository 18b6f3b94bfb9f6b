"""What is computed element by element, and what is known of it then: rows, masks, the first NaN."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import elementwise, events
from grader.kernel.machine.notes import NOTHING
from grader.kernel.observers import masks, trace
from grader.kernel.observers.knowledge import Note, Rows, handle, per_program
from grader.kernel.observers.lines import Where
from grader.kernel.observers.nans import Nans
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.trace import Counter

ELEMENTWISE = elementwise.NAMES | {"arith.bitcast", "tt.bitcast"}
_KINDS = {
    **{"arith.subf": "subtract", "arith.addf": "add", "arith.mulf": "multiply"},
    **{"arith.divf": "divide", "math.exp2": "exp2", "math.exp": "exp", "tt.dot": "dot"},
}


class Combining:
    """Follows what is known of tiles through operations on single elements.

    `later` is called with an event, and with what is to be done for each program.
    """

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        inputs: list[Operand],
        where: Where,
        placement: Placement,
        later: Callable[..., None],
    ) -> None:
        self.kernel = 0
        self._arrays = arrays
        self._counters = arrays["counters"]
        self._of_rows = inputs[0].name == "x"
        self._wide = inputs[0].tensor.element_size() == 4
        self._where = where
        self._placement = placement
        self._nans = Nans(self._counters)
        self._later = later

    def computed(self, event: events.Computed) -> Any:
        type = event.types[-1]
        notes = [
            note if own.shape == type.shape else NOTHING
            for note, own in zip(event.notes, event.types, strict=False)
        ]
        known = [note for note in notes if note is not NOTHING]
        self.look_for_nan(event, merged(known))
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
            self._arrays["mask_lines"][self.kernel] = mask_line
            rows = "queries" if over_queries else "keys"
            self._arrays["mask_rows"][self.kernel] = trace.MASK_ROWS.index(rows)
        axes, rounded, product = note.axes, note.rounded_at, note.product
        note = Note(axes, hidden, mask, mask_line, weights, False, rounded, product)
        if name in masks.EXPONENTIALS:
            shown = masks.shows(result, note, keys)
            if shown is not None and bool(shown.any()):
                self._counters[Counter.SHOWN_LINE] = line
        if by_factor and bool(masks.raises(result, *tiles, weights=weights).any()):
            self._arrays["raised_lines"][self.kernel] = line
        return note

    def _made_at(self, event: events.Computed) -> int:
        """Return the line where the condition of a mask was made, 0 where that is not known."""
        maker = event.makers[0]
        if maker is None or maker.name not in ELEMENTWISE or event.types[0].element != "i1":
            return 0
        return self._where.at(maker)

    def _rounded(self, event: events.Computed, known: list[Note]) -> int:
        """Return the line which rounded what a result is made of from 32 bits to 16."""
        earlier = max((note.rounded_at for note in known), default=0)
        if earlier or not self._wide:
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

        self._later(event, meet)

    def look_for_nan(self, event: events.Computed, axes: tuple[Rows | None, ...]) -> None:
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

        self._later(event, look, per_program(born, len(event.programs)))


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
