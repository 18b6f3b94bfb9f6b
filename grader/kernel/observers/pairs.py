"""Which queries met which keys: the pairs of a traced call, product by product."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.kernel.observers.lineage import Rows, joined
from grader.kernel.observers.trace import OPERANDS, SEVERAL_LINES, SOURCE_LINES, Counter, TraceShape

_MOST = 255  # what a count of pairs holds


class Pairs:
    """Writes tiles of scores, and products of weights with values, into the arrays of a trace."""

    def __init__(self, shape: TraceShape, arrays: dict[str, np.ndarray]) -> None:
        self._shape = shape
        self._arrays = arrays
        self._counters = arrays["counters"]
        # By product and first column of the tile: head_dim may be gone through in parts.
        self._taken: dict[tuple[int, int], np.ndarray] = {}  # in this launch
        self._first: dict[int, int] = {}  # by product: the column of the part that is counted
        self._numbers: dict[int, int] = {0: 0}  # of lines

    def launched(self) -> None:
        """Begin with a launch: what another took is not taken twice."""
        self._taken.clear()

    def visit(self, kernel: int, queries: Rows, keys: Rows) -> None:
        """Note a tile of scores."""
        shape = self._shape
        q = queries.ids[_of_its_head(queries.ids, shape.seqlen_q)]
        k = keys.ids[_of_its_head(keys.ids, shape.seqlen_k)]
        if q.size and k.size:
            add_saturating(self._arrays["visits"][kernel], np.ix_(q, k % shape.seqlen_k), 1)
            heads = np.ix_(np.unique(q // shape.seqlen_q), np.unique(k // shape.seqlen_k))
            self._arrays["k_heads"][heads] = 1

    def take(
        self,
        weights: Any,
        tags: tuple,
        values: Rows,
        product: int,
        line: int,
        loop: int,
        *,
        transposed: bool,
    ) -> tuple[int, int]:
        """Note which pairs have a weight that is not masked in a product with `values`.

        Args:
            weights: the handle of the weights.
            tags: what they hold along their axes, the one that is kept first.
            values: what the rows of the other operand are.
            product: index in `PRODUCTS`.
            line: that of the product.
            loop: that of the loop around it.
            transposed: whether `weights` has its axes the other way round.

        Returns:
            The size of the tile, queries by keys.
        """
        shape = self._shape
        hidden = getattr(weights, "hidden", None)
        taken = np.ones(weights.data.shape, bool) if hidden is None else ~hidden
        mask = joined(np.zeros(taken.shape, np.uint8), getattr(weights, "mask", None), np.maximum)
        if transposed:
            taken, mask = taken.T, mask.T
        free, own = tags[0], tags[1]  # axes of the weights: kept, and summed over
        if own.of_queries != values.of_queries:
            self._counters[Counter.TURNED_LINE] = line
            self._counters[Counter.TURNED] = OPERANDS.index(values.operand)
            return free.ids.size, values.ids.size
        lengths = shape.seqlen_k, shape.seqlen_q
        length = lengths[values.of_queries]
        kept = _of_its_head(free.ids, lengths[not values.of_queries])
        summed = _of_its_head(values.ids, length)
        self._reach_on(product, free, values, kept, summed)
        both = (values.ids >= 0) & (own.ids >= 0)
        if (own.ids[both] % length != values.ids[both] % length).any():
            self._counters[Counter.MISMATCHED] += 1
            self._counters[Counter.MISMATCHED_LINE] = line
        elif (own.ids[both] != values.ids[both]).any():
            self._counters[Counter.HEADS_APART_LINE] = line
            self._counters[Counter.HEADS_APART] = OPERANDS.index(values.operand)
        if values.operand == "v" and taken[kept][:, ~summed].any():
            self._counters[Counter.PADDING_TAKEN] += int(taken[kept][:, ~summed].sum())
            self._counters[Counter.PADDING_LINE] = line
        part, mask = taken[kept][:, summed], mask[kept][:, summed]
        # Lanes whose indices were clamped hold the last row again: as a row of the result it is
        # that row once more, as one that is summed over it counts as often as it is taken.
        rows, first = np.unique(free.ids[kept], return_index=True)
        columns, part, mask, twice = _each_once(values.ids[summed], part[first], mask[first])
        if values.of_queries:  # the weights are transposed: keys are kept, queries summed over
            rows, columns, part, mask, twice = columns, rows, part.T, mask.T, twice.T
        if rows.size and columns.size:
            table = self._arrays["takes"][product]
            columns_of_head = columns % shape.seqlen_k
            index = np.ix_(rows, columns_of_head)
            self._arrays["met"][product][index] = 1
            column = values.column
            self._note_twice((product, column), index, part, twice, self._number(loop))
            if self._first.setdefault(product, column) == column:
                add_saturating(table, index, part)
            else:
                table[index] = np.maximum(table[index], part)
            self._arrays["masks"][product][index] |= mask
            number = self._number(getattr(weights, "mask_line", 0))
            earlier = self._arrays["masked_at"][product][index]
            another = (mask > 0) & (earlier > 0) & (earlier != number)
            _note_line(self._arrays["masked_at"][product], index, mask > 0, number)
            _note_line(self._arrays["masked_at"][product], index, another, SEVERAL_LINES)
            if values.operand == "v":
                heads = np.ix_(
                    np.unique(rows // shape.seqlen_q), np.unique(columns // shape.seqlen_k)
                )
                self._arrays["v_heads"][heads] = 1
        size = free.ids.size, values.ids.size
        return size if not values.of_queries else size[::-1]

    def _reach_on(
        self, product: int, free: Rows, values: Rows, kept: np.ndarray, summed: np.ndarray
    ) -> None:
        """Note the pairs of lanes that are rows of the head behind the tile's own.

        A kernel that takes all heads for one sequence of rows masks them, and stores none of them;
        or it means them.
        """
        lanes = ((free.ids, kept), (values.ids, summed))
        (rows, own_rows), (columns, own_columns) = lanes[::-1] if values.of_queries else lanes
        every_row, every_column = rows >= 0, columns >= 0
        for some_rows, some_columns in (
            (every_row & ~own_rows, every_column),
            (every_row, every_column & ~own_columns),
        ):
            if some_rows.any() and some_columns.any():
                index = np.ix_(rows[some_rows], columns[some_columns] % self._shape.seqlen_k)
                self._arrays["unsure"][product][index] = 1

    def _note_twice(
        self, part_of: tuple[int, int], index: Any, part: np.ndarray, twice: np.ndarray, loop: int
    ) -> None:
        product, _ = part_of
        table = self._arrays["twice"][product]
        taken = self._taken.setdefault(part_of, np.zeros(table.shape, bool))
        again = taken[index] & part | twice
        table[index] |= again
        _note_line(self._arrays["again_at"][product], index, again, loop)
        _note_line(self._arrays["taken_at"][product], index, part & ~taken[index], loop)
        taken[index] |= part

    def _number(self, line: int) -> int:
        """Return the number of a line in the table of lines, 0 when that is full."""
        if line not in self._numbers and len(self._numbers) < SOURCE_LINES:
            self._arrays["lines"][len(self._numbers)] = line
            self._numbers[line] = len(self._numbers)
        return self._numbers.get(line, 0)


def _of_its_head(ids: np.ndarray, length: int) -> np.ndarray:
    """Return which lanes of a tile are rows, without those of the next head.

    Rows that follow each other may run on from one head into the next. Where they do not follow
    each other, a tile is of several heads by design.
    """
    there = ids >= 0
    rows = ids[there]
    if rows.size < 2 or rows[0] // length == rows[-1] // length or (np.diff(rows) != 1).any():
        return there
    return there & (ids // length == rows[0] // length)


def _each_once(
    ids: np.ndarray, part: np.ndarray, mask: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the rows of a summed axis, without repetition, what is taken, masked, taken twice."""
    unique, first, place = np.unique(ids, return_index=True, return_inverse=True)
    if len(unique) == len(ids):
        return unique, part[:, first], mask[:, first], np.zeros_like(part)
    times = np.zeros((len(part), len(unique)), np.int64)
    most = np.zeros(times.shape, np.uint8)
    np.add.at(times, (slice(None), place), part)
    np.maximum.at(most, (slice(None), place), mask)
    return unique, times > 0, most, times > 1


def add_saturating(table: np.ndarray, index: Any, part: Any) -> None:
    """Add `part` to the counts at `index`; they stay at the largest rather than begin anew."""
    table[index] = np.minimum(table[index].astype(np.uint16) + part, _MOST)


def _note_line(table: np.ndarray, index: Any, where: np.ndarray, number: int) -> None:
    if where.any():
        table[index] = np.where(where, np.uint8(number), table[index])
