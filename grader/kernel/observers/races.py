"""Finds elements for which the programs of one launch race. In a worker, in Triton's interpreter.

It runs one program after the other, as no GPU does: there a program that reads what another one
stores, or stores over it, gets what is there at that moment. Not so where it has to come later: a
lock or a flag is a whole number that programs change by atomic operations, or store to and read as
volatile. Who comes to one knows what the programs before it had done when they came there, and what
these knew. Nothing is said of programs that store the same numbers, but for what another order of
sums makes of them, and of one program's own accesses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

# Of the largest of the numbers: what is rounded to bf16 in another order of sums differs by 2**-7
# of itself, and where terms cancel by as much of these. Whichever of two so close stays is right.
_CLOSE = 1e-2
READS, STORES, UPDATES = "reads", "stores to", "updates"
_MOST_FLAGS = 64  # in one access; more of them are one


@dataclasses.dataclass
class _Stored:
    """Of each element of a tensor, which program stored to it, counted from 1, when, and what."""

    writer: np.ndarray
    when: np.ndarray
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
        self._time = 0  # how often programs have come to a lock or a flag
        # By program, counted from 1, until when it is known what that has done.
        self._known = np.zeros(1, np.int64)
        self._known_at: dict[int, np.ndarray] = {}  # by the address of a lock or a flag
        self._known_by: list[np.ndarray] = []  # at the end of each program

    def reset(self) -> None:
        """Forget what an earlier call did."""
        self.found = None
        self.launched()

    def launched(self) -> None:
        """Begin with a launch."""
        self._by_start.clear()
        self._programs.clear()
        self._time = 0
        self._known = np.zeros(1, np.int64)
        self._known_at.clear()
        self._known_by.clear()

    def begins(self, program: tuple[int, ...]) -> None:
        """Begin with a program."""
        if self._programs:
            self._known_by.append(self._known)
        self._programs.append(program)
        self._known = np.zeros(1, np.int64)

    def has_stores(self, start: int) -> bool:
        """Whether a read from the tensor that begins at `start` may be one of a race."""
        return start in self._by_start

    def waited(self, start: int, addresses: np.ndarray, itemsize: int) -> None:
        """Note a volatile read of whole numbers, or what an atomic operation reads: a flag."""
        self._time += 1
        places = addresses.ravel()[:_MOST_FLAGS].tolist()
        for known in (self._known_at.get(place) for place in places):
            if known is not None:
                self._learn(known)
        found = self._by_start.get(start)
        if found is None or found.values.itemsize != itemsize:
            return
        ids = (addresses - start) // itemsize
        for writer in np.unique(found.writer[ids]).tolist():
            if 0 < writer < len(self._programs):
                known = _long_enough(self._known_by[writer - 1], writer + 1).copy()
                mine = found.writer[ids] == writer
                known[writer] = max(known[writer], int(found.when[ids][mine].max()) + 1)
                self._learn(known)

    def _learn(self, known: np.ndarray) -> None:
        size = max(len(known), len(self._known))
        self._known = np.maximum(_long_enough(self._known, size), _long_enough(known, size))

    def loaded(self, start: int, name: str, addresses: np.ndarray, itemsize: int) -> None:
        """Note a read from the tensor `name` that begins at `start`."""
        if self.has_stores(start):
            self._look(start, name, READS, addresses, itemsize)

    def updated(
        self, start: int, name: str, addresses: np.ndarray, itemsize: int, *, whole: bool
    ) -> None:
        """Note an atomic operation: on `whole` numbers, it may be a lock."""
        found = self._by_start.get(start)
        if found is not None and itemsize == found.values.itemsize:
            ids = (addresses - start) // itemsize
            if found.writer[ids].all():
                self._look(start, name, UPDATES, addresses, itemsize)
        if whole:
            self.waited(start, addresses, itemsize)
            program = len(self._programs)
            self._known = _long_enough(self._known, program + 1).copy()
            self._known[program] = self._time
            self._known_at |= dict.fromkeys(addresses.ravel()[:_MOST_FLAGS].tolist(), self._known)

    def stored(
        self, start: int, end: int, name: str, addresses: np.ndarray, values: np.ndarray
    ) -> None:
        """Note a plain store of `values` to a tensor that ends at `end`."""
        size = values.dtype.itemsize
        if start not in self._by_start:
            count = (end - start) // size
            whole = *np.zeros((2, count), np.int32), np.zeros(count, values.dtype)
            self._by_start[start] = _Stored(*whole)
        found = self._by_start[start]
        self._look(start, name, STORES, addresses, size, values)
        if found.values.dtype == values.dtype:
            ids = (addresses - start) // size
            found.writer[ids], found.values[ids] = len(self._programs), values
            if self._time:
                found.when[ids] = self._time

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
        if self._time and other.any():
            there = np.minimum(writers, len(self._known) - 1)
            known = np.where(there == writers, self._known[there], 0)
            other &= known <= found.when[ids]
        if not other.any():
            return
        writer = self._programs[int(writers[other][0]) - 1]
        text = (
            f"programs of one launch race for {name}; program {self._programs[-1]} {does} an"
            f" element that program {writer} stores to"
        )
        self.found = self._line(), text


def _long_enough(known: np.ndarray, size: int) -> np.ndarray:
    return known if len(known) >= size else np.pad(known, (0, size - len(known)))


def _differ(stored: np.ndarray, values: np.ndarray) -> np.ndarray:
    if "f" in (stored.dtype.kind, values.dtype.kind):
        finite = np.abs(values[np.isfinite(values)].astype(np.float64))
        atol = _CLOSE * finite.max(initial=0.0)
        return ~np.isclose(stored, values, rtol=_CLOSE, atol=atol, equal_nan=True)
    return stored != values
