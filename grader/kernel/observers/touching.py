"""What a call's kernels load and store: which rows, how many elements, and where results go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.notes import NOTHING
from grader.kernel.machine.tensors import Memory
from grader.kernel.observers import trace
from grader.kernel.observers.knowledge import handle
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.overwrites import Overwrites
from grader.kernel.observers.pairs import add_saturating
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.places import Places, Touched, rows_of, rows_of_made
from grader.kernel.observers.reads import Reads
from grader.kernel.observers.stores import Stores
from grader.kernel.observers.trace import Counter
from grader.kernel.observers.walking import Walking

Later = Callable[..., None]


class Touching:
    """Knows the rows of what is loaded, and tells the rooms of reads and of stores."""

    def __init__(
        self,
        shape: trace.TraceShape,
        arrays: dict[str, np.ndarray],
        inputs: list[Operand],
        where: Any,
        placement: Placement,
    ) -> None:
        self._shape = shape
        self._arrays = arrays
        self._counters = arrays["counters"]
        self._inputs = inputs
        self._where = where
        self._placement = placement
        self._places = Places(inputs)
        self._reads = Reads(self._counters, inputs)
        self._stores, self._overwrites, self._walking = Stores(), Overwrites(), Walking()
        self._made: set[int] = set()  # where those tensors start that kernels have stored to
        self._kernel = 0

    def launched(self, memories: tuple[Memory, ...], kernel: int) -> None:
        """Begin with a launch."""
        self._kernel = kernel
        self._places.launched(memories)
        self._stores.launched(kernel)
        self._overwrites.launched()
        self._walking.program_begins()

    def placed(self, x: int, y: int, z: int) -> None:
        """Begin with a program."""
        self._stores.placed(x, y, z)
        self._overwrites.placed(x, y, z)
        self._walking.program_begins()

    def touched(self, event: events.Computed, later: Later) -> Any:
        """Note an access of all programs; return what is known of what is loaded."""
        touched = self._places.touched(event)
        if event.op.name == "tt.store":
            later(self._stored(event, touched))
        elif event.op.name != "tt.load":
            later(self._updated(touched))
        else:
            starts, where = np.unique(touched.starts, return_inverse=True)
            if len(starts) == 1:
                return self._loaded(event, touched, slice(None), later)
            parts = [(where == n).nonzero()[0] for n in range(len(starts))]
            notes = [self._loaded(event, touched, part, later) for part in parts]
            known = next((note for note in notes if note is not NOTHING), NOTHING)
            place = torch.from_numpy(np.argsort(np.concatenate(parts)))
            return known.together(notes, [len(part) for part in parts], place)
        return NOTHING

    # -- loads --------------------------------------------------------------------------------

    def _loaded(self, event: events.Computed, touched: Touched, part: Any, later: Later) -> Any:
        addresses, active = touched.addresses[part], touched.active[part]
        start = int(touched.starts[part][0])
        operand = self._places.operand(start)
        axis, note = None, NOTHING
        rows = columns = addresses
        if operand is not None:
            rows, columns = operand.locate(addresses)
            axis, note = rows_of(operand, rows, columns, addresses, active)
        elif self._inputs[0].name == "q" and start in self._places.tensors:
            tensor, size = self._places.tensors[start], self._inputs[0].size
            is_statistic = self._placement._has_a_number_for_each_query(tensor)
            note = rows_of_made(tensor, addresses, active, size, is_statistic=is_statistic)
        type = event.types[-1]
        floating = type.is_float or type.bits == 16

        def load(row: int) -> None:
            own, lanes = addresses[row], active[row]
            if not lanes.any():
                return
            self._overwrites.loaded(start)
            self._read(own[lanes], touched.width, start, operand, floating=floating)
            if operand is not None:
                found = rows[row], columns[row]
                self._note_load(operand, own, lanes, found, axis)

        chosen = range(len(touched.starts)) if isinstance(part, slice) else part.tolist()
        places = {row: number for number, row in enumerate(chosen)}
        later(lambda row: load(places[row]), chosen)
        return note

    def _note_load(
        self,
        operand: Operand,
        addresses: np.ndarray,
        active: np.ndarray,
        found: tuple[np.ndarray, np.ndarray],
        axis: int | None,
    ) -> None:
        rows, columns = found
        padded = operand.length < operand.size[2]  # its last rows are nobody's, and are read too
        lost = 0 if padded else int((active & (rows < 0)).sum())
        if not operand.holds(addresses[active]) or 4 * lost >= active.sum():
            self._counters[Counter.ASTRAY_LINE] = self._where.running()
            self._counters[Counter.ASTRAY] = trace.OPERANDS.index(operand.name)
        if operand.name == "x":
            there = active & (rows >= 0)
            add_saturating(self._arrays["visits"][self._kernel], (rows[there], columns[there]), 1)
        misaligned = axis is None and rows.ndim > 0 and rows.size > 1
        where = (self._where.running(), self._kernel)
        itemsize = operand.tensor.element_size()
        self._walking.note(*where, addresses, itemsize, operand, axis, misaligned=misaligned)

    def _read(
        self,
        addresses: np.ndarray,
        width: int,
        start: int,
        operand: Operand | None,
        *,
        floating: bool,
    ) -> None:
        inside = self._reads.of_inputs(addresses)
        if inside.any():
            self._reads.note_inputs(addresses[inside], width)
        if not inside.all():
            self._reads.note_others(
                addresses[~inside],
                self._places.tensors.get(start),
                floating=floating,
                made=operand is None and start in self._made,
            )

    # -- stores -------------------------------------------------------------------------------

    def _updated(self, touched: Touched) -> Callable[[int], None]:
        def update(row: int) -> None:
            self._made.add(int(touched.starts[row]))
            addresses = touched.addresses[row][touched.active[row]]
            inside = self._reads.of_inputs(addresses)
            self._reads.note_inputs(addresses[inside], touched.width)

        return update

    def _stored(self, event: events.Computed, touched: Touched) -> Callable[[int], None]:
        value, type, note = event.operands[1], event.types[1], event.notes[1]
        plain = value.view(torch.int16) if value.dtype is torch.bfloat16 else value
        output_dims = 4 if self._inputs[0].name == "q" else 1

        def store(row: int) -> None:
            addresses, active = touched.addresses[row], touched.active[row]
            start, line = int(touched.starts[row]), self._where.running()
            self._made.add(start)
            tensor = self._places.tensors.get(start)
            if not active.any() or tensor is None:
                return
            stored = handle(note, row, type, plain)
            kept = np.broadcast_to(stored.data, addresses.shape)[active]
            changed = self._overwrites.stored(start, tensor, addresses[active], kept, line)
            if tensor.dim() == output_dims:
                self._stores.note(start, tensor, addresses[active], changed, line)
            self._placement.store(start, tensor, stored, (addresses, active), line)

        return store

    # -- the end ------------------------------------------------------------------------------

    def write(self, results: dict[str, Any]) -> None:
        """Write the tables."""
        out = results.get("out", results.get("y"))
        # Not by its own method, which may be the submission's; nor need it be a tensor.
        start = torch.Tensor.data_ptr(out) if isinstance(out, torch.Tensor) else 0
        # Partial results of a split row are no other form of an input while every dot has its own.
        made = bool(self._counters[Counter.UNKNOWN_DOTS])
        self._counters[Counter.DISTINCT_READ] = self._reads.distinct(made=made)
        self._walking.write(self._arrays["accesses"])
        self._placement.write(results)
        self._overwrites.write(results, self._arrays["overwritten"])
        if start:
            self._stores.write(start, self._shape.queries, self._arrays)
