"""Records which queries met which keys in a traced call, product by product."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from grader.kernel.machine import events
from grader.kernel.observers.knowledge import Rows, Tile
from grader.kernel.observers.record import Record
from grader.kernel.observers.trace import (
    OF_PAIRS,
    OPERANDS,
    SCORES,
    SEVERAL_LINES,
    SOURCE_LINES,
    Counter,
)


class Pairs:
    """Writes tiles of scores, and products of weights with values, into the arrays of a trace."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._owner = np.zeros(record.shape.pairs, np.int32)  # scratch: a program of each pair
        # By product and first column of the tile: a loop may cover head_dim in parts.
        self._taken: dict[tuple[int, int], np.ndarray] = {}  # in this launch
        self._first: dict[int, int] = {}  # by product: the column of the part that is counted
        self._numbers: dict[int, int] = {0: 0}  # of lines

    def launched(self, event: events.Launched) -> None:
        """Begin a launch: pairs that an earlier one took do not count as taken twice."""
        self._taken.clear()

    def count(self, there: np.ndarray, places: np.ndarray) -> None:
        """Count the pairs at `places` in the lanes `there`, once for each program."""
        table = self._record.arrays["visits"][self._record.kernel].reshape(-1)
        for (some,) in self._parted(there, places):
            _add(table, some)

    def visit(self, queries: Rows, keys: Rows) -> None:
        """Note a tile of scores."""
        shape = self._record.shape
        rows, columns = _of_its_head(queries, shape.seqlen_q), _of_its_head(keys, shape.seqlen_k)
        self._note_heads("k_heads", queries, keys, rows, columns)
        self.count(_crossed(rows, columns), self._places(queries, keys))

    def take(self, weights: Tile, values: Rows, product: int) -> tuple[int, int]:
        """Note which pairs have an unmasked weight in a product with rows of `values`.

        The product keeps the first axis of the weights. `product` is an index in `PRODUCTS`.

        Returns:
            The size of the tile, queries by keys.
        """
        record, shape, (free, own) = self._record, self._record.shape, weights.axes
        size = free.ids.shape[1], values.ids.shape[1]
        if own.of_queries != values.of_queries:
            record.note_line(Counter.TURNED_LINE)
            record.counters[Counter.TURNED] = OPERANDS.index(values.operand)
            return size
        if not weights.note.weights:
            record.arrays["products"]["bare"][product] = record.where.line
        if weights.note.decided:
            record.arrays["products"]["bare"][SCORES] = weights.note.decided
        lengths = shape.seqlen_k, shape.seqlen_q
        self._note_apart(own, values, lengths[values.of_queries])
        kept = _of_its_head(free, lengths[not values.of_queries])
        summed = _of_its_head(values, lengths[values.of_queries])
        places = self._places(free, values)
        if values.of_queries:
            places = self._places(values, free).swapaxes(1, 2)
        self._reach_on(product, places, (free.ids >= 0, values.ids >= 0), (kept, summed))
        taken, mask = ~weights.of_pairs("hidden", False), weights.of_pairs("mask", np.uint8(0))
        if values.operand == "v" and not summed.all():
            number = int((taken & _crossed(kept, ~summed)).sum())
            if number:
                record.counters[Counter.PADDING_TAKEN] += number
                record.note_line(Counter.PADDING_LINE)
        # Lanes with clamped indices hold the last row again: along the kept axis they only repeat
        # its result, along the summed axis each of them counts.
        first = _first_lanes(free.ids, kept)
        if first is not None:
            kept = kept & (first == np.arange(size[0]))
        times, first = taken.view(np.uint8), _first_lanes(values.ids, summed)
        if first is not None:
            times, mask = _merged(first, taken & _crossed(kept, summed), mask)
            summed = summed & (first == np.arange(size[1]))
        if values.operand == "v":
            self._note_heads("v_heads", free, values, kept, summed)
        there = _crossed(kept, summed)
        for column in np.unique(values.column).tolist():
            here = there & (values.column == column)[:, None, None]
            for part in self._parted(here, places, times, mask):
                self._note(product, column, self._number(weights.note.mask_line), *part)
        return size[::-1] if values.of_queries else size

    def _note_apart(self, own: Rows, values: Rows, length: int) -> None:
        """Note programs in which weights meet other rows than their own, or rows of other heads."""
        record, both = self._record, (values.ids >= 0) & (own.ids >= 0)
        rows_differ = (both & (own.ids % length != values.ids % length)).any(1)
        if rows_differ.any():
            record.counters[Counter.MISMATCHED] += int(rows_differ.sum())
            record.note_line(Counter.MISMATCHED_LINE)
        if ((both & (own.ids != values.ids)).any(1) & ~rows_differ).any():
            record.note_line(Counter.HEADS_APART_LINE)
            record.counters[Counter.HEADS_APART] = OPERANDS.index(values.operand)

    def _note(
        self,
        product: int,
        column: int,
        mask_line: int,
        places: np.ndarray,
        times: np.ndarray,
        mask: np.ndarray,
    ) -> None:
        """Note pairs that a program takes `times`, or that are masked; no place occurs twice."""
        taken, arrays = times > 0, self._record.arrays
        tables = {name: arrays[name][product].reshape(-1) for name in OF_PAIRS}
        tables["met"][places] = 1
        loop = self._number(self._record.where.loop)
        if (product, column) not in self._taken:
            self._taken[product, column] = np.zeros(self._record.shape.pairs, bool)
        known = self._taken[product, column]
        before = known[places]
        again = places[before & taken | (times > 1)]
        tables["twice"][again] = 1
        tables["again_at"][again] = loop
        tables["taken_at"][places[taken & ~before]] = loop
        some = places[taken]
        known[some] = True
        if self._first.setdefault(product, column) == column:
            _add(tables["takes"], some)
        else:
            tables["takes"][some] |= tables["takes"][some] == 0
        if mask.any():
            masked = mask > 0
            some = places[masked]
            tables["masks"][some] |= mask[masked]
            earlier = tables["masked_at"][some]
            other = (earlier > 0) & (earlier != mask_line)
            tables["masked_at"][some] = np.where(other, SEVERAL_LINES, mask_line)

    def _note_heads(
        self, name: str, queries: Rows, keys: Rows, rows: np.ndarray, columns: np.ndarray
    ) -> None:
        """Note which heads of keys meet which heads of queries."""
        shape, table = self._record.shape, self._record.arrays[name]
        q_heads, k_heads = queries.ids // shape.seqlen_q, keys.ids // shape.seqlen_k
        for head in np.unique(k_heads[columns]):
            met = (columns & (k_heads == head)).any(1)
            table[q_heads[rows & met[:, None]], head] = 1

    def _places(self, queries: Rows, keys: Rows) -> np.ndarray:
        """Return the place of each pair of lanes in a table of pairs."""
        length = self._record.shape.seqlen_k
        return (queries.ids * length)[:, :, None] + (keys.ids % length)[:, None, :]

    def _parted(self, there: np.ndarray, *tiles: np.ndarray) -> Iterator[list[np.ndarray]]:
        """Yield the values of tiles, places first, in some lanes; per program if places repeat."""
        if not there.any():
            return
        places = tiles[0][there]
        programs = np.arange(len(there)).repeat(there.reshape(len(there), -1).sum(1))
        self._owner[places] = programs
        if (self._owner[places] == programs).all():
            yield [places, *(tile[there] for tile in tiles[1:])]
        else:
            for own, *parts in zip(there, *tiles, strict=True):
                yield [part[own] for part in parts]

    def _reach_on(
        self, product: int, places: np.ndarray, every: tuple[Any, Any], own: tuple[Any, Any]
    ) -> None:
        """Note pairs of lanes that reach into rows of the next head as unsure.

        A kernel may treat all heads as one sequence of rows, mask such pairs and never store their
        results; or it may use them on purpose.
        """
        rows, columns = (lanes & ~its for lanes, its in zip(every, own, strict=True))
        if rows.any() or columns.any():
            there = _crossed(rows, every[1]) | _crossed(every[0], columns)
            self._record.arrays["unsure"][product].reshape(-1)[places[there]] = 1

    def _number(self, line: int) -> int:
        """Return the number of a line in the table of lines, 0 when that is full."""
        if line not in self._numbers and len(self._numbers) < SOURCE_LINES:
            self._record.arrays["lines"]["line"][len(self._numbers)] = line
            self._numbers[line] = len(self._numbers)
        return self._numbers.get(line, 0)


def _crossed(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return rows[:, :, None] & columns[:, None, :]


def _add(table: np.ndarray, places: np.ndarray) -> None:
    """Increment the counts at places; they saturate and do not wrap around."""
    counts = table[places]
    table[places] = counts + (counts < np.iinfo(table.dtype).max)


def _of_its_head(rows: Rows, length: int) -> np.ndarray:
    """Return which lanes of each program are rows, without those of the next head.

    Consecutive rows may run on from one head into the next. A tile whose rows are not consecutive
    has several heads by design.
    """
    there = rows.ids >= 0
    heads = np.where(there, rows.ids // length, -1)
    some = np.where(there, heads, heads.max(1, keepdims=True))
    for program in np.flatnonzero((some != heads.max(1, keepdims=True)).any(1)):
        ids = rows.ids[program, there[program]]
        if (np.diff(ids) == 1).all():
            there[program] &= heads[program] == ids[0] // length
    return there


def _first_lanes(ids: np.ndarray, there: np.ndarray) -> np.ndarray | None:
    """Return for each lane the first one of its program with the same row, None if all differ."""
    count = np.arange(ids.shape[1])
    lanes = np.where(there, ids, -1 - count)
    order = np.argsort(lanes, axis=1, kind="stable")
    ordered = np.take_along_axis(lanes, order, 1)
    begins = np.ones(lanes.shape, bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    if begins.all():
        return None
    starts = np.maximum.accumulate(np.where(begins, count, 0), axis=1)
    first = np.empty_like(order)
    np.put_along_axis(first, order, np.take_along_axis(order, starts, 1), 1)
    return first


def _merged(first: np.ndarray, taken: np.ndarray, mask: np.ndarray) -> tuple[np.ndarray, ...]:
    """Merge lanes of one row along the last axis; return how many of them are taken, and the mask.

    The results of a row are in its first lane.
    """
    programs, rows = np.ogrid[: len(taken), : taken.shape[1]]
    index: Any = programs[:, :, None], rows[:, :, None], first[:, None, :]
    times, most = np.zeros(taken.shape, np.int64), np.zeros(mask.shape, np.uint8)
    np.add.at(times, index, taken)
    np.maximum.at(most, index, mask)
    return times, most
