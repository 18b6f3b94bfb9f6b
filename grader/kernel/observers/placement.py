"""Checks which rows meet in a tile, and where a kernel stores the results of a row."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from grader.kernel.observers.knowledge import Note, Rows
from grader.kernel.observers.places import Touched
from grader.kernel.observers.record import Record, as_numpy
from grader.kernel.observers.trace import MADE, OUTPUTS, PRODUCTS, SCRATCH, STATISTIC, TAGGED


class Placement:
    """Notes the first rows that meet wrongly, and for each output the first row stored astray."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._apart, self._columns = record.arrays["apart"], record.arrays["columns"]
        # By a tensor's address: the product stored there, its line and its first column; for a row
        # stored astray line, row and place, whether it is a query's, and whether the tensor is 3-D.
        self._products: dict[int, tuple[int, int, int] | None] = {}
        self._astray: dict[int, tuple[tuple[int, int, int], bool, bool]] = {}

    def meet(self, known: list[Note], programs: int, shape: tuple[int, ...]) -> None:
        """Note where an operation combines tiles with different rows at the same places."""
        if len(known) < 2 or any(self._apart[0]):
            return
        for pair in itertools.combinations(known, 2):
            axes = [
                [
                    rows and rows.lanes(programs, length)
                    for rows, length in zip(note.axes, shape, strict=True)
                ]
                for note in pair
            ]
            if len(shape) == 2 and (self._cross(*axes) or self._cross(*axes[::-1])):
                return
            for axis, (one, other) in enumerate(zip(*axes, strict=True)):
                found = _differ(one.ids, other.ids) if _comparable(one, other) else None
                if found is None:
                    continue
                plane, across = 0, None
                if len(shape) == 2:
                    across = axes[0][1 - axis] or axes[1][1 - axis]
                if across and not across.of_queries and across.ids[found[0]].max() >= 0:
                    plane = int(across.ids[found[0]].max()) // self._record.shape.seqlen_k + 1
                weights = any(note.weights for note in pair)
                self._note_apart(one, other, one.ids[found], other.ids[found], plane, weights)
                return

    def _cross(self, numbers: list[Rows | None], tile: list[Rows | None]) -> bool:
        """Note where `numbers`, one for each query, lie along the axis of keys of a tile of pairs.

        They belong along its other axis, that of the queries.
        """
        for axis, (one, other) in enumerate(zip(numbers, tile, strict=True)):
            across = tile[1 - axis]
            if one is None or other is None or across is None or numbers[1 - axis] is not None:
                continue
            if one.operand == STATISTIC and not other.of_queries and across.of_queries:
                self._note_apart(one, other, one.ids[0].max(), other.ids[0].max(), 0, axis)
                return True
        return False

    def _note_apart(self, one: Any, other: Any, row: Any, other_row: Any, *more: int) -> None:
        kinds = TAGGED.index(one.operand), TAGGED.index(other.operand)
        rows = int(row) + 1, int(other_row) + 1
        self._apart[0] = self._record.where.line, *kinds, *rows, *more

    def multiplied(self, one: Rows, other: Rows) -> None:
        """Note a dot over head_dim of tiles that begin at different columns."""
        where = np.flatnonzero(one.column != other.column)
        if where.size and not any(self._columns[0]):
            columns = one.column[where[0]], other.column[where[0]]
            self._columns[0] = self._record.where.line, *columns

    def store(
        self, touched: Touched, tensor: Any, note: Any, rows: np.ndarray, columns: np.ndarray
    ) -> None:
        """Note which rows and columns of a tensor each lane of a tile of results is stored to.

        The tensor has the axes (batch, heads, rows), or these and columns; `note` is the tile's.
        """
        start, active = touched.start, touched.active
        if tensor.dim() == 4:
            self._store_product(start, getattr(note, "product", None), active, columns)
        for axis, held in enumerate(getattr(note, "axes", ())):
            known = start in self._astray or held is None or held.operand in MADE
            if known or not self._is_of(tensor, held):
                continue
            others = tuple(other + 1 for other in range(rows.ndim - 1) if other != axis)
            found = np.where(active, rows, -1).max(axis=others)
            ids = held.lanes(*found.shape).ids
            where = _differ(ids, found)
            if where is not None:
                written = self._record.where.line, int(ids[where]) + 1, int(found[where]) + 1
                self._astray[start] = written, held.of_queries, tensor.dim() == 3

    def _store_product(
        self, start: int, made: Any, active: np.ndarray, columns: np.ndarray
    ) -> None:
        if made is None:
            if self._products.setdefault(start) is not None:
                self._products[start] = None
            return
        first = as_numpy(made[2].expand(len(active)))
        for column in np.unique(first):
            product = *made[:2], int(column)
            if self._products.setdefault(start, product) != product:
                self._products[start] = None
        stored = np.where(active, columns, 2**31).reshape(len(active), -1).min(1)
        where = np.flatnonzero((stored != first) & (stored < 2**31))
        if where.size and not any(self._columns[1]):
            self._columns[1] = self._record.where.line, first[where[0]], stored[where[0]]

    def _is_of(self, tensor: Any, rows: Rows) -> bool:
        """Whether a tensor has a place for each row of q, or for each of k."""
        shape = self._record.shape
        sizes = (shape.num_q_heads, shape.seqlen_q), (shape.num_kv_heads, shape.seqlen_k)
        heads, length = sizes[not rows.of_queries]
        return tuple(tensor.shape[:3]) == (shape.batch, heads, length)

    def write(self, starts: dict[str, int]) -> None:
        """Write what was stored astray in outputs, by the addresses in `starts`."""
        misplaced = self._record.arrays["misplaced"]
        for name, start in starts.items():
            written, of_queries, _ = self._astray.get(start, ((0, 0, 0), False, False))
            if name in OUTPUTS and written[0] and of_queries == (name in ("out", "lse", "dq")):
                misplaced[OUTPUTS.index(name)] = written
            product = self._products.get(start)
            if name in PRODUCTS and product is not None and PRODUCTS[product[0]] != name:
                stored = self._record.arrays["products"][PRODUCTS.index(name)]
                stored["stored"], stored["stored_line"] = product[0] + 1, product[1]
        for start, (written, _, scratch) in self._astray.items():
            if scratch and start not in starts.values():
                misplaced[OUTPUTS.index(SCRATCH)] = written


def _comparable(one: Rows | None, other: Rows | None) -> bool:
    """Whether two tiles must hold the same rows along an axis."""
    if one is None or other is None:
        return False
    kinds = {one.operand, other.operand}  # a tensor with the shape of out may be another one
    return one.of_queries == other.of_queries and ("out" not in kinds or "dout" in kinds)


def _differ(one: np.ndarray, other: np.ndarray) -> tuple[int, int] | None:
    """Return the first program and place where two tiles hold different rows, None if none.

    A row that a tile has more than once is no evidence: lanes past an end may be clamped to it.
    """
    differ = (one != other) & (one >= 0) & (other >= 0)
    for program in np.flatnonzero(differ.any(1)):
        places = np.flatnonzero(differ[program])
        for ids in (one[program], other[program]):
            _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
            places = places[counts[inverse.reshape(-1)][places] == 1]
        if places.size:
            return int(program), int(places[0])
    return None
