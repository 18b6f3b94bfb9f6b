"""Which rows meet in a tile, and where what is made of a row is stored."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from grader.kernel.observers.lineage import MADE, Rows
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.trace import OUTPUTS, PRODUCTS, SCRATCH, STATISTIC, TAGGED, TraceShape


@dataclasses.dataclass(frozen=True)
class _Astray:
    """The first row that was stored where the result of another belongs.

    Attributes:
        line: that of the store.
        row: of which row the result is made, numbered from 0.
        place: where it was stored to.
        of_queries: whether these are rows of queries, else of keys.
        scratch: whether the tensor has a number for each row, as lse and delta have.
    """

    line: int
    row: int
    place: int
    of_queries: bool
    scratch: bool

    @property
    def written(self) -> tuple[int, int, int]:
        """As in trace.MISPLACED, where rows count from 1."""
        return self.line, self.row + 1, self.place + 1


class Placement:
    """Notes the first rows that do not belong together, and for each output the first astray."""

    def __init__(self, shape: TraceShape, arrays: dict[str, np.ndarray]) -> None:
        self._shape = shape
        self._apart = arrays["apart"]
        self._misplaced = arrays["misplaced"]
        self._stored_products = arrays["stored_products"]
        self._columns = arrays["columns"]
        # By the address where a tensor starts:
        self._products: dict[int, tuple[int, int, int] | None] = {}  # product, line, first column
        self._astray: dict[int, _Astray] = {}

    def _has_a_number_for_each_query(self, tensor: Any) -> bool:
        """Whether a dense tensor is of (batch, heads, rows), rows last; the first may be one."""
        sizes = [n for n in tensor.shape if n != 1]
        whole = tensor.is_contiguous() and tensor.numel() == self._shape.queries
        return whole and sizes[-1:] == [self._shape.seqlen_q]

    def meet(self, handles: list[Any], line: int) -> None:
        """Note where tiles are combined that hold other rows at the same places."""
        if self._apart.any():
            return
        known = [handle for handle in handles if getattr(handle, "tags", None) is not None]
        for first, second in itertools.combinations(known, 2):
            crossed = _crossed(first, second)
            if crossed is not None:
                one, other, axis = crossed
                met = TAGGED.index(one.operand), TAGGED.index(other.operand)
                ids = (int(rows.ids.max()) + 1 for rows in (one, other))
                self._apart[:] = (line, *met, *ids, 0, axis)
                return
            for one, other, keys in _shared(first, second):
                where = _differ(one.ids, other.ids)
                if where is None:
                    continue
                plane = -1
                if keys is not None and not keys.of_queries and keys.ids.max() >= 0:
                    plane = int(keys.ids.max()) // self._shape.seqlen_k
                weights = any(getattr(handle, "weights", False) for handle in (first, second))
                self._apart[:] = (
                    *(line, TAGGED.index(one.operand), TAGGED.index(other.operand)),
                    *(int(one.ids[where]) + 1, int(other.ids[where]) + 1, plane + 1, int(weights)),
                )
                return

    def multiplied(self, one: int, other: int, line: int) -> None:
        """Note a dot over head_dim of tiles that begin at these columns."""
        if one != other and not self._columns[0].any():
            self._columns[0] = line, one, other

    def store(self, start: int, tensor: Any, value: Any, places: Any, line: int) -> None:
        """Note which rows of `tensor` a tile of results is stored to.

        Args:
            start: where the tensor begins.
            tensor: what is stored to; of (batch, heads, rows) or (batch, heads, rows, columns).
            value: the handle that is stored.
            places: its addresses, and which of them are active.
            line: that of the store.
        """
        product = getattr(value, "product", None)
        if tensor.dim() == 4 and self._products.setdefault(start, product) != product:
            self._products[start] = None
        if tensor.dim() == 4 and product is not None and not self._columns[1].any():
            column = int(Operand.of("out", tensor).locate(places[0])[1][places[1]].min())
            if column != product[2]:
                self._columns[1] = line, product[2], column
        tags = getattr(value, "tags", None)
        if start in self._astray or tags is None or tensor.dim() not in (3, 4):
            return
        whole = tensor if tensor.dim() == 4 else tensor[..., None]
        addresses, active = places
        for axis, rows in enumerate(tags):
            if rows is None or rows.operand in MADE or not self._is_of(tensor, rows):
                continue
            found = Operand.of("out", whole).rows(addresses)
            others = tuple(other for other in range(found.ndim) if other != axis)
            found = np.where(active, found, -1).max(axis=others)
            where = _differ(rows.ids, found)
            if where is not None:
                row, place = int(rows.ids[where]), int(found[where])
                scratch = tensor.dim() == 3
                self._astray[start] = _Astray(line, row, place, rows.of_queries, scratch)

    def _is_of(self, tensor: Any, rows: Rows) -> bool:
        """Whether a tensor has a place for each row of q, or for each of k."""
        shape = self._shape
        heads, length = shape.num_q_heads, shape.seqlen_q
        if not rows.of_queries:
            heads, length = shape.num_kv_heads, shape.seqlen_k
        return tuple(tensor.shape[:3]) == (shape.batch, heads, length)

    def write(self, results: dict[str, Any]) -> None:
        """Write what became of the outputs, which are told by where they begin."""
        # Not by their own methods, which may be the submission's; and one may be no tensor at all.
        starts = {
            name: torch.Tensor.data_ptr(result)
            for name, result in results.items()
            if isinstance(result, torch.Tensor)
        }
        for name, start in starts.items():
            astray = self._astray.get(start)
            if name in OUTPUTS and astray and astray.of_queries == (name in ("out", "lse", "dq")):
                self._misplaced[OUTPUTS.index(name)] = astray.written
            product = self._products.get(start)
            if name in PRODUCTS and product is not None and PRODUCTS[product[0]] != name:
                self._stored_products[PRODUCTS.index(name)] = product[0] + 1, product[1]
        for start, astray in self._astray.items():
            if astray.scratch and start not in starts.values():
                self._misplaced[OUTPUTS.index(SCRATCH)] = astray.written


def _crossed(first: Any, second: Any) -> tuple[Rows, Rows, int] | None:
    """Return a number for each query and the keys that it met on their axis, and which that is.

    The tile of keys has the queries along its other axis, where the numbers belong.
    """
    if first.data.shape != second.data.shape or len(first.tags) != 2:
        return None
    for numbers, tile in ((first.tags, second.tags), (second.tags, first.tags)):
        for axis, (one, other) in enumerate(zip(numbers, tile, strict=True)):
            across = tile[1 - axis]
            if one is None or other is None or across is None or numbers[1 - axis] is not None:
                continue
            if one.operand == STATISTIC and not other.of_queries and across.of_queries:
                return one, other, axis
    return None


def _shared(first: Any, second: Any) -> Iterator[tuple[Rows, Rows, Rows | None]]:
    """Yield, per axis along which two tiles hold rows that may be compared, both and the keys."""
    if first.data.shape != second.data.shape:
        return
    for axis, (one, other) in enumerate(zip(first.tags, second.tags, strict=True)):
        if one is None or other is None or one.of_queries != other.of_queries:
            continue
        kinds = {one.operand, other.operand}
        if "out" in kinds and "dout" not in kinds:
            continue  # it has the shape of out, and may be another
        across = None
        if len(first.tags) == 2:
            across = first.tags[1 - axis] or second.tags[1 - axis]
        yield one, other, across


def _differ(one: np.ndarray, other: np.ndarray) -> int | None:
    """Return the first place where two tiles hold different rows, None where there is none.

    A row that a tile has more than once is no evidence: lanes past an end may be clamped to it.
    """
    if one.shape != other.shape:
        return None
    places = np.flatnonzero((one != other) & (one >= 0) & (other >= 0))
    for ids in (one, other) if places.size else ():
        _, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        places = places[counts[inverse.reshape(-1)][places] == 1]
    return int(places[0]) if places.size else None
