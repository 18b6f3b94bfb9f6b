"""Tells products of tiles by the rows that they hold: scores, weighted values, or neither."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events, flow, kinds
from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.notes import ASKING
from grader.kernel.machine.ttir import Operation, Type, operations
from grader.kernel.observers import trace
from grader.kernel.observers.combining import Nans
from grader.kernel.observers.knowledge import Note, Rows, Tile, as_dot, is_outer
from grader.kernel.observers.pairs import Pairs
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.record import Record, as_numpy
from grader.kernel.observers.stepping import Steps
from grader.kernel.observers.trace import OTHER, SCORES, Counter

_DOT, _SUM = "tt.dot", "arith.addf"
_MAXIMA = "arith.maximumf", "arith.maxnumf"
PRODUCT_OF = {"v": 0, "dout": 1, "q": 2, "k": 3}  # by the operand whose rows the weights multiply


class Products:
    """Counts the dots of a traced call, and reports each to the other observers."""

    def __init__(
        self,
        record: Record,
        pairs: Pairs,
        placement: Placement,
        nans: Nans,
        steps: Steps | None,
    ) -> None:
        self._record, self._steps = record, steps
        self._pairs, self._placement, self._nans = pairs, placement, nans
        self._dots: dict[tuple[int, ...], int] = {}
        self._replaced: dict[Operation, bool] = {}
        self._doubles: dict[Operation, bool] = {}
        # Programs of this launch that have computed a product which the next round replaces.
        self._lost: dict[tuple[Operation, int], np.ndarray] = {}

    def launched(self, event: events.Launched) -> None:
        self._lost.clear()

    def multiplied(self, event: events.Computed) -> Any:
        """Note a product of two tiles; return the note of its result."""
        (left, right), counters = event.types[:2], self._record.counters
        *batch, m, k = left.shape
        size = m, right.shape[-1], k
        count = math.prod(batch) * len(event.programs)
        counters[Counter.MULTIPLY_ADDS] += count * math.prod(size)
        if batch:  # whose rows are unknown
            counters[Counter.UNKNOWN_DOTS] += count
            self._count(count, OTHER, size, (0, 0))
            return None
        tiles = list(zip(event.notes, event.operands, event.types, strict=False))[:2]
        a, b = (_tile(*tile, len(event.programs)) for tile in tiles)
        product, tile = self._note(a, b, event)
        if product == OTHER:
            counters[Counter.UNKNOWN_DOTS] += count
            rows = [tile.axes[0] for tile in (a, b) if getattr(tile.note, "loaded", False)]
            if len(rows) == 2 and None not in rows and rows[0].of_queries != rows[1].of_queries:
                self._record.note_line(Counter.CROSSED_LINE)
        else:
            self._note_sum(event, product)
        self._count(count, product, size, tile)
        return self._made(event)

    def _made(self, event: events.Computed) -> Any:
        """Return the note of a dot's result, whose rows must be those of its accumulator."""
        (rows, inner), (other, columns) = map(_axes, event.notes[:2])
        self._nans.look(event, (rows, columns))
        if event.notes[2] is not None and (rows or columns):
            both = [event.notes[2], Note((rows, columns))]
            self._placement.meet(both, len(event.programs), event.types[2].shape)
        made = getattr(event.notes[2], "product", None)
        if inner and other and (rows or columns):
            values = other if rows else inner
            if values.operand in PRODUCT_OF:
                made = PRODUCT_OF[values.operand], self._record.where.line, values.column
        return Note((rows, columns), product=made) if rows or columns or made else None

    def reduced(self, event: events.Computed) -> Any:
        """Return the note of a reduction; a sum of elementwise products may be a dot."""
        note, axis = event.notes[0], event.op.number("axis")
        does = event.op.regions[0][0].operations[0].name
        adds = does == _SUM
        if adds and event.makers[0] is not None and event.makers[0].name == "arith.mulf":
            self._count_sum(event)
        if note is None or not any(note.axes):
            return None
        if note.is_of_pairs and note.axes[axis].of_queries:
            self._record.note_line(Counter.OVER_QUERIES_LINE)
        elif note.is_of_pairs and self._steps and does in _MAXIMA:
            self._steps.reduced(event)
        dot = as_dot(*note.factors, axis) if note.factors and adds else ()
        if dot:
            products = event.types[0].numel * len(event.programs)
            outer = is_outer([array for _, array, _ in note.factors], event.operands[0])
            # Combining has counted the products already.
            self._record.count_products(-products, of_elements=outer)
            into = None, torch.zeros((1, 1, 1)), event.types[-1]
            notes, operands, kinds = zip(*dot, into, strict=True)
            changed = {"notes": notes, "operands": operands, "types": (*kinds, event.types[-1])}
            return self.multiplied(dataclasses.replace(event, **changed))
        axes = (*note.axes[:axis], *note.axes[axis + 1 :])
        return Note(axes) if any(axes) else None

    def _count_sum(self, event: events.Computed) -> None:
        """Count a sum of products of a row and a tile, or of two rows, as multiply-adds.

        Sums of products of two tiles count as dots, where they are recognised.
        """
        products, dims = event.types[0].numel * len(event.programs), len(event.types[0].shape)
        if dims < 3:
            self._record.count_products(products, of_elements=True)
        if dims == 2:  # where Combining has counted them
            self._record.count_products(-products, of_elements=False)

    def _note(self, a: Tile, b: Tile, event: events.Computed) -> tuple[int, tuple[int, int]]:
        """Return the index of a product, and the size of its tile, queries by keys."""
        (rows, inner), (other, columns) = a.axes, b.axes
        record = self._record
        if inner is None and other is None and rows and columns:
            queries, keys = (rows, columns) if rows.of_queries else (columns, rows)
            if queries.of_queries and not keys.of_queries:
                pair = queries.operand, keys.operand
                self._placement.multiplied(queries, keys)
                if pair == ("q", "k"):
                    self._pairs.visit(queries, keys)
                    if self._steps:
                        self._steps.multiplied(event, queries, keys, record.where.line)
                elif pair in trace.MIXED:
                    record.note_line(Counter.MIXED_LINE)
                    record.counters[Counter.MIXED] = trace.MIXED.index(pair)
                return SCORES, (queries.ids.shape[1], keys.ids.shape[1])
        elif inner and other:
            # The weights are the left operand, or the right one.
            weights, values = (a, other) if rows else (b.turned, inner)
            sides = {lanes and lanes.of_queries for lanes in (*weights.axes, values)}
            if sides == {True, False} and values.operand in PRODUCT_OF:
                product = PRODUCT_OF[values.operand]
                if values.operand in ("v", "dout") and _infinite(weights, values):
                    record.note_line(Counter.INFINITE_LINE)
                if self._steps and values.operand == "v":
                    self._steps.weighted(event, weights, values, record.where.line, bool(rows))
                return product, self._pairs.take(weights, values, product)
        return OTHER, (0, 0)

    def _note_sum(self, event: events.Computed, product: int) -> None:
        """Note a product that loses the results of earlier rounds, or counts them twice."""
        if event.op not in self._doubles:
            self._doubles[event.op] = _doubles(event.op, event.loops)
        if self._doubles[event.op]:
            self._record.arrays["products"]["doubled"][product] = self._record.where.line
        if event.op not in self._replaced:
            self._replaced[event.op] = _is_replaced(event.op, event.loops)
        if self._replaced[event.op]:
            key, programs = (event.op, product), as_numpy(event.programs)
            had = self._lost.setdefault(key, np.zeros(self._record.programs, bool))
            lines = self._record.arrays["products"]["discarded"]
            if had[programs].any() and not lines[product]:
                lines[product] = self._record.where.line
            had[programs] = True

    def _count(
        self, number: int, product: int, size: tuple[int, int, int], tile: tuple[int, int]
    ) -> None:
        where = self._record.where
        key = where.line, self._record.kernel, product, *size, *tile, where.loop
        self._dots[key] = self._dots.get(key, 0) + number

    def write(self) -> None:
        rows = [(*key, count) for key, count in self._dots.items()]
        self._record.arrays["dots"][: len(rows)] = rows[: trace.LINES]
        if len(rows) > trace.LINES:  # dots beyond the table are unknown
            self._record.counters[Counter.UNKNOWN_DOTS] += 1


def _axes(note: Any) -> tuple[Rows | None, Rows | None]:
    return getattr(note, "axes", (None, None))


def _tile(note: Any, numbers: Tensor, type: Type, programs: int) -> Tile:
    pairs = zip(_axes(note), type.shape, strict=True)
    return Tile(note, tuple(rows and rows.lanes(programs, n) for rows, n in pairs), numbers)


def _infinite(weights: Tile, values: Rows) -> bool:
    """Whether a weight of a query and a key that exist is infinite."""
    found = weights.numbers.isinf()
    if not bool(found.any()):
        return False
    exist = (weights.axes[0].ids >= 0)[:, :, None] & (values.ids >= 0)[:, None, :]
    return bool((as_numpy(found) & exist).any())


def _is_replaced(op: Operation, loops: tuple[Operation, ...]) -> bool:
    """Whether nothing in the loop uses a result, so that the next round's replaces it."""
    if not loops:
        return False
    (result,), handed = op.results, [*flow.handed(loops[0])]
    carried = {value for value, other in handed if other == result}
    # A `while` passes its arguments from the condition to the body.
    carried |= {value for value, other in handed if other in carried}
    inside = (one for region in loops[0].regions for one in operations(region))
    uses = (one.operands for one in inside if one.name not in (ASKING, *kinds.PASSING))
    return bool(carried) and carried.union((result,)).isdisjoint(itertools.chain(*uses))


def _doubles(op: Operation, loops: tuple[Operation, ...]) -> bool:
    """Whether a loop adds a dot's accumulator, its third operand, once more to the result."""
    if not loops or len(loops[0].regions) > 1 or op.name != _DOT:
        return False
    (body,), (result,) = loops[0].regions[0], op.results
    made = {value: list(one.operands) for one in body.operations for value in one.results}
    sums = {one.results[0]: one for one in body.operations if one.name == _SUM}
    for carried, value in flow.handed(loops[0]):
        operands = sums[value].operands if value in sums else ()
        if result in operands:
            others = [operand for operand in operands if operand != result]
            parts = flow.reached([op.operands[2]], made), flow.reached(others, made)
            if all(carried in part for part in parts):
                return True
    return False
