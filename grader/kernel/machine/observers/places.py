"""Where memory is touched: addresses, the input that they lie in, and the rows that they hold."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import Tensor, ends, ones, whole
from grader.kernel.machine.tensors import SHIFT, Memory
from grader.kernel.machine.ttir import Type
from grader.kernel.observers.operands import Operand, find_operand

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
