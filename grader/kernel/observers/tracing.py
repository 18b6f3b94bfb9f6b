"""Writes down what a call's kernels read, multiply and store: a `Trace`.

All programs that run at once are looked at together, operation by operation.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.notes import NOTHING
from grader.kernel.observers import trace
from grader.kernel.observers.combining import ELEMENTWISE, Combining, Nans
from grader.kernel.observers.knowledge import Note, as_dot, moved
from grader.kernel.observers.pairs import Pairs
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.products import PRODUCT_OF, Products
from grader.kernel.observers.record import Record, Where
from grader.kernel.observers.stepping import Steps
from grader.kernel.observers.touching import Touching
from grader.kernel.observers.trace import Counter

_MOVES = ("tt.expand_dims", "tt.trans", "tt.reshape", "tt.broadcast")
_ACCESSES = ("tt.load", "tt.store", "tt.atomic_rmw", "tt.atomic_cas")


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
        steps: Steps | None = None,
    ) -> None:
        """Trace kernels of the submission at `path`, which are given `inputs`.

        With `steps` the rounds of one program are written down as well.
        """
        self.fault = ""
        self._where = Where(path, source)
        self._record = record = Record(shape, memory, self._where, inputs)
        self._steps = steps
        self._pairs, self._nans = Pairs(record), Nans(record)
        placement = Placement(record)
        self._products = Products(record, self._pairs, placement, steps)
        self._touching = Touching(record, placement, self._pairs, steps)
        self._combining = Combining(record, placement, self._nans)

    def __call__(self, event: events.Event) -> Any:
        """Look at one event; of what is computed, return what is known of the result."""
        if self.fault:
            return None
        try:
            with np.errstate(all="ignore"):
                return self._look(event)
        except MemoryError:  # the kernel's
            raise
        except Exception as error:  # none of the kernel's
            self.fault = f"{type(error).__name__} at line {self._where.line}: {error}"
            return None

    def _look(self, event: events.Event) -> Any:
        if isinstance(event, events.Launched):
            self._record.launched(event)
            for room in (self._touching, self._steps):
                if room is not None:
                    room.launched(event)
            self._pairs.launched()
            self._products.launched()
        elif isinstance(event, events.RoundEnded) and self._steps:
            self._steps.round_ended(event)
        elif isinstance(event, events.Computed):
            return self._computed(event)
        return None

    def _computed(self, event: events.Computed) -> Any:
        name = event.op.name
        self._where.at(event.op)
        if name in ELEMENTWISE:
            return self._combining.computed(event)
        if name in _MOVES:
            note = event.notes[0]
            return note if note is NOTHING else moved(note, name, event.op, event.types)
        if name == "tt.dot":
            return self._multiplied(event)
        if name == "tt.reduce":
            return self._reduced(event)
        if name in _ACCESSES:
            if name == "tt.store" and self._steps:
                self._steps.stored(event.programs, self._where.in_kernel(event.op))
            return self._touching.touched(event)
        return None

    def _reduced(self, event: events.Computed) -> Any:
        note, axis = event.notes[0], event.op.number("axis")
        if note is NOTHING or not any(note.axes):
            return NOTHING
        combined = event.op.regions[0][0].operations[0].name
        if note.is_of_pairs and note.axes[axis].of_queries:
            self._record.note_line(Counter.OVER_QUERIES_LINE)
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
        self._products.multiplied(event)
        if len(event.types[-1].shape) != 2:
            return NOTHING
        left, right, into = event.notes[:3]
        rows, inner = left.axes if left is not NOTHING else (None, None)
        other, columns = right.axes if right is not NOTHING else (None, None)
        self._nans.look(event, (rows, columns))
        made = into.product if into is not NOTHING else None
        if inner and other:
            values = other if rows else inner
            if (rows or columns) and values.operand in PRODUCT_OF:
                made = PRODUCT_OF[values.operand], self._where.line, values.column
        if not rows and not columns and not made:
            return NOTHING
        return Note((rows, columns), product=made)

    def finish(self, results: dict[str, Any]) -> None:
        """Write the tables; `results` are what the entry point returned, by name."""
        with np.errstate(all="ignore"), torch.no_grad():
            self._products.write()
            self._touching.write(results)
            if self._steps:
                self._steps.ends()
