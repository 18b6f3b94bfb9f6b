"""Finds what accesses touch: addresses, the input that they lie in, and the rows there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import ones, whole
from grader.kernel.machine.tensors import SHIFT, Memory, addresses, extent
from grader.kernel.machine.ttir import Type
from grader.kernel.observers.knowledge import Note, Rows
from grader.kernel.observers.operands import Operand, find_operand
from grader.kernel.observers.record import Record, as_numpy
from grader.kernel.observers.trace import MADE, STATISTIC

_MASKS = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}


@dataclasses.dataclass(frozen=True)
class Touched:
    """What an operation touches of the tensor that begins at `start`.

    `chosen` selects the event's programs whose first lane points into it, and `programs` are their
    numbers. `addresses`, of `width` bytes each, and `active` have an entry for each of their lanes.
    """

    start: int
    chosen: Any
    programs: np.ndarray
    addresses: np.ndarray
    active: np.ndarray
    width: int


class Places:
    """The tensors of a call, by the address where they start, and the operands that they hold."""

    def __init__(self, record: Record) -> None:
        self.tensors: dict[int, Any] = {}
        self._record = record
        self._memories: tuple[Memory, ...] = ()
        self._inputs: dict[int, Operand | None] = {}

    def launched(self, memories: tuple[Memory, ...]) -> None:
        """Remember the tensors of a launch; of several with one start the longest."""
        self._memories = memories
        for memory in memories:
            start = memory.flat.data_ptr()
            earlier = self.tensors.get(start)
            if earlier is None or extent(earlier.shape, earlier.stride()) < len(memory.flat):
                self.tensors[start] = memory.tensor

    def operand(self, start: int) -> Operand | None:
        """Return the operand that starts at an address: an input or its copy, out, lse or delta.

        None if it is none of these.
        """
        tensor = self.tensors.get(start)
        if tensor is None:
            return None
        if start not in self._inputs:
            self._inputs[start] = find_operand(tensor, self._record.inputs)
        return self._inputs[start] or self._made(tensor)

    def _made(self, tensor: Any) -> Operand | None:
        """Return a tensor that the call made, if it has the shape of q or a number for each row.

        Such numbers must be contiguous, with rows along the last axis longer than 1.
        """
        record, sizes = self._record, [n for n in tensor.shape if n != 1]
        if record.of_rows or not tensor.is_floating_point():
            return None
        if tuple(tensor.shape) == record.inputs[0].size:
            return Operand.of("out", tensor)
        whole = tensor.is_contiguous() and tensor.numel() == record.shape.queries
        if whole and sizes[-1:] == [record.shape.seqlen_q]:
            return Operand.of(STATISTIC, tensor.reshape(-1, 1))
        return None

    def touched(self, event: events.Computed) -> Iterator[Touched]:
        """Yield what a load, a store or an atomic operation touches, tensor by tensor."""
        pointers, type = event.operands[0], event.types[0]
        width = max(1, Type((), type.pointee).bits // 8)
        count = event.programs.shape[0]
        where = _MASKS.get(event.op.name, len(event.operands))
        mask = event.operands[where] if where < len(event.operands) else None
        active = ones((1,) * pointers.dim(), dtype=torch.bool) if mask is None else mask
        active = as_numpy(whole(active, type.shape, count))
        starts = [(memory, memory.flat.data_ptr()) for memory in self._memories]
        found = as_numpy(whole(addresses(starts, pointers, width), type.shape, count))
        programs = as_numpy(event.programs)
        first = pointers.flatten(1)[:, 0] if pointers.dim() > 1 else pointers
        numbers = as_numpy((first >> SHIFT).expand(count))
        begins = {memory.number: start for memory, start in starts}
        for number in np.unique(numbers).tolist():
            chosen: Any = slice(None)
            if (numbers != number).any():
                chosen = np.flatnonzero(numbers == number)
            parts = (array[chosen] for array in (programs, found, active))
            yield Touched(begins.get(number, 0), chosen, *parts, width)


@dataclasses.dataclass(frozen=True)
class Located:
    """Where the lanes of an access lie in an operand: `rows` and `columns`, row -1 for none.

    `axis` is that of the tile along which programs hold rows, None if there is none, and `note` the
    note of a tile that is loaded. `apart` programs do not fit that axis: lanes at one place of it
    lie in different rows.
    """

    operand: Operand
    touched: Touched
    rows: np.ndarray
    columns: np.ndarray
    axis: int | None = None
    apart: int = 0
    note: Note | None = None

    @classmethod
    def of(cls, operand: Operand, touched: Touched) -> Located:
        """Locate an access of an operand."""
        rows, columns = operand.locate(touched.addresses)
        active, dims, made = touched.active, rows.ndim - 1, operand.name in MADE
        places = operand, touched, rows, columns
        if not active.any():
            return cls(*places, note=None if made else _padding(touched.addresses[0], operand))
        axis, ids = 0, np.where(active, rows, -1)
        if not made or dims != 1:
            axis, ids, fitting = _row_axis(ids, active, columns)
            if fitting < len(rows):
                return cls(*places, axis, len(rows) - fitting)
        first = np.zeros(1, np.int64)
        if not made:
            first = np.where(active, columns, 2**31).reshape(len(rows), -1).min(1)
            first[first == 2**31] = 0
        note = _note(operand.name, ids, first, axis, dims, loaded=not made)
        return cls(*places, axis, note=note)


def _note(
    name: str, ids: np.ndarray, column: np.ndarray, axis: int | None, dims: int, *, loaded: bool
) -> Note:
    rows = Rows(name, torch.from_numpy(ids), torch.from_numpy(column))
    return Note(tuple(rows if i == axis else None for i in range(dims)), loaded=loaded)


def _padding(addresses: np.ndarray, operand: Operand) -> Note | None:
    """Return the note of a tile without active lanes; its rows lie along the larger stride."""
    if addresses.ndim != 2 or min(addresses.shape) < 2:
        return None
    down, along = addresses[1, 0] - addresses[0, 0], addresses[0, 1] - addresses[0, 0]
    axis = int(abs(down) < abs(along))
    nobody = np.full((1, addresses.shape[axis]), -1)
    return _note(operand.name, nobody, np.zeros(1, np.int64), axis, 2, loaded=False)


def _row_axis(
    ids: np.ndarray, active: np.ndarray, columns: np.ndarray
) -> tuple[int | None, np.ndarray, int]:
    """Return the axis along which most programs hold rows, the rows, and how many programs.

    The axis does not count that of the programs; it is None if there is none. If all lanes of a
    last tile lie in one row, any axis fits: an axis along which columns stay the same goes first.
    """
    shape, most, best = ids.shape[1:], 0, (None, ids)
    size = ids[0].size
    axes = range(len(shape)) if len(shape) > 1 and size > 1 else ()
    for axis in sorted(axes, key=lambda axis: _varies(columns, active, axis + 1)):
        if axis < len(shape) - 1 and size == shape[axis]:
            continue
        others = tuple(other + 1 for other in range(len(shape)) if other != axis)
        rows = ids.max(axis=others)
        same = (ids == np.expand_dims(rows, others)) | ~active
        fits = int(same.reshape(len(ids), -1).all(1).sum())
        if fits > most:
            most, best = fits, (axis, rows)
        if most == len(ids):
            break
    return *best, most


def _varies(columns: np.ndarray, active: np.ndarray, axis: int) -> bool:
    least = np.where(active, columns, columns.max(initial=0)).min(axis)
    most = np.where(active, columns, 0).max(axis)
    return bool((most > least).any())
