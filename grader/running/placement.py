"""Which rows meet in a tile, and where what is made of a row is stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from grader.running.lineage import Rows
from grader.running.operands import Operand
from grader.running.trace import OUTPUTS, PRODUCTS, SCRATCH, STATISTIC, TAGGED, TraceShape


class Placement:
    """Notes the first rows that do not belong together, and for each output the first astray."""

    def __init__(self, shape: TraceShape, arrays: dict[str, np.ndarray]) -> None:
        self._shape = shape
        self._apart = arrays["apart"]
        self._misplaced = arrays["misplaced"]
        self._arrays = arrays
        self._products: dict[int, tuple[int, int] | None] = {}  # by address: which, and its line
        self._scratch: set[int] = set()
        self._stored: dict[int, tuple[int, int, int]] = {}  # by address, as in trace.MISPLACED

    def meet(self, handles: list[Any], line: int) -> None:
        """Note where tiles are combined that hold other rows at the same places."""
        if self._apart.any():
            return
        known = [(h, h.tags) for h in handles if getattr(h, "tags", None) is not None]
        for number, (first, tags) in enumerate(known):
            for second, others in known[number + 1 :]:
                if first.data.shape != second.data.shape:
                    continue
                for axis, (one, other) in enumerate(zip(tags, others, strict=True)):
                    if one is None or other is None or one.of_queries != other.of_queries:
                        continue
                    kinds = {one.operand, other.operand}
                    if "out" in kinds and "dout" not in kinds:
                        continue  # it has the shape of out, and may be another
                    where = _differ(one.ids, other.ids)
                    if where is not None:
                        keys = tags[1 - axis] or others[1 - axis] if len(tags) == 2 else None
                        weights = any(getattr(h, "weights", False) for h in (first, second))
                        self._write(line, one, other, where, keys, weights)
                        return

    def _write(
        self, line: int, one: Rows, other: Rows, where: int, keys: Rows | None, weights: bool
    ) -> None:
        plane = -1
        if keys is not None and not keys.of_queries and keys.ids.max() >= 0:
            plane = int(keys.ids.max()) // self._shape.seqlen_k
        self._apart[:] = (
            *(line, TAGGED.index(one.operand), TAGGED.index(other.operand)),
            *(int(one.ids[where]) + 1, int(other.ids[where]) + 1, plane + 1, int(weights)),
        )

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
        tags = getattr(value, "tags", None)
        if start in self._stored or tags is None or tensor.dim() not in (3, 4):
            return
        shape = self._shape
        for axis, rows in enumerate(tags):
            if rows is None or rows.operand in (STATISTIC, "out"):
                continue
            heads, length = shape.num_q_heads, shape.seqlen_q
            if not rows.of_queries:
                heads, length = shape.num_kv_heads, shape.seqlen_k
            if tuple(tensor.shape[:3]) != (shape.batch, heads, length):
                continue
            whole = tensor if tensor.dim() == 4 else tensor[..., None]
            addresses, active = places
            found = Operand.of("out", whole).rows(addresses)
            others = tuple(other for other in range(found.ndim) if other != axis)
            found = np.where(active, found, -1).max(axis=others)
            where = _differ(rows.ids, found)
            if where is not None:
                sign = 1 if rows.of_queries else -1
                row = sign * (int(rows.ids[where]) + 1)
                self._stored[start] = (line, row, int(found[where]) + 1)
                if tensor.dim() == 3:
                    self._scratch.add(start)

    def write(self, results: dict[str, Any]) -> None:
        """Write what became of the outputs, which are told by where they begin."""
        # Not by their own methods, which may be the submission's.
        starts = {name: torch.Tensor.data_ptr(tensor) for name, tensor in results.items()}
        for name, start in starts.items():
            line, row, place = self._stored.get(start, (0, 0, 0))
            if name in OUTPUTS and (row > 0) == (name in ("out", "lse", "dq")):
                self._misplaced[OUTPUTS.index(name)] = (line, abs(row), place)
            product = self._products.get(start)
            if name in PRODUCTS and product is not None and PRODUCTS[product[0]] != name:
                self._arrays["stored_products"][PRODUCTS.index(name)] = product[0] + 1, product[1]
        for start in self._scratch - set(starts.values()):
            line, row, place = self._stored[start]
            self._misplaced[OUTPUTS.index(SCRATCH)] = (line, abs(row), place)


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
