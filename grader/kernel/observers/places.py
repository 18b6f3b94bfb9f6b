"""Where memory is touched: addresses, the input that they lie in, and the rows that they hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import Tensor, ends, ones, whole
from grader.kernel.machine.notes import NOTHING
from grader.kernel.machine.tensors import SHIFT, Memory
from grader.kernel.machine.ttir import Type
from grader.kernel.observers.knowledge import Note, Rows
from grader.kernel.observers.lineage import padding
from grader.kernel.observers.operands import Operand, find_operand
from grader.kernel.observers.trace import STATISTIC

_as_numpy = torch.Tensor.numpy
_UNKNOWN = -2
_MASKS = {"tt.load": 1, "tt.store": 2, "tt.atomic_rmw": 2}


@dataclasses.dataclass(frozen=True)
class Touched:
    """What an operation touches: an address for each lane of each program, active or not.

    `starts` are where the tensors begin that the first lane of each program points into.
    """

    addresses: np.ndarray
    active: np.ndarray
    starts: np.ndarray
    width: int


class Places:
    """The tensors of a call, by the address where they start, and which of them are inputs."""

    def __init__(self, inputs: list[Operand]) -> None:
        self.tensors: dict[int, Any] = {}
        self._inputs = inputs
        self._memories: tuple[Memory, ...] = ()
        self._operands: dict[int, Operand | None] = {}

    def launched(self, memories: tuple[Memory, ...]) -> None:
        """Know the tensors of a launch; of several that start together the longest."""
        self._memories = memories
        for memory in memories:
            start, earlier = memory.flat.data_ptr(), self.tensors.get(memory.flat.data_ptr())
            if earlier is None or _extent(earlier) < _extent(memory.tensor):
                self.tensors[start] = memory.tensor

    def operand(self, start: int) -> Operand | None:
        """Return which input of the call, or copy of one, the tensor is that starts there."""
        if start not in self._operands:
            tensor = self.tensors.get(start)
            found = find_operand(tensor, self._inputs) if tensor is not None else None
            self._operands[start] = found
        return self._operands[start]

    def touched(self, event: events.Computed) -> Touched:
        """Return what a load, a store or an atomic operation touches."""
        pointers, type = event.operands[0], event.types[0]
        width = max(1, Type((), type.pointee).bits // 8)
        programs = event.programs.shape[0]
        where = _MASKS.get(event.op.name, len(event.operands))
        mask = event.operands[where] if where < len(event.operands) else None
        active = ones((1,) * pointers.dim(), dtype=torch.bool) if mask is None else mask
        addresses = whole(self._addresses(pointers, width), type.shape, programs)
        first = whole(pointers, type.shape, programs).reshape(programs, -1)[:, 0] >> SHIFT
        starts = np.zeros(programs, np.int64)
        for memory in self._memories:
            starts[_as_numpy(first == memory.number)] = memory.flat.data_ptr()
        active = whole(active, type.shape, programs)
        return Touched(_as_numpy(addresses), _as_numpy(active), starts, width)

    def _addresses(self, pointers: Tensor, width: int) -> Tensor:
        low, high = ends(pointers)
        found = torch.zeros_like(pointers)
        for memory in self._memories:
            at = memory.flat.data_ptr() + (pointers - memory.base) * width
            if low >> SHIFT == high >> SHIFT == memory.number:
                return at
            found = torch.where(pointers >> SHIFT == memory.number, at, found)
        return found


def _extent(tensor: Any) -> int:
    return sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def rows_of(
    operand: Operand,
    rows: np.ndarray,
    columns: np.ndarray,
    addresses: np.ndarray,
    active: np.ndarray,
) -> tuple[int | None, Any]:
    """Return the axis of the rows of an input, and what is known of a tile of them."""
    dims = rows.ndim - 1
    if not active.any():
        tags = padding(addresses[0], operand)
        if tags is None:
            return None, NOTHING
        nobody = torch.tensor([0])
        axes = [t and Rows(t.operand, torch.from_numpy(t.ids)[None], nobody) for t in tags]
        return None, Note(tuple(axes))
    axis, ids = row_axis(np.where(active, rows, -1), active, columns)
    if axis is None:
        return None, NOTHING
    first = np.where(active, columns, 2**31).reshape(len(rows), -1).min(1)
    first[first == 2**31] = 0
    held = Rows(operand.name, torch.from_numpy(ids), torch.from_numpy(first))
    return axis, Note(tuple(held if i == axis else None for i in range(dims)), loaded=True)


def rows_of_made(
    tensor: Any,
    addresses: np.ndarray,
    active: np.ndarray,
    size_of_q: tuple[int, ...],
    *,
    is_statistic: bool,
) -> Any:
    """Return whose rows a tile holds of what the call made of each query: out, lse or delta."""
    dims = addresses.ndim - 1
    if not tensor.is_floating_point() or not dims or not active.any():
        return NOTHING
    if tuple(tensor.shape) == size_of_q:
        name, (ids, columns) = "out", Operand.of("out", tensor).locate(addresses)
    elif is_statistic:
        name, ids = STATISTIC, (addresses - tensor.data_ptr()) // tensor.element_size()
        ids[ids >= tensor.numel()] = -1
        columns = np.zeros_like(ids)
    else:
        return NOTHING
    ids = np.where(active, ids, -1)
    axis, rows = (0, ids) if dims == 1 else row_axis(ids, active, columns)
    if axis is None:
        return NOTHING
    held = Rows(name, torch.from_numpy(rows), torch.tensor([0]))
    return Note(tuple(held if i == axis else None for i in range(dims)))


def row_axis(
    ids: np.ndarray, active: np.ndarray, columns: np.ndarray
) -> tuple[int | None, np.ndarray]:
    """Return the axis along which tiles of all programs hold rows, None if none, and the rows.

    The axis counts without that of the programs; rows of a program of which it is another are -2.
    Along the axis of the rows the column that a lane is in stays the same.
    """
    shape = ids.shape[1:]
    size = ids[0].size
    best, most, found = None, 0, ids
    axes = range(len(shape)) if len(shape) > 1 and size > 1 else ()
    for axis in sorted(axes, key=lambda axis: _varies(columns, active, axis + 1)):
        if axis < len(shape) - 1 and size == shape[axis]:
            continue
        others = tuple(other + 1 for other in range(len(shape)) if other != axis)
        rows = ids.max(axis=others)
        along = np.expand_dims(rows, others)
        fits = ((ids == along) | ~active).reshape(len(ids), -1).all(1)
        if fits.sum() > most:
            best, most = axis, int(fits.sum())
            found = np.where(fits[:, None], rows, _UNKNOWN)
    return best, found


def _varies(columns: np.ndarray, active: np.ndarray, axis: int) -> bool:
    least = np.where(active, columns, columns.max(initial=0)).min(axis)
    most = np.where(active, columns, 0).max(axis)
    return bool((most > least).any())
