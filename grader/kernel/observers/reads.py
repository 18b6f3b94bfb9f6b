"""Counts what kernels read, by address: an input is one whatever a pointer says it points to."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.kernel.observers.operands import Operand
from grader.kernel.observers.trace import Counter

_MAX_ELEMENTS = 2**24  # of memory of which each element's reads are remembered


class Reads:
    """Reads of one call, of its inputs and of other tensors: how many, and of how many elements."""

    def __init__(self, counters: np.ndarray, inputs: list[Operand]) -> None:
        self._counters = counters
        self._itemsize = inputs[0].tensor.element_size() if inputs else 1
        self._regions = _merged(sorted((i.start, i.end) for i in inputs))
        # By the address where the memory starts: of inputs and their copies, and of what was made.
        self._seen: dict[int, np.ndarray] = {}
        self._seen_made: dict[int, np.ndarray] = {}

    def of_inputs(self, addresses: np.ndarray) -> np.ndarray:
        """Return which addresses lie in an input, or between the rows of one."""
        inside = np.zeros(addresses.shape, bool)
        for low, high in self._regions:
            inside |= (addresses >= low) & (addresses < high)
        return inside

    def note_inputs(self, addresses: np.ndarray, itemsize: int) -> None:
        """Note reads of `itemsize` bytes at addresses of inputs; each is of one element or more.

        Lanes of one load at the same address are one read: so are those that are clamped to it.
        """
        each = max(1, itemsize // self._itemsize)
        if not (addresses[1:] > addresses[:-1]).all():
            addresses = np.unique(addresses)
        self._counters[Counter.ELEMENTS_READ] += addresses.size * each
        for low, high in self._regions:
            there = addresses[(addresses >= low) & (addresses < high)].astype(np.int64)
            first = (there - low) // self._itemsize
            for number in range(each if there.size else 0):
                _see(self._seen, low, (high - low) // self._itemsize, first + number)

    def note_others(
        self, addresses: np.ndarray, tensor: Any, *, floating: bool, made: bool
    ) -> None:
        """Note reads elsewhere, by a pointer to `tensor`, None where that is not known.

        What kernels of the call have `made` is counted in `UNKNOWN_READS` too. All else holds
        inputs in some form. Different elements are counted, but not of integers that were made.
        """
        self._counters[Counter.ELEMENTS_READ] += addresses.size
        if made:
            self._counters[Counter.UNKNOWN_READS] += addresses.size
        if tensor is not None and (floating or not made):
            size = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            start = tensor.data_ptr()
            offsets = (addresses.astype(np.int64) - start) // tensor.element_size()
            _see(self._seen_made if made else self._seen, start, size, offsets)

    def distinct(self, *, made: bool) -> int:
        """Return how many different elements were read; `made` says whether made ones count."""
        known = [self._seen, self._seen_made] if made else [self._seen]
        return sum(int(seen.sum()) for part in known for seen in part.values())


def _see(known: dict[int, np.ndarray], start: int, size: int, offsets: np.ndarray) -> None:
    if start not in known:
        known[start] = np.zeros(size if size <= _MAX_ELEMENTS else 0, bool)
    seen = known[start]
    seen[offsets[(offsets >= 0) & (offsets < seen.size)]] = True


def _merged(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return extents of which none overlaps another: slices of one packed tensor are one."""
    found: list[tuple[int, int]] = []
    for low, high in extents:
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found
