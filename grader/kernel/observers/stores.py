"""Records which program of a traced call stored which rows, and where it overwrote another's.

Stores do not add up: on a GPU the last one wins, whichever that is. A launch that also reads from
the tensor does not count, because it may hold a lock, nor do atomic operations. A later launch may
overwrite, and so finish, what an earlier one stored.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from grader.kernel.machine.tensors import extent, place_in
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.record import Record
from grader.kernel.observers.trace import GRADIENTS, Counter


@dataclasses.dataclass
class _Elements:
    """The last store to each element of a tensor: bits, and program, from 1 over all launches."""

    writer: np.ndarray
    bits: np.ndarray
    # Two programs, by these numbers, the line, x, y and z of each, and the elements of both.
    clash: tuple[int, int, int, Any, Any, np.ndarray] | None = None


class _Rows:
    """The stores to rows of a tensor that may turn out to be the output."""

    def __init__(self, operand: Operand) -> None:
        self.operand, count = operand, operand.num_rows
        self.writer = np.zeros(count, np.int64)
        self.twice, self.otherwise = np.zeros(count, bool), np.zeros(count, bool)
        self.twice_line = 0
        self.programs: list[np.ndarray] = []  # numbers, and columns as in trace.PROGRAM


class Stores:
    """Stores to every tensor, by the address where it starts."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._elements: dict[int, _Elements] = {}
        self._rows: dict[int, _Rows] = {}
        self._read: set[int] = set()  # starts of tensors that this launch has read

    def launched(self) -> None:
        self._read.clear()

    def loaded(self, start: int) -> None:
        """Note that programs read from the tensor that starts there."""
        self._read.add(start)
        found = self._elements.get(start)
        if found and found.clash and found.clash[0] > self._record.before:
            found.clash = None

    def stored(
        self, start: int, tensor: Any, programs: np.ndarray, ids: np.ndarray, bits: np.ndarray
    ) -> np.ndarray:
        """Note what programs store to elements of a tensor, one program after the other.

        Returns:
            Which elements had other bits from another program of the launch.
        """
        found, record = self._elements.get(start), self._record
        size = extent(tensor.shape, tensor.stride())
        if found is None or len(found.writer) != size:
            found = _Elements(np.zeros(size, np.int64), np.zeros(size, bits.dtype))
            self._elements[start] = found
        numbers = programs + record.before + 1
        writers, held = found.writer[ids], found.bits[ids]
        found.writer[ids] = numbers
        if (found.writer[ids] != numbers).any():  # programs store to the same elements
            found.writer[ids] = writers
            ends = [*np.flatnonzero(np.diff(numbers)) + 1, len(ids)]
            each = [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]
            parts = [self.stored(start, tensor, programs[i], ids[i], bits[i]) for i in each]
            return np.concatenate(parts)
        found.bits[ids] = bits
        over = (writers > record.before) & (writers != numbers) & (held != bits)
        if over.any() and found.clash is None and start not in self._read:
            first = int(over.argmax())
            one, other = int(writers[first]), int(numbers[first])
            both = over & (writers == one) & (numbers == other)
            places = (place_in(record.grid, n - record.before - 1) for n in sorted((one, other)))
            found.clash = one, other, record.where.line, *places, ids[both]
        return over

    def stored_rows(
        self, operand: Operand, programs: np.ndarray, rows: np.ndarray, over: np.ndarray
    ) -> None:
        """Note the rows of a tensor that programs store; `over` marks what overwrites others'."""
        record, found, count = self._record, self._rows.get(operand.start), operand.num_rows
        if found is None or found.operand.size != operand.size:
            found = self._rows[operand.start] = _Rows(operand)
        found.otherwise[rows[over & (rows >= 0)]] = True
        own, ids = np.divmod(np.unique((programs * count + rows)[rows >= 0]), count)
        if not ids.size:
            return
        _, place, times = np.unique(ids, return_inverse=True, return_counts=True)
        writer, numbers = found.writer[ids], own + record.before + 1
        others = (writer > record.before) & (writer != numbers) | (times[place] > 1)
        found.twice[ids] |= others
        if others.any() and not found.twice_line:
            found.twice_line = record.where.line
        found.writer[ids] = numbers  # the last of several
        first = np.flatnonzero(np.diff(own, prepend=-1))
        last = np.append(first[1:], len(own)) - 1
        heads, ends = ids[first] // operand.length, (ids[i] % operand.length for i in (first, last))
        row = record.kernel, *place_in(record.grid, own[first]), heads, *ends, record.where.line
        found.programs.append(np.stack(np.broadcast_arrays(numbers[first], *row)).T)

    def write(self, starts: dict[str, int], results: dict[str, Any]) -> None:
        """Write the stores to the output, and clashes in gradients, by their addresses."""
        arrays, counters = self._record.arrays, self._record.counters
        found = self._rows.get(starts.get("out", starts.get("y", 0)))
        if found is not None and len(found.writer) == self._record.shape.queries:
            arrays["stores"][:] = found.writer > 0
            arrays["stores"][found.twice & ~found.otherwise] = 2
            counters[Counter.STORED_TWICE] = int(found.twice.sum())
            counters[Counter.STORED_OTHERWISE] = int(found.otherwise.sum())
            counters[Counter.STORED_TWICE_LINE] = found.twice_line
            table = np.concatenate([*found.programs, np.zeros((0, 9), np.int64)])
            table = table[np.argsort(table[:, 0], kind="stable"), 1:][: len(arrays["programs"])]
            arrays["programs"][: len(table)] = list(map(tuple, table))
        for number, name in enumerate(GRADIENTS):
            elements, result = self._elements.get(starts.get(name, 0)), results.get(name)
            if elements is None or elements.clash is None or result.dim() not in (1, 4):
                continue
            operand, (*_, line, one, other, ids) = Operand.of(name, result), elements.clash
            rows = operand.locate(starts[name] + ids * result.element_size())[0]
            rows = rows[rows >= 0]
            if rows.size:
                rows = rows[rows // operand.length == rows[0] // operand.length]
                ends = int(rows.min()) + 1, int(rows.max()) + 1
                arrays["overwritten"][number] = line, *one, *other, *ends
