"""Elements of tensors to which no program has ever stored, over all launches of a call."""

from __future__ import annotations

from typing import Any

import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import Tensor, arange, zeros


class Unwritten:
    """Marks what is stored to, in the storage that a tensor lies in, whatever views it has."""

    def __init__(self) -> None:
        # A storage that is held cannot give its address to another.
        self._written: dict[int, tuple[Any, Tensor]] = {}

    def __call__(self, event: events.Event) -> None:
        """Look at one event."""
        if not isinstance(event, events.Access) or event.kind == events.LOAD:
            return
        flat, width = event.memory.flat, event.value.itemsize
        marks = self._marks(flat)
        start = flat.data_ptr() - flat.untyped_storage().data_ptr()
        first = start + event.index * width
        for byte in range(width):
            marks[first + byte] = True

    def _marks(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in self._written:
            self._written[address] = storage, zeros(storage.nbytes(), dtype=torch.bool)
        return self._written[address][1]

    def of(self, tensor: Tensor) -> Tensor:
        """Return which elements of a tensor nobody has stored to, in its shape."""
        marks, width = self._marks(tensor), tensor.itemsize
        places = zeros(tensor.shape, dtype=torch.int64)
        for axis, (size, step) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
            along = arange(size) * step * width
            places += along.reshape([-1 if a == axis else 1 for a in range(tensor.dim())])
        return ~marks[places + tensor.storage_offset() * width]
