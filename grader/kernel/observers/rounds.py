"""One program of a kernel, round by round: the block in which the worker records it.

A round is one tile of keys that the program multiplies its queries with, and the values of the
kernel's variables at the end of that round of the loop. Worker and judge map the same memory, as
for trace.py; the judge copies it, and ignores impossible numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from grader.kernel.observers.trace import OPERANDS, Block, numbers
from grader.spec.cases import Case

MOST_ROUNDS = 256
MOST_ROWS = 512  # along a side of a tile
LOADS = 8  # in a round
VECTORS, MATRICES = 14, 6  # recorded variables: of one number per query, and of one row per query
VARIABLES = VECTORS + MATRICES


Held = tuple[np.ndarray, bool]  # a variable's value, and whether it is made of products with V


# Of the program as a whole: `more` counts rounds beyond the recorded ones, `others` further passes
# over keys with these queries.
_HEAD = numbers("rounds", "more", "tile_q", "x", "y", "z", "others")
# Lines of a round, and more: `ended` is 1 if the end of the loop's round was seen, 0 if values are
# those of a later moment; `products` counts those with V; `apart` is 1 if weights of another round
# met V, `masked` if a mask met pairs; `mixed` is the first row of V, from 1, that met weights of
# another key; `segment` numbers the loops of rounds, from 0; `stored` and `stored_too` are lines of
# stores after the round.
_ROUND_LINES = ("line", "loop", "mask_line", "product_line", "stored", "stored_too")
_ROUND = numbers(*_ROUND_LINES, "ended", "products", "apart", "masked", "mixed", "segment")
# Of a variable: 1 if its loop carries it; 1 if it is made of products of weights with V.
_TEXT = "S64"
_VARIABLE = np.dtype([("name", _TEXT), ("carried", np.int64), ("of_products", np.int64)])
# Columns of the table of loads: the input's index in `OPERANDS`, from 1; the first and last of its
# rows over batch and heads, their number, and its first and last column; the number of loaded
# elements, of those outside any row, and of masked ones; bytes between two neighbours.
LOAD = numbers(
    *("line", "operand", "first", "last", "rows", "column", "last_column", "elements", "outside"),
    *("masked", "apart"),
)


@dataclasses.dataclass(frozen=True)
class RoundsShape(Block):
    """Which program to follow, and the sizes by which numbers are checked.

    `row` is a row of q over batch and heads, and the first program that holds it is followed; with
    -1 the first of each launch, where the last launch overwrites the others. With `program` it is
    that program, whichever rows it holds.
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
        rows = case.batch * case.num_q_heads * case.seqlen_q
        keys = case.batch * case.num_kv_heads * case.seqlen_k
        return cls(rows, keys, case.head_dim, lines, row, program)

    def _fields(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        return {
            "head": (_HEAD, (1,)),
            "kernel": (_TEXT, (1,)),
            "variables": (_VARIABLE, (VARIABLES,)),
            "queries": (np.int64, (MOST_ROWS,)),
            "rounds": (_ROUND, (MOST_ROUNDS,)),
            "keys": (np.int64, (MOST_ROUNDS, MOST_ROWS)),
            "loads": (LOAD, (MOST_ROUNDS, LOADS)),
            "present": (np.uint8, (MOST_ROUNDS, VARIABLES)),
            # A program writes a part of these; pages that nobody writes take no memory.
            "taken": (np.uint8, (MOST_ROUNDS, MOST_ROWS, MOST_ROWS)),
            "largest": (np.float32, (MOST_ROUNDS, MOST_ROWS)),
            "vectors": (np.float32, (MOST_ROUNDS, VECTORS, MOST_ROWS)),
            "matrices": (np.float32, (MOST_ROUNDS, MATRICES, MOST_ROWS, self.head_dim)),
        }


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
    """A private copy of the recorded rounds of the block.

    `queries` are rows of q over batch and heads, -1 past the end; `keys` rows of k likewise, one
    line per round. `taken` says which pairs had a weight that was not masked, in the round's
    product with V. `largest` is the maximum of the round's scores by query, 0 where none was seen.
    `table` has the columns of `_ROUND`, `loads`, by round, those of `LOAD`.
    """

    kernel: str
    program: tuple[int, int, int]
    others: int
    more: int
    queries: np.ndarray
    keys: np.ndarray
    taken: np.ndarray
    largest: np.ndarray
    table: np.ndarray
    loads: tuple[tuple[dict[str, int], ...], ...]
    vectors: tuple[Variable, ...]
    matrices: tuple[Variable, ...]

    def __len__(self) -> int:
        return len(self.table)

    def column(self, name: str) -> np.ndarray:
        """Return a column of the table of rounds, by its name in `_ROUND`."""
        return self.table[name]

    @classmethod
    def of(cls, shape: RoundsShape, memory: np.ndarray) -> Rounds | None:
        """Copy the rounds out of shared memory; None if there are none, or their head is bad."""
        arrays = shape.arrays(memory)
        head = dict(zip(_HEAD.names, _counts(arrays["head"]).tolist()[0], strict=True))
        rows, count = head["tile_q"], min(head["rounds"], MOST_ROUNDS)
        if not count or not 0 < rows <= MOST_ROWS:
            return None
        queries, keys = arrays["queries"][:rows].copy(), arrays["keys"][:count].copy()
        queries[(queries < 0) | (queries >= shape.rows)] = -1
        keys[(keys < 0) | (keys >= shape.keys)] = -1
        taken = arrays["taken"][:count, :rows] > 0
        used = (keys >= 0).any(axis=0) | taken.any(axis=(0, 1))
        width = int(used.nonzero()[0].max(initial=0)) + 1
        table = _counts(arrays["rounds"][:count])
        for names, most in ((_ROUND_LINES, shape.lines), (("segment",), count - 1)):
            for name in names:
                table[name][table[name] > most] = 0
        present = arrays["present"][:count] > 0
        values = [*arrays["vectors"].swapaxes(0, 1), *arrays["matrices"].swapaxes(0, 1)]
        variables = [
            Variable(
                _text(name), bool(carried), bool(of_products), held[:count, :rows].copy(), there
            )
            for (name, carried, of_products), held, there in zip(
                arrays["variables"].tolist(), values, present.T, strict=True
            )
            if there.any() and name
        ]
        return cls(
            kernel=_text(arrays["kernel"].tolist()[0]),
            program=(head["x"], head["y"], head["z"]),
            others=head["others"],
            more=head["more"],
            queries=queries,
            keys=keys[:, :width],
            taken=taken[:, :, :width],
            largest=arrays["largest"][:count, :rows].copy(),
            table=table,
            loads=tuple(
                _loads(loads, shape) for loads in _counts(arrays["loads"][:count]).tolist()
            ),
            vectors=tuple(v for v in variables if v.values.ndim == 2),
            matrices=tuple(v for v in variables if v.values.ndim == 3),
        )


def _counts(table: np.ndarray) -> np.ndarray:
    """Copy a table of counts and lines, clipped to their range."""
    return table.view(np.int64).clip(0, 2**31).view(table.dtype)


def _loads(rows: list[tuple[int, ...]], shape: RoundsShape) -> tuple[dict[str, int], ...]:
    """Return the loads of a round whose line and operand are in range."""
    return tuple(
        dict(zip(LOAD.names, row, strict=True))
        for row in rows
        if 0 < row[0] <= shape.lines and 0 < row[1] <= len(OPERANDS)
    )


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


class RoundsWriter:
    """Writes a pass over keys: `begin` it; `meet` keys, `reduce`, `take` pairs, `end` the round.

    A new pass overwrites the one before it.
    """

    def __init__(self, shape: RoundsShape, memory: np.ndarray) -> None:
        self.head_dim = shape.head_dim
        self._arrays = shape.arrays(memory)
        self.head = self._arrays["head"][0]
        self.of_rows = True  # whether queries are rows of products with V
        self._round = -1
        self._rows = 0  # of the pass; 0 if it has more than fit
        self._slots: dict[tuple[str, bool], int] = {}  # of variables, by name and whether a vector

    @property
    def row(self) -> Any:
        """The round's row of the table of rounds: numbers by name."""
        return self._arrays["rounds"][self._round]

    def begin(self, queries: np.ndarray, kernel: str = "", ids: Iterable[int] = (0, 0, 0)) -> None:
        """Begin a pass of these rows of q."""
        if self._rows:  # of an earlier pass
            for name in ("head", "queries", "rounds", "loads", "present", "largest"):
                self._arrays[name][:] = 0
            self._arrays["taken"][: self._round + 1, : self._rows] = 0
        self._round, self._rows = -1, queries.size if queries.size <= MOST_ROWS else 0
        if self._rows:
            self._arrays["queries"][: queries.size] = queries
            self._arrays["kernel"][0] = kernel.encode("utf-8", "replace")
            self.head["x"], self.head["y"], self.head["z"] = ids
            self.head["tile_q"] = queries.size

    def meet(self, keys: np.ndarray, line: int) -> bool:
        """Begin a round with these rows of k; return whether there is room for it."""
        if not self._rows or keys.size > MOST_ROWS or self._round + 1 >= MOST_ROUNDS:
            self.head["more"] += 1
            return False
        self._round += 1
        self._arrays["keys"][self._round] = -1
        self._arrays["keys"][self._round, : keys.size] = keys
        self.row["line"] = line
        self.head["rounds"] = self._round + 1
        return True

    def load(self, load: tuple[int, ...]) -> None:
        """Write a load of the round, as a row of `LOAD`, where there is room for it."""
        lines = self._arrays["loads"]["line"][self._round]
        if self._round >= 0 and not lines[-1]:
            self._arrays["loads"][self._round, np.count_nonzero(lines)] = load

    def reduce(self, largest: np.ndarray) -> None:
        """Note the largest scores of the round, a number for each query."""
        if self._round >= 0 and largest.size == self._rows:
            self._arrays["largest"][self._round, : self._rows] = largest.reshape(-1)

    def take(
        self, taken: np.ndarray, line: int, mask_line: int = 0, *, masked: bool = False
    ) -> None:
        """Note which pairs of the round have a weight in a product with V."""
        if self._round >= 0:
            self._arrays["taken"][self._round, : self._rows, : taken.shape[1]] |= taken
            self.row["products"] += 1
            self.row["product_line"], self.row["mask_line"] = line, mask_line
            self.row["masked"] = masked

    def end(self, held: Mapping[str, Held], carried: Iterable[str], *, seen: bool) -> None:
        """Write what variables hold at the end of the round, or later where it was not `seen`."""
        if self._round < 0:
            return
        self.row["ended"] = seen
        carried = set(carried)
        for name, (values, of_products) in held.items():
            slot = self._slot(name, values)
            if slot is None:
                continue
            if slot < VECTORS:
                self._arrays["vectors"][self._round, slot, : self._rows] = values.reshape(-1)
            else:
                sizes = self._rows, self.head_dim
                turned = not self.of_rows if sizes == sizes[::-1] else values.shape != sizes
                place = self._round, slot - VECTORS, slice(self._rows)
                self._arrays["matrices"][place] = values.T if turned else values
            self._arrays["present"][self._round, slot] = 1
            described = self._arrays["variables"][slot]
            described["of_products"] |= of_products
            described["carried"] |= name in carried

    def _slot(self, name: str, values: np.ndarray) -> int | None:
        """Return the slot of a variable, None if it is no running state, or none is free."""
        rows = self._rows
        vector = values.shape in ((rows,), (rows, 1), (1, rows))
        if not vector and values.shape not in ((rows, self.head_dim), (self.head_dim, rows)):
            return None
        key = (name, vector)
        if key not in self._slots:
            first, most = (0, VECTORS) if vector else (VECTORS, MATRICES)
            used = sum(v == vector for _, v in self._slots)
            if used == most:
                return None
            self._slots[key] = first + used
            self._arrays["variables"]["name"][first + used] = name.encode("utf-8", "replace")
        return self._slots[key]
