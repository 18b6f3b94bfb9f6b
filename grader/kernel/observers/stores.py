"""Which program of a traced call stored which rows of the output."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from grader.kernel.observers.operands import Operand
from grader.kernel.observers.trace import Counter


@dataclasses.dataclass
class _Stored:
    """Stores to one tensor, which may turn out to be the output."""

    operand: Operand
    writer: np.ndarray  # of each row, the last program
    stored: np.ndarray  # whether a program stored the row
    twice: np.ndarray  # whether two programs of one launch did
    otherwise: np.ndarray  # and stored different numbers
    rows: list[tuple[int, ...]] = dataclasses.field(default_factory=list)  # as in trace.PROGRAM
    twice_line: int = 0


class Stores:
    """Stores to every tensor of the output's kind, by the address where it starts."""

    def __init__(self) -> None:
        self._kernel = 0
        self._program = (0, 0, 0)
        self._serial = 0  # of the program that runs
        self._launched_at = 0  # that of the last before this launch
        self._by_start: dict[int, _Stored] = {}

    def launched(self, kernel: int) -> None:
        """Begin with a launch."""
        self._kernel, self._launched_at = kernel, self._serial

    def placed(self, x: int, y: int, z: int) -> None:
        """Begin with a program."""
        self._program = (x, y, z)
        self._serial += 1

    def note(
        self, start: int, tensor: Any, addresses: np.ndarray, changed: np.ndarray, line: int
    ) -> None:
        """Note a store to some elements of a tensor; `changed` had other numbers of a program's."""
        if start not in self._by_start:
            operand = Operand.of("out", tensor)
            count = operand.num_rows
            flags = (np.zeros(count, bool) for _ in range(3))
            self._by_start[start] = _Stored(operand, np.zeros(count, np.int64), *flags)
        found = self._by_start[start]
        ids = np.unique(found.operand.rows(addresses))
        ids = ids[ids >= 0]
        if not ids.size:
            return
        # What an earlier launch stored may be finished by the next.
        others = (found.writer[ids] > self._launched_at) & (found.writer[ids] != self._serial)
        found.twice[ids] |= others
        other = found.operand.rows(changed)
        found.otherwise[other[other >= 0]] = True
        if others.any() and not found.twice_line:
            found.twice_line = line
        found.stored[ids] = True
        found.writer[ids] = self._serial
        length = found.operand.size[2]
        head, first, last = ids[0] // length, ids[0] % length, ids[-1] % length
        found.rows.append((self._kernel, *self._program, head, first, last, line))

    def write(self, start: int, queries: int, arrays: dict[str, np.ndarray]) -> None:
        """Write what became of the output that starts there, if it has so many rows."""
        found = self._by_start.get(start)
        if found is None or found.operand.num_rows != queries:
            return
        arrays["stores"][:] = found.stored
        arrays["stores"][found.twice & ~found.otherwise] = 2
        arrays["counters"][Counter.STORED_TWICE] = int(found.twice.sum())
        arrays["counters"][Counter.STORED_OTHERWISE] = int(found.otherwise.sum())
        arrays["counters"][Counter.STORED_TWICE_LINE] = found.twice_line
        for row, values in zip(arrays["programs"], found.rows, strict=False):
            row[:] = values
