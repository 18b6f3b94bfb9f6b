"""Finds elements for which the programs of one launch race. In a worker, in Triton's interpreter.

It runs one program after the other, as no GPU does: there a program that reads what another one
stores, or stores over it, gets what is there at that moment. An atomic operation or a volatile read
may be a lock or a flag; from the first one in a launch on nothing is said. Nor of programs that
store the same numbers, but for what another order of sums makes of them, and of one program's own
accesses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

# Of the largest of the numbers: what is rounded to bf16 in another order of sums differs by 2**-7
# of itself, and where terms cancel by as much of these. Whichever of two so close stays is right.
_CLOSE = 1e-2
READS, STORES, UPDATES = "reads", "stores to", "updates"


@dataclasses.dataclass
class _Stored:
    """Of each element of a tensor, which program stored to it, counted from 1, and what."""

    writer: np.ndarray
    values: np.ndarray


class Races:
    """What the programs of a launch store; `found` is the first race of a call: line and text.

    `line` returns the line of the submission that runs.
    """

    def __init__(self, line: Callable[[], int]) -> None:
        self.found: tuple[int, str] | None = None
        self._line = line
        self._by_start: dict[int, _Stored] = {}
        self._programs: list[tuple[int, ...]] = []
        self._ordered = False  # programs may wait for each other

    def reset(self) -> None:
        """Forget what an earlier call did."""
        self.found = None
        self.launched()

    def launched(self) -> None:
        """Begin with a launch."""
        self._by_start.clear()
        self._programs.clear()
        self._ordered = False

    def begins(self, program: tuple[int, ...]) -> None:
        """Begin with a program."""
        self._programs.append(program)

    def waits(self) -> None:
        """Note that a program may wait for another one."""
        self._ordered = True

    def has_stores(self, start: int) -> bool:
        """Whether a read from the tensor that begins at `start` may be one of a race."""
        return start in self._by_start and not self._ordered

    def loaded(self, start: int, name: str, addresses: np.ndarray, itemsize: int) -> None:
        """Note a read from the tensor `name` that begins at `start`."""
        if self.has_stores(start):
            self._look(start, name, READS, addresses, itemsize)

    def updated(self, start: int, name: str, addresses: np.ndarray, itemsize: int) -> None:
        """Note an atomic operation: a lock, unless it is on what a program has stored."""
        found = self._by_start.get(start)
        if found is None or itemsize != found.values.itemsize:
            self._ordered = True
        elif not self._ordered:
            ids = (addresses - start) // itemsize
            self._ordered = not found.writer[ids].all()
            if not self._ordered:
                self._look(start, name, UPDATES, addresses, itemsize)

    def stored(
        self, start: int, end: int, name: str, addresses: np.ndarray, values: np.ndarray
    ) -> None:
        """Note a plain store of `values` to a tensor that ends at `end`."""
        size = values.dtype.itemsize
        if self._ordered:
            return
        if start not in self._by_start:
            count = (end - start) // size
            whole = np.zeros(count, np.int32), np.zeros(count, values.dtype)
            self._by_start[start] = _Stored(*whole)
        found = self._by_start[start]
        self._look(start, name, STORES, addresses, size, values)
        if found.values.dtype == values.dtype:
            ids = (addresses - start) // size
            found.writer[ids], found.values[ids] = len(self._programs), values

    def _look(
        self,
        start: int,
        name: str,
        does: str,
        addresses: np.ndarray,
        itemsize: int,
        values: np.ndarray | None = None,
    ) -> None:
        found = self._by_start[start]
        if self.found is not None or found.values.itemsize != itemsize:
            return
        ids = (addresses - start) // itemsize
        writers = found.writer[ids]
        other = (writers != 0) & (writers != len(self._programs))
        if values is not None and other.any():  # rarely
            other[other] = _differ(found.values[ids[other]], values[other])
        if not other.any():
            return
        writer = self._programs[int(writers[other][0]) - 1]
        text = (
            f"programs of one launch race for {name}; program {self._programs[-1]} {does} an"
            f" element that program {writer} stores to"
        )
        self.found = self._line(), text


def _differ(stored: np.ndarray, values: np.ndarray) -> np.ndarray:
    if "f" in (stored.dtype.kind, values.dtype.kind):
        finite = np.abs(values[np.isfinite(values)].astype(np.float64))
        atol = _CLOSE * finite.max(initial=0.0)
        return ~np.isclose(stored, values, rtol=_CLOSE, atol=atol, equal_nan=True)
    return stored != values
