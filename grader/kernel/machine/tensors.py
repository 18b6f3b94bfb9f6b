"""The tensors of a launch, and pointers into them.

A pointer is the number of its tensor << 50, plus 2**49, plus the offset from the tensor's first
element: it still tells its tensor after additions, selections and loops.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from grader.kernel.machine.arrays import Tensor, ends, zeros_like

SHIFT = 50
MIDDLE = 1 << 49


def extent(size: Sequence[int], stride: Sequence[int]) -> int:
    """Return the number of elements from a tensor's first to its last, with gaps between them."""
    if not math.prod(size):
        return 0
    return 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))


def flat(tensor: Tensor) -> Tensor:
    """Return a tensor's memory from the first element to the last, with gaps between them."""
    return tensor.detach().as_strided((extent(tensor.shape, tensor.stride()),), (1,))


def place_in(grid: tuple[int, int, int], numbers: Any) -> tuple[Any, Any, Any]:
    """Return the grid coordinates x, y and z of programs from their numbers."""
    x, y, _ = grid
    return numbers % x, numbers // x % y, numbers // (x * y)


@dataclasses.dataclass(eq=False)
class Memory:
    """One tensor of a launch; `names` are those of the arguments that pass it.

    `flat` is its memory from the first element to the last; the kernel sees it at `address`.
    `is_updated` says that the launch stored to it after a read, or by an atomic operation, and
    `may_change` that the kernel has a store through one of the arguments. `exact` are its elements
    in exact mode.
    """

    number: int
    tensor: Tensor
    flat: Tensor
    names: list[str]
    address: int = 0
    is_read: bool = False
    is_updated: bool = False
    may_change: bool = False
    exact: Tensor | None = None

    @property
    def name(self) -> str:
        return " or ".join(dict.fromkeys(self.names))

    @property
    def base(self) -> int:
        """The pointer to the first element."""
        return (self.number << SHIFT) + MIDDLE

    def size(self, width: int) -> int:
        """Return how many elements of `width` bytes there are."""
        return self.flat.numel() * self.flat.itemsize // width

    def index_of(self, offset: int) -> list[int]:
        """Return the index of an offset from the first element, by the strides.

        Past the end, the index of the outermost axis longer than 1 is too large; before the start,
        that of the rows is negative.
        """
        shape, strides = self.tensor.shape, self.tensor.stride()
        index = [0] * len(shape)
        axes = sorted(range(len(shape)), key=lambda axis: -strides[axis])
        axes = [axis for axis in axes if shape[axis] > 1 and strides[axis]]
        for axis in axes if offset >= 0 else axes[-2:]:
            index[axis], offset = divmod(offset, strides[axis])
        return index

    def as_dtype(self, dtype: torch.dtype) -> Tensor:
        """Return the elements as those of another type."""
        if self.flat.dtype is dtype:
            return self.flat
        if self.exact is not None and dtype is torch.float64:
            return self.exact
        if self.flat.itemsize == dtype.itemsize:
            return self.flat.view(dtype)
        whole = self.size(dtype.itemsize) * dtype.itemsize
        return self.flat.view(torch.uint8)[:whole].view(dtype)


class Memories:
    """All tensors of a launch, by their numbers, from 1 on."""

    def __init__(self, addresses: Mapping[int, int]) -> None:
        self._addresses = addresses
        self._all: list[Memory] = []
        self._known: dict[tuple[Any, ...], Memory] = {}

    def __iter__(self) -> Any:
        return iter(self._all)

    def add(self, name: str, tensor: Any) -> int:
        """Add an argument, a tensor or None; return a pointer to its first element."""
        if tensor is None:
            return 0
        key = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        memory = self._known.get(key)
        if memory is None:
            address = self._addresses.get(key[0], key[0])
            memory = Memory(len(self._all) + 1, tensor, flat(tensor), [], address)
            self._all.append(memory)
            self._known[key] = memory
        memory.names.append(name)
        return memory.base

    def get(self, number: int) -> Memory | None:
        return self._all[number - 1] if 1 <= number <= len(self._all) else None

    def addresses(self, pointers: Tensor, width: int) -> Tensor:
        """Return pointers to elements of `width` bytes as addresses of the launching code."""
        return addresses([(memory, memory.address) for memory in self._all], pointers, width)

    def pointers(self, addresses: Tensor, width: int) -> Tensor:
        """Return addresses, as tensor.data_ptr() gives them, as pointers into the tensors there."""
        found = zeros_like(addresses)
        for memory in self._all:
            start = memory.address
            inside = (addresses >= start) & (addresses < start + memory.size(1))
            at = memory.base + (addresses - start) // width
            found = torch.where(inside, at, found)
        return found


def addresses(starts: Iterable[tuple[Memory, int]], pointers: Tensor, width: int) -> Tensor:
    """Return pointers to elements of `width` bytes as addresses, given where each tensor starts."""
    low, high = ends(pointers)
    found = pointers - MIDDLE
    for memory, start in starts:
        at = start + (pointers - memory.base) * width
        if low >> SHIFT == high >> SHIFT == memory.number:
            return at
        found = torch.where(pointers >> SHIFT == memory.number, at, found)
    return found


def reinterpreted(pointers: Tensor, width: int, other: int) -> Tensor:
    """Turn pointers to elements of `width` bytes into pointers to elements of `other` bytes."""
    if width == other:
        return pointers
    numbers = pointers >> SHIFT << SHIFT
    return numbers + MIDDLE + (pointers - numbers - MIDDLE) * width // other
