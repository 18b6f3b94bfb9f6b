"""One program of a kernel, round by round: the block in which the worker writes it down.

A round is one tile of keys that the program multiplies its queries with, and what the kernel's own
variables hold when the loop comes to its end of that round. Worker and judge map the same memory,
as for trace.py; the judge takes a copy and believes nothing that does not fit.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np

from grader.kernel.observers.trace import OPERANDS, Block
from grader.spec.cases import Case

MOST_ROUNDS = 256
MOST_ROWS = 512  # along a side of a tile
LOADS = 8  # in a round
VECTORS, MATRICES = 14, 6  # variables that are kept: one number per query, and one row per query
VARIABLES = VECTORS + MATRICES
_NAME_BYTES = 64
_TAKEN_BYTES = 16 * 2**20
_VALUES = 24 * 2**20  # numbers of all rounds, 4 bytes each


class Head(enum.IntEnum):
    """What is noted of the program as a whole."""

    ROUNDS = 0
    MORE = 1  # rounds behind those that are kept
    TILE_Q = 2
    X = 3
    Y = 4
    Z = 5
    OTHERS = 6  # further passes over keys with these queries


# Columns of the table of rounds. `ended` is 1 where the end of the loop's round was seen, 0 where
# values are those of a later moment; `products` counts those with V, `apart` is 1 where weights of
# another round met V, `masked` where a mask met pairs; `mixed` is the first row of V, from 1, that
# weights of another key met; `segment` numbers the loops that rounds lie in, from 0; `stored` and
# `stored_too` are lines that store something after it.
ROUND = (
    "line", "loop", "mask_line", "product_line", "ended", "products", "apart", "masked", "mixed",
    "segment", "stored", "stored_too",
)  # fmt: skip
# Columns of the table of variables: 1 if it is there when its loop begins; 1 if made of products of
# weights with V.
VARIABLE = ("carried", "of_products")
# Columns of the table of loads: of which input, in the order of `OPERANDS`, from 1; its rows over
# batch and heads and its columns, the first and the last, and how many rows; elements that were
# loaded, of these how many from no row, and how many were masked; bytes between two neighbours.
LOAD = (
    "line", "operand", "first", "last", "rows", "column", "last_column", "elements", "outside",
    "masked", "apart",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RoundsShape(Block):
    """What is to be followed, and the sizes by which numbers are checked.

    `row` is a row of q over batch and heads: the first program that holds it is followed; with -1
    the first of each launch, and the last of these is what is left. With `program` it is that
    program, whatever it holds first.
    """

    rows: int
    keys: int
    head_dim: int
    lines: int
    row: int = 0
    program: tuple[int, int, int] | None = None

    @classmethod
    def of(
        cls, case: Case, lines: int, *, row: int = 0, program: tuple[int, int, int] | None = None
    ) -> RoundsShape:
        """Return the sizes of a case."""
        rows = case.batch * case.num_q_heads * case.seqlen_q
        keys = case.batch * case.num_kv_heads * case.seqlen_k
        return cls(rows, keys, case.head_dim, lines, row, program)

    def _fields(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        return {
            "head": (np.int64, (len(Head),)),
            "kernel": (np.uint8, (_NAME_BYTES,)),
            "names": (np.uint8, (VARIABLES, _NAME_BYTES)),
            "variables": (np.int64, (VARIABLES, len(VARIABLE))),
            "queries": (np.int64, (MOST_ROWS,)),
            "rounds": (np.int64, (MOST_ROUNDS, len(ROUND))),
            "keys": (np.int64, (MOST_ROUNDS, MOST_ROWS)),
            "loads": (np.int64, (MOST_ROUNDS, LOADS, len(LOAD))),
            "present": (np.uint8, (MOST_ROUNDS, VARIABLES)),
            "taken": (np.uint8, (_TAKEN_BYTES,)),
            "values": (np.float32, (_VALUES,)),
        }

    def places(self, arrays: dict[str, np.ndarray], tile_q: int) -> Places | None:
        """Return where rounds of this many queries lie; None where they are too many."""
        if not 0 < tile_q <= MOST_ROWS:
            return None
        vectors = VECTORS * tile_q
        each = vectors + MATRICES * tile_q * self.head_dim
        most = min(MOST_ROUNDS, _VALUES // each, _TAKEN_BYTES // (tile_q * MOST_ROWS))
        values = arrays["values"][: most * each].reshape(most, each)
        return Places(
            most=most,
            vectors=values[:, :vectors].reshape(most, VECTORS, tile_q),
            matrices=values[:, vectors:].reshape(most, MATRICES, tile_q, self.head_dim),
            taken=arrays["taken"][: most * tile_q * MOST_ROWS].reshape(most, tile_q, MOST_ROWS),
        )


@dataclasses.dataclass(frozen=True)
class Places:
    """Views of the block, by round, for `most` rounds."""

    most: int
    vectors: np.ndarray
    matrices: np.ndarray
    taken: np.ndarray


@dataclasses.dataclass(frozen=True)
class Variable:
    """A variable of the kernel: its name, and its values as (rounds, tile_q[, head_dim]).

    Rounds in which it did not exist, or was something else, are not in `present`.
    """

    name: str
    carried: bool
    of_products: bool
    values: np.ndarray
    present: np.ndarray


@dataclasses.dataclass(frozen=True)
class Rounds:
    """A private copy of the block, of the rounds that were written.

    `queries` are rows of q over batch and heads, -1 past the end; `keys` rows of k likewise, one
    line per round. `taken` says which pairs had a weight that was not masked, in the round's
    product with V. `table` has the columns of `ROUND`, `loads`, by round, those of `LOAD`.
    """

    kernel: str
    program: tuple[int, int, int]
    others: int
    more: int
    queries: np.ndarray
    keys: np.ndarray
    taken: np.ndarray
    table: np.ndarray
    loads: tuple[tuple[dict[str, int], ...], ...]
    vectors: tuple[Variable, ...]
    matrices: tuple[Variable, ...]

    def __len__(self) -> int:
        return len(self.table)

    def column(self, name: str) -> np.ndarray:
        """Return a column of the table of rounds."""
        return self.table[:, ROUND.index(name)]

    @classmethod
    def of(cls, shape: RoundsShape, memory: np.ndarray) -> Rounds | None:
        """Copy what was written out of shared memory; None where nothing was, or does not fit."""
        arrays = shape.arrays(memory)
        head = arrays["head"].copy().clip(0, 2**31)
        tile_q = int(head[Head.TILE_Q])
        places = shape.places(arrays, tile_q)
        if places is None or not head[Head.ROUNDS]:
            return None
        count = min(int(head[Head.ROUNDS]), places.most)
        queries, keys = arrays["queries"][:tile_q].copy(), arrays["keys"][:count].copy()
        queries[(queries < 0) | (queries >= shape.rows)] = -1
        keys[(keys < 0) | (keys >= shape.keys)] = -1
        used = (keys >= 0).any(axis=0) | places.taken[:count].any(axis=(0, 1))
        width = int(used.nonzero()[0].max(initial=0)) + 1
        table = arrays["rounds"][:count].copy().clip(0, 2**31)
        for name in ("line", "loop", "mask_line", "product_line", "stored", "stored_too"):
            lines = table[:, ROUND.index(name)]
            lines[lines > shape.lines] = 0
        segments = table[:, ROUND.index("segment")]
        segments[segments >= count] = 0
        present = arrays["present"][:count] > 0
        described = [
            (_text(name), bool(row[0]), bool(row[1]))
            for name, row in zip(arrays["names"], arrays["variables"].copy(), strict=True)
        ]
        stored = [(places.vectors, VECTORS, 0), (places.matrices, MATRICES, VECTORS)]
        vectors, matrices = (
            tuple(
                Variable(*described[first + i], values[:count, i].copy(), present[:, first + i])
                for i in range(number)
                if present[:, first + i].any() and described[first + i][0]
            )
            for values, number, first in stored
        )
        return cls(
            kernel=_text(arrays["kernel"]),
            program=(int(head[Head.X]), int(head[Head.Y]), int(head[Head.Z])),
            others=int(head[Head.OTHERS]),
            more=int(head[Head.MORE]),
            queries=queries,
            keys=keys[:, :width],
            taken=places.taken[:count, :, :width] > 0,
            table=table,
            loads=tuple(
                _loads(rows, shape) for rows in arrays["loads"][:count].clip(0, 2**31).tolist()
            ),
            vectors=vectors,
            matrices=matrices,
        )


def _loads(rows: list[list[int]], shape: RoundsShape) -> tuple[dict[str, int], ...]:
    """Return the loads of a round that can be."""
    return tuple(
        dict(zip(LOAD, row, strict=True))
        for row in rows
        if 0 < row[0] <= shape.lines and 0 < row[1] <= len(OPERANDS)
    )


def write_text(place: np.ndarray, text: str) -> None:
    """Write as much of a text as fits."""
    raw = text.encode("utf-8", "replace")[: place.size]
    place[:] = 0
    place[: len(raw)] = np.frombuffer(raw, np.uint8)


def _text(place: np.ndarray) -> str:
    return place.tobytes().rstrip(b"\0").decode("utf-8", "replace")
