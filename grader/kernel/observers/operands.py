"""Recognises the tensors that a kernel is given: an input of the call, or a copy of one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from grader.kernel import readings
from grader.kernel.machine.tensors import extent
from grader.kernel.observers.trace import STATISTIC

QUERY_SIDE = ("q", "dout", "out", "dq", STATISTIC)
_CLOSE = 2e-2  # a copy may be scaled, or rounded to 16 bits
# More than batch by heads of any input, even with a copy for each head.
_MOST_PLANES = 4096


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor of (batch, heads, rows, columns) or (rows, columns), to locate addresses in.

    `planes` maps each (batch, head) of this tensor to that of the input `name`; None: the same.
    """

    name: str
    tensor: Any  # of four dimensions
    planes: np.ndarray | None = None
    length: int = 0  # rows of the input, where this is a padded copy

    @classmethod
    def of(cls, name: str, tensor: Any) -> Operand:
        """Describe a tensor of 1, 2 or 4 dimensions; with 1 or 2, the first is that of the rows."""
        tensor = tensor.detach()
        tensor = tensor[:, None] if tensor.dim() == 1 else tensor
        tensor = tensor[None, None] if tensor.dim() == 2 else tensor
        return cls(name, tensor, None, tensor.shape[2])

    @property
    def start(self) -> int:
        return self.tensor.data_ptr()

    @property
    def end(self) -> int:
        return self.start + extent(self.size, self.tensor.stride()) * self.tensor.element_size()

    @property
    def size(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def num_rows(self) -> int:
        return self.size[0] * self.size[1] * self.size[2]

    def holds(self, addresses: np.ndarray) -> np.ndarray:
        """Return which addresses lie between the tensor's first element and its last."""
        return (addresses >= self.start) & (addresses < self.end)

    def locate(self, addresses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the row, over batch and heads, and the column that each address lies in.

        The row is -1 for an address in none.
        """
        size, stride = self.size, self.tensor.stride()
        rest = (addresses - self.start) // self.tensor.element_size()
        index = [np.zeros(rest.shape, np.int64)] * 4
        inside = rest >= 0
        for dim in sorted(range(4), key=lambda d: -stride[d]):
            if size[dim] > 1 and stride[dim] > 0:
                index[dim], rest = np.divmod(rest, stride[dim])
                inside &= index[dim] < size[dim]
        plane = index[0] * size[1] + index[1]
        if self.planes is not None:
            plane = self.planes[np.where(inside, plane, 0)]
        inside &= index[2] < self.length
        rows = np.where(inside & (plane >= 0), plane * self.length + index[2], -1)
        return rows, index[3]


def find_operand(tensor: Any, inputs: list[Operand]) -> Operand | None:
    """Return which input `tensor` is, or holds a copy of; None where it is neither."""
    start = tensor.data_ptr()
    for operand in inputs:
        # The extents of slices of one packed tensor overlap: only a row tells.
        if operand.start == start or bool(operand.locate(np.array([start]))[0][0] >= 0):
            return None if 0 in operand.tensor.stride()[2:] else operand
    return _copy_of(tensor, inputs)


def _copy_of(tensor: Any, inputs: list[Operand]) -> Operand | None:
    """Find the input whose planes of rows and columns this tensor repeats, scaled or not."""
    if tensor.dim() not in (3, 4) or not tensor.numel():
        return None
    whole = tensor.detach()
    if not whole.is_floating_point():  # may hold the bits of a copy
        dtype = inputs[0].tensor.dtype if inputs else whole.dtype
        if whole.element_size() != dtype.itemsize or not dtype.is_floating_point:
            return None
        whole = whole.view(dtype)
    if whole.dim() == 3:
        whole = whole[None]
    for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
        view = whole.permute(*order)
        for operand in inputs:
            found = _planes(view, operand)
            if found is not None:
                return Operand(operand.name, view, found, operand.size[2])
    return None


def _planes(view: Any, operand: Operand) -> np.ndarray | None:
    """Return the input's plane that each plane of `view` copies, None if one copies none."""
    source = operand.tensor
    length, width = operand.size[2:]
    if view.shape[2] < length or view.shape[3] < width:
        return None
    if view.shape[0] * view.shape[1] > _MOST_PLANES:
        return None  # an expanded tensor may have more planes than fit into memory
    # Three rows suffice: the first, one in the middle, the last.
    rows = sorted({0, length // 2, length - 1})
    planes = _rows_of(view[..., :width], rows)
    sources = _rows_of(source, rows)
    norms = np.linalg.norm(planes, axis=1), np.linalg.norm(sources, axis=1)
    if not (norms[0] > 0).all() or not (norms[1] > 0).all():
        return None
    cosines = np.abs((planes / norms[0][:, None]) @ (sources / norms[1][:, None]).T)
    best = cosines.argmax(1)
    if not (cosines[np.arange(len(best)), best] > 1 - _CLOSE**2).all():
        return None
    return best


def _rows_of(tensor: torch.Tensor, rows: list[int]) -> np.ndarray:
    """Return some rows, one line per plane, in a read that does not count as the submission's."""
    taken = torch.stack([tensor[:, :, row] for row in rows], 2)
    return readings.as_numpy(taken.double().flatten(0, 1).flatten(1))
