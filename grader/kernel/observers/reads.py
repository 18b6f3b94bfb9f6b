"""Counts what kernels read, by address: an input is one whatever a pointer says it points to."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.kernel.observers.operands import Operand
from grader.kernel.observers.places import Touched, extent
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

    def note(
        self, touched: Touched, tensor: Any = None, *, floating: bool = False, made: bool = False
    ) -> None:
        """Note what is read by pointers to `tensor`, None where that is not known.

        Elsewhere than in inputs, what kernels of the call have `made` is counted in `UNKNOWN_READS`
        too. All else holds inputs in some form. Different elements are counted, but not of integers
        that were made.
        """
        rest = self.note_inputs(touched)
        lanes = touched.addresses[rest]
        self._counters[Counter.ELEMENTS_READ] += lanes.size
        if made:
            self._counters[Counter.UNKNOWN_READS] += lanes.size
        if lanes.size and tensor is not None and (floating or not made):
            start = tensor.data_ptr()
            offsets = (lanes - start) // tensor.element_size()
            _see(self._seen_made if made else self._seen, start, extent(tensor), offsets)

    def note_inputs(self, touched: Touched) -> np.ndarray:
        """Note reads of inputs, or between the rows of one; return which lanes read elsewhere.

        Each read is of one element or more. Lanes of one program's load at the same address are one
        read: so are those that are clamped to it.
        """
        each = max(1, touched.width // self._itemsize)
        rest = touched.active
        for low, high in self._regions:
            inside = rest & (touched.addresses >= low) & (touched.addresses < high)
            lanes = touched.addresses[inside]
            if not lanes.size:
                continue
            rest = rest & ~inside
            self._counters[Counter.ELEMENTS_READ] += each * _different(touched.addresses, inside)
            first = (lanes - low) // self._itemsize
            for number in range(each):
                _see(self._seen, low, (high - low) // self._itemsize, first + number)
        return rest

    def distinct(self, *, made: bool) -> int:
        """Return how many different elements were read; `made` says whether made ones count."""
        known = [self._seen, self._seen_made] if made else [self._seen]
        return sum(int(seen.sum()) for part in known for seen in part.values())


def _different(addresses: np.ndarray, active: np.ndarray) -> int:
    """Return how many addresses there are, those of each program counted once."""
    lanes = np.where(active, addresses, -1).reshape(len(addresses), -1)
    if lanes.shape[1] > 1 and not (lanes[:, 1:] > lanes[:, :-1]).all():
        lanes.sort(axis=1)
    again = lanes[:, 1:] == lanes[:, :-1]
    return int((lanes >= 0).sum() - (again & (lanes[:, 1:] >= 0)).sum())


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
