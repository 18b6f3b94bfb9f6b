"""Which programs of one launch stored different numbers to the same element of a gradient.

Stores do not add up: on a GPU the last one wins, whichever that is. A program that reads from the
tensor before it stores, under a lock of its own perhaps, is left alone, and so are atomic
operations. Runs inside the worker.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from grader.kernel.observers.operands import Operand
from grader.kernel.observers.trace import GRADIENTS

_Program = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class _Clash:
    """The first store over another program's: where, of whom, and to which elements."""

    line: int
    first: _Program
    second: _Program
    elements: np.ndarray
    launch: int


@dataclasses.dataclass
class _Stored:
    """What was stored to one tensor, element by element from its first."""

    writer: np.ndarray  # the last program, counted over all launches from 1
    bits: np.ndarray
    clash: _Clash | None = None


class Overwrites:
    """Stores to every tensor, by the address where it starts."""

    def __init__(self) -> None:
        self._launch = 0
        self._launched_at = 0  # how many programs ran before this launch
        self._programs: list[_Program] = []
        self._by_start: dict[int, _Stored] = {}
        self._read: set[int] = set()  # what this launch has read from

    def launched(self) -> None:
        """Begin with a launch."""
        self._launch += 1
        self._launched_at = len(self._programs)
        self._read.clear()

    def placed(self, x: int, y: int, z: int) -> None:
        """Begin with a program."""
        self._programs.append((x, y, z))

    def loaded(self, start: int) -> None:
        """Note that a program reads from the tensor that starts there."""
        self._read.add(start)
        found = self._by_start.get(start)
        if found is not None and found.clash is not None and found.clash.launch == self._launch:
            found.clash = None

    def stored(
        self, start: int, tensor: Any, addresses: np.ndarray, values: np.ndarray, line: int
    ) -> np.ndarray:
        """Note what is stored to some elements of a tensor.

        Returns:
            The addresses of those to which another program had stored other numbers.
        """
        size = tensor.element_size()
        if values.dtype.itemsize != size or not tensor.is_floating_point():
            return addresses[:0]
        if start not in self._by_start:
            last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            whole = np.zeros(last + 1, np.int64), np.zeros(last + 1, f"u{size}")
            self._by_start[start] = _Stored(*whole)
        found, serial = self._by_start[start], len(self._programs)
        ids = (addresses.astype(np.int64) - start) // size
        bits = np.ascontiguousarray(values).view(f"u{size}")
        inside = (ids >= 0) & (ids < len(found.writer))
        ids, bits = ids[inside], bits[inside]
        writers = found.writer[ids]
        over = (writers > self._launched_at) & (writers != serial) & (found.bits[ids] != bits)
        if over.any() and found.clash is None and start not in self._read:
            other = int(writers[over][0])
            programs = self._programs[other - 1], self._programs[serial - 1]
            elements = ids[over & (writers == other)]
            found.clash = _Clash(line, *programs, elements, self._launch)
        found.writer[ids], found.bits[ids] = serial, bits
        return addresses[inside][over]

    def write(self, results: dict[str, Any], table: np.ndarray) -> None:
        """Write what became of the gradients, which are told by where they begin."""
        for name, row in zip(GRADIENTS, table, strict=True):
            result = results.get(name)
            if not isinstance(result, torch.Tensor):
                continue
            start = torch.Tensor.data_ptr(result)
            found = self._by_start.get(start)
            if found is None or found.clash is None or result.dim() not in (1, 4):
                continue
            clash, operand = found.clash, Operand.of(name, result)
            rows = operand.rows(start + clash.elements * result.element_size())
            rows = rows[rows >= 0]
            if rows.size:
                plane = rows[0] // operand.length
                rows = rows[rows // operand.length == plane]
                ends = int(rows.min()) + 1, int(rows.max()) + 1
                row[:] = clash.line, *clash.first, *clash.second, *ends
