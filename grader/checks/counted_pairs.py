"""Finds which pairs a kernel counted, and which are due: pure functions of a trace.

A pair is a query and a key. It is due where the key is visible to the query; it was taken (counted)
where its weight, not masked, was in the product in question.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

import reference
from grader.kernel.observers.trace import (
    DROWNED,
    MASK_ROWS,
    OF_PAIRS,
    OPERANDS,
    OPTIONS,
    PRODUCTS,
    SCORES,
    Counter,
    Trace,
)
from grader.spec.cases import Case
from grader.spec.grade_record import TileMap

_MOST_TILES = 48  # on a side of a map


@dataclasses.dataclass(frozen=True)
class CountedPairs:
    """The pairs of one product; arrays of (batch, q head, query, key), boolean if not said else.

    `masks`, `masked_at`, `taken_at` and `again_at` are as in `Trace`; `due` is (query, key);
    `met` were in a tile of the product, masked or not; `visited` were in a tile of scores or, for a
    gradient, are those that met; `shared` are those taken more often than scores were computed for
    them. `tile` is the size of the kernel's tiles, queries by keys; `scores_line` and
    `product_line` are where it multiplies, `loop_line` is the loop around that, `mask_line` where
    scores are masked, 0 if nowhere; `mask_rows`, of `MASK_ROWS`, is what the rows of the tile are
    there; `raised_line` is where masked scores are no longer masked, see `Trace`.
    `near` is batch, head and row of the result that a message speaks of, if of one. `kernels` are
    those that make the product.
    """

    product: str
    case: Case
    trace: Trace
    due: np.ndarray
    visited: np.ndarray
    met: np.ndarray
    taken: np.ndarray
    twice: np.ndarray
    shared: np.ndarray
    masks: np.ndarray
    masked_at: np.ndarray
    taken_at: np.ndarray
    again_at: np.ndarray
    tile: tuple[int, int]
    scores_line: int
    product_line: int
    loop_line: int
    mask_line: int
    mask_rows: str = ""
    raised_line: int = 0
    near: tuple[int, int, int] | None = None
    kernels: tuple[int, ...] = ()

    @property
    def over_queries(self) -> bool:
        """Whether a row of the result is that of a key, and the sum is over the queries."""
        return self.product in ("dk", "dv")

    @property
    def shown_head(self) -> tuple[int, int]:
        """Batch and q head that a message describes.

        Those of `near` if pairs are wrong there, else those with the most wrong pairs.
        """
        wrong = (self.missing | self.extra | self.twice).sum(axis=(2, 3))
        if self.near is not None:
            batch, head, _ = self.near
            group = self.group
            there = wrong[batch, head * group : (head + 1) * group]
            if there.any():
                return batch, head * group + int(there.argmax())
        batch, head = np.unravel_index(int(wrong.argmax()), wrong.shape)
        return int(batch), int(head)

    @property
    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of the queries, (queries, 1), and of the keys, (1, keys)."""
        query, key = np.ogrid[: self.case.seqlen_q, : self.case.seqlen_k]
        return query, key

    @property
    def window(self) -> int:
        """The size of the window, which without one holds all keys before the query."""
        return self.case.kwargs.get("window_size", self.case.seqlen_q)

    @property
    def sinks(self) -> int:
        """The number of sink tokens."""
        return self.case.kwargs.get("num_sink_tokens", 0)

    @property
    def passed(self) -> dict[str, int]:
        """The options that the kernels get, where that is known and the same for all of them."""
        kernels = self.trace.arrays["kernels"][list(self.kernels)]
        held = {name: {*kernels[name].tolist()} - {0} for name in OPTIONS}
        return {name: values.pop() - 1 for name, values in held.items() if len(values) == 1}

    @property
    def group(self) -> int:
        """How many q heads a head of the result sums over."""
        shape = self.trace.shape
        return shape.num_q_heads // shape.num_kv_heads if self.over_queries else 1

    def example(self, pairs: np.ndarray) -> tuple[int, int, int, int]:
        """Return batch, q head, query and key of one of `pairs`.

        It is of the row of `near` or, if that has none, of `shown_head`, if there is one.
        """
        batch, head = self.shown_head
        here = pairs[batch, head]
        if not here.any():
            return tuple(int(i) for i in np.argwhere(pairs)[0])
        if self.near is not None:
            row, axis = self.near[2], 1 if self.over_queries else 0
            others = np.flatnonzero(here.take(row, axis))
            if others.size:
                pair = (row, int(others[0]))
                return batch, head, *(pair[::-1] if self.over_queries else pair)
        query, key = (int(i) for i in np.argwhere(here)[0])
        return batch, head, query, key

    @functools.cached_property
    def missing(self) -> np.ndarray:
        """Pairs that are due and were never taken."""
        return self.due & ~self.taken

    def line_of(self, numbers: np.ndarray, pairs: np.ndarray) -> int:
        """Return the line that most of `pairs` have in `numbers`, which is `masked_at` or alike.

        0 if none has one, or if most have several.
        """
        number = int(np.bincount(numbers[pairs & (numbers > 0)], minlength=1).argmax())
        lines = self.trace.arrays["lines"]["line"]
        return int(lines[number]) if number < len(lines) else 0

    def line_in(self, column: str) -> int:
        """Return the line that a column of the trace's products has for this one, 0 if none."""
        return int(self.trace.arrays["products"][column][PRODUCTS.index(self.product)])

    def mask_of(self, pairs: np.ndarray) -> int:
        """Return the line of the mask that most of `pairs` met, 0 if that is not one line."""
        seen = (self.masked_at[pairs] > 0).any()
        return self.line_of(self.masked_at, pairs) if seen else self.mask_line

    def kernel_lines(self, pairs: np.ndarray, *, other: bool = False) -> tuple[int, ...]:
        """Return lines of the one kernel that took all of `pairs`, none where several did.

        With `other`, lines of the one kernel that did not. Lines that kernels share are left out.
        """
        times = np.where(self.twice, 2, 1)[pairs]
        visits = self.trace.arrays["visits"].reshape(-1, *pairs.shape)
        took = {kernel: bool((visits[kernel][pairs] >= times).all()) for kernel in self.kernels}
        chosen = [kernel for kernel in self.kernels if took[kernel] != other]
        return self.lines_of(chosen[0]) if len(chosen) == 1 and pairs.any() else ()

    def lines_of(self, kernel: int) -> tuple[int, ...]:
        """Return lines where a kernel accesses tensors, without those of others of the product."""
        own, others = set[int](), set[int]()
        for row in self.trace.rows("accesses"):
            if row["kernel"] == kernel or row["kernel"] in self.kernels:
                (own if row["kernel"] == kernel else others).add(row["line"])
        return tuple(sorted(own - others))

    @property
    def drowned(self) -> np.ndarray:
        """Missing pairs that no mask hid: a number of their row, such as lse, made the weight 0."""
        return self.missing & (self.masks == DROWNED)

    @functools.cached_property
    def extra(self) -> np.ndarray:
        """Pairs that were taken and are not due."""
        return ~self.due & self.taken


def accesses(trace: Trace) -> list[dict[str, Any]]:
    """Return the accesses with the columns of `ACCESS` and the `name` of the operand."""
    rows = trace.rows("accesses")
    return [{"name": OPERANDS[row["operand"] - 1], **row} for row in rows]


def due_pairs(problem_id: str, case: Case) -> np.ndarray:
    """Return which keys each query sees, (seqlen_q, seqlen_k)."""
    rules = reference.rules(problem_id, case.kwargs)
    return reference.visible_keys(
        case.seqlen_q,
        case.seqlen_k,
        is_causal=rules["is_causal"],
        window_size=rules["window_size"],
        num_sink_tokens=rules["num_sink_tokens"],
    ).numpy()


def counted_pairs(
    problem_id: str,
    case: Case,
    trace: Trace,
    product: str = "out",
    near: tuple[int, int, int] | None = None,
) -> CountedPairs | None:
    """Return the pairs of one product; None where a trace does not show them all.

    A dot of tiles that are not recognised as inputs may have done anything. `near` is as in
    `CountedPairs`.
    """
    if case.rows is not None or trace.count(Counter.UNKNOWN_DOTS):
        return None
    index, dots = PRODUCTS.index(product), trace.rows("dots")
    products = [dot for dot in dots if dot["product"] == index]
    if not products:
        return None
    main = max(products, key=lambda dot: dot["count"])
    kernels = sorted({dot["kernel"] for dot in products})
    scores = [d["line"] for d in dots if (d["product"], d["kernel"]) == (SCORES, main["kernel"])]
    shape = trace.shape
    size = (shape.batch, shape.num_q_heads, shape.seqlen_q, shape.seqlen_k)
    arrays = trace.arrays
    seen = {name: arrays[name][index].reshape(size) for name in OF_PAIRS}
    visits = arrays["visits"][kernels].reshape(-1, *size)
    if product == "out":  # whole rows that two programs compute alike do no harm
        alike = (arrays["stores"] == 2).reshape(*size[:3], 1)
        # A launch may compute whole rows again; if each computes a part, no pair counts twice.
        takes = seen["takes"]
        least = np.where(takes > 0, takes, takes.max(initial=0)).min(axis=3, keepdims=True)
        twice = ((seen["twice"] > 0) | (takes > least)) & ~alike
        visited = visits.any(axis=0)
    else:
        # The backward pass may run the forward pass again; a gradient is one sum over all.
        # One kernel may compute several gradients, each in a loop of its own.
        twice, visited = seen["takes"] > 1, seen["met"] > 0
    due = due_pairs(problem_id, case)
    kernel = trace.rows("kernels")[main["kernel"]]
    return CountedPairs(
        product=product,
        case=case,
        trace=trace,
        due=due,
        visited=visited,
        met=seen["met"] > 0,
        taken=(seen["takes"] > 0) | (due & (seen["unsure"] > 0)),
        twice=twice,
        shared=seen["takes"] > visits.sum(axis=0),
        masks=seen["masks"],
        masked_at=seen["masked_at"],
        taken_at=seen["taken_at"],
        again_at=seen["again_at"],
        tile=(max(1, main["tile_q"]), max(1, main["tile_k"])),
        scores_line=scores[0] if scores else 0,
        product_line=main["line"],
        mask_line=kernel["mask_line"],
        mask_rows=MASK_ROWS[kernel["mask_rows"]],
        raised_line=kernel["raised_line"],
        loop_line=main["loop"] or main["line"],
        near=near,
        kernels=tuple(kernels),
    )


def tiles_holding(pairs: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return which tiles of `size` hold one of the pairs, which are (..., queries, keys)."""
    for axis, step in ((-2, size[0]), (-1, size[1])):
        pairs = np.logical_or.reduceat(pairs, range(0, pairs.shape[axis], step), axis=axis)
    return pairs


def tile_map(counted: CountedPairs) -> TileMap:
    """Return the tiles of `shown_head`, one letter a tile; see `TileMap`."""
    batch, head = counted.shown_head
    tile_q, tile_k = counted.tile
    while (
        counted.due.shape[0] > _MOST_TILES * tile_q or counted.due.shape[1] > _MOST_TILES * tile_k
    ):
        tile_q, tile_k = 2 * tile_q, 2 * tile_k
    wrong = {
        TileMap.TWICE: counted.twice[batch, head],
        TileMap.MISSED: counted.missing[batch, head],
        TileMap.TAKEN: counted.extra[batch, head],
    }
    due, visited = counted.due, counted.visited[batch, head]

    def letter(query: int, key: int) -> str:
        tile = np.s_[query : query + tile_q, key : key + tile_k]
        for letter, pairs in wrong.items():
            if pairs[tile].any():
                return letter
        if due[tile].any():
            return TileMap.FULL if due[tile].all() else TileMap.MASKED
        return TileMap.WASTED if visited[tile].any() else TileMap.NOTHING

    queries, keys = (range(0, n, m) for n, m in zip(due.shape, (tile_q, tile_k), strict=True))
    rows = tuple("".join(letter(query, key) for key in keys) for query in queries)
    where = {"product": counted.product, "batch": batch, "head": head}
    return TileMap(**where, tile_q=tile_q, tile_k=tile_k, rows=rows)
