"""What tiles are multiplied, by the rows that they hold: scores, weighted values, or neither."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.kernel.observers import trace
from grader.kernel.observers.lineage import rounded_at
from grader.kernel.observers.lines import Where
from grader.kernel.observers.nans import Nans
from grader.kernel.observers.pairs import Pairs
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.sums import Sums
from grader.kernel.observers.trace import Counter


class Products:
    """Counts the dots of a traced call, and tells the rooms beside it of each."""

    def __init__(
        self,
        arrays: dict[str, np.ndarray],
        lines: Where,
        pairs: Pairs,
        sums: Sums,
        placement: Placement,
        nans: Nans,
    ) -> None:
        self._table = arrays["dots"]
        self._counters = arrays["counters"]
        self._lines = lines
        self._pairs = pairs
        self._sums = sums
        self._placement = placement
        self._nans = nans
        self._kernel = 0
        self.wide = False  # the inputs have 32 bits: operands of 16 lose some
        self._dots: dict[tuple[int, ...], int] = {}

    def multiplied(self, result: Any, a: Any, b: Any, d: Any, kernel: int) -> int:
        """Note a product of two tiles, and which rows its result has; return which product."""
        self._kernel = kernel
        self._note_narrow(a, b)
        if a.data.ndim != 2:
            self._note_batch(a, b)
            return trace.OTHER
        m, k = a.data.shape
        n = b.data.shape[1]
        self._counters[Counter.MULTIPLY_ADDS] += m * n * k
        tags_a, tags_b = tags_of(a), tags_of(b)
        result.tags = (tags_a[0], tags_b[1])
        product = self._note_dot(a, b, tags_a, tags_b, (m, n, k))
        self._sums.multiplied(result, product, self._lines.running(), self._lines.loop())
        made = None
        if product < len(trace.PRODUCTS):
            values = tags_b[0] if tags_b[0] is not None and tags_a[0] is not None else tags_a[1]
            made = product, self._lines.running(), values.column
        result.product = made or getattr(d, "product", None)
        self._nans.look(result, [a, b, d], "dot", self._lines.running)
        return product

    def _note_dot(self, a: Any, b: Any, tags_a: tuple, tags_b: tuple, size: tuple) -> int:
        product, tile = trace.OTHER, (0, 0)
        if tags_a[1] is None and tags_b[0] is None and tags_a[0] and tags_b[1]:
            queries, keys = tags_a[0], tags_b[1]
            if not queries.of_queries:
                queries, keys = keys, queries
            if queries.of_queries and not keys.of_queries:
                product, tile = trace.SCORES, (queries.ids.size, keys.ids.size)
                pair = (queries.operand, keys.operand)
                self._placement.multiplied(queries.column, keys.column, self._lines.running())
                if pair == ("q", "k"):
                    self._pairs.visit(self._kernel, queries, keys)
                elif pair in trace.MIXED:
                    self._counters[Counter.MIXED_LINE] = self._lines.running()
                    self._counters[Counter.MIXED] = trace.MIXED.index(pair)
        elif tags_a[1] and tags_b[0]:
            left = tags_a[0] is not None  # the weights are the left operand
            weights, tags = (a, tags_a) if left else (b, tags_b[::-1])
            values = tags_b[0] if left else tags_a[1]
            names = {"v": 0, "dout": 1, "q": 2, "k": 3}
            if tags[0] and values.operand in names:
                product = names[values.operand]
                lines = self._lines.running(), self._lines.loop()
                if values.operand in ("v", "dout") and _infinite(weights, tags, values):
                    self._counters[Counter.INFINITE_LINE] = lines[0]
                tile = self._pairs.take(weights, tags, values, product, *lines, transposed=not left)
        if product == trace.OTHER:
            self._counters[Counter.UNKNOWN_DOTS] += 1
            rows = [tags[0] for x, tags in ((a, tags_a), (b, tags_b)) if hasattr(x, "loaded")]
            if len(rows) == 2 and None not in rows and rows[0].of_queries != rows[1].of_queries:
                self._counters[Counter.CROSSED_LINE] = self._lines.running()
        self._count_dots(1, product, size, tile)
        return product

    def _note_narrow(self, a: Any, b: Any) -> None:
        narrow = a.dtype.primitive_bitwidth == 16
        if narrow and self.wide and not self._counters[Counter.NARROW_LINE]:
            self._counters[Counter.NARROW_LINE] = self._lines.running()
        if not narrow and not self._counters[Counter.ROUNDED_LINE]:
            self._counters[Counter.ROUNDED_LINE] = rounded_at([a, b])

    def _note_batch(self, a: Any, b: Any) -> None:
        """Note a dot with three axes, as many dots of two: of whose rows is not known."""
        batch, m, k = a.data.shape
        n = b.data.shape[2]
        self._counters[Counter.MULTIPLY_ADDS] += batch * m * n * k
        self._counters[Counter.UNKNOWN_DOTS] += batch
        self._count_dots(batch, trace.OTHER, (m, n, k), (0, 0))

    def _count_dots(self, number: int, product: int, size: tuple, tile: tuple) -> None:
        key = (self._lines.running(), self._kernel, product, *size, *tile, self._lines.loop())
        self._dots[key] = self._dots.get(key, 0) + number

    def write(self) -> None:
        """Write the table of dots."""
        for row, (key, count) in zip(self._table, self._dots.items(), strict=False):
            *left, tile_q, tile_k, loop = key
            row[:] = *left, count, tile_q, tile_k, loop
        if len(self._dots) > trace.LINES:  # what is not written down was not seen
            self._counters[Counter.UNKNOWN_DOTS] += 1


def _infinite(weights: Any, tags: tuple, values: Any) -> bool:
    """Whether a weight of a query and a key that exist is infinite; `tags` begin with the row's."""
    if weights.data.dtype.kind != "f":
        return False
    found = np.isinf(weights.data)
    if not found.any():
        return False
    free, own = (rows.ids >= 0 for rows in (tags[0], values))
    found = found if found.shape == (free.size, own.size) else found.T
    return bool(found[free][:, own].any())


def tags_of(tile: Any) -> tuple:
    """Return what is known of the rows and the columns of a tile with two axes."""
    return getattr(tile, "tags", None) or (None, None)
