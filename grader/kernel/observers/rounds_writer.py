"""Writes the rounds of one program into the block that the judge reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from grader.kernel.observers.rounds import (
    LOAD,
    MATRICES,
    MOST_ROWS,
    ROUND,
    VARIABLE,
    VECTORS,
    Head,
    Places,
    RoundsShape,
    write_text,
)


class Held(NamedTuple):
    """What a variable holds for the queries, and whether products with V are in it."""

    values: np.ndarray
    of_products: bool = False


class RoundsWriter:
    """Writes a pass over keys: `begin` it, `meet` a tile of keys, `take` pairs, `end` the round.

    A pass that begins takes the place of the one before it.
    """

    def __init__(self, shape: RoundsShape, memory: np.ndarray) -> None:
        self.head_dim = shape.head_dim
        self._shape = shape
        self._arrays = shape.arrays(memory)
        self.head = self._arrays["head"]
        self._places: Places | None = None
        self._round = -1
        self._rows = 0
        self._slots: dict[tuple[str, bool], int] = {}  # of variables, by name and whether a vector

    def begin(self, queries: np.ndarray, kernel: str = "", ids: Iterable[int] = (0, 0, 0)) -> None:
        """Begin with a pass of these rows of q."""
        if self._places is not None:  # of an earlier pass
            for name in ("head", "queries", "rounds", "loads", "present"):
                self._arrays[name][:] = 0
            self._places.taken[: self._round + 1] = 0
        self._round, self._rows = -1, queries.size
        self._places = self._shape.places(self._arrays, queries.size)
        if self._places is not None:
            self._arrays["queries"][: queries.size] = queries
            write_text(self._arrays["kernel"], kernel)
            self.head[Head.X : Head.Z + 1] = tuple(ids)
            self.head[Head.TILE_Q] = queries.size

    def meet(self, keys: np.ndarray, line: int) -> bool:
        """Begin a round with these rows of k; return whether there is room for it."""
        if self._places is None or keys.size > MOST_ROWS or self._round + 1 >= self._places.most:
            self.head[Head.MORE] += 1
            return False
        self._round += 1
        self._arrays["keys"][self._round] = -1
        self._arrays["keys"][self._round, : keys.size] = keys
        self.note("line", line)
        self.head[Head.ROUNDS] = self._round + 1
        return True

    def note(self, column: str, value: int) -> None:
        """Write a column of the round's row."""
        self._arrays["rounds"][self._round, ROUND.index(column)] = value

    def load(self, load: Mapping[str, int]) -> None:
        """Write a load of the round, where there is room for it."""
        loads = self._arrays["loads"][self._round]
        if self._places is not None and self._round >= 0 and not loads[-1, 0]:
            loads[np.count_nonzero(loads[:, 0])] = [load[name] for name in LOAD]

    def noted(self, column: str) -> int:
        """Return a column of the round's row, 0 where there is no round."""
        return int(self._arrays["rounds"][self._round, ROUND.index(column)] * (self._round >= 0))

    def take(
        self, taken: np.ndarray, line: int, mask_line: int = 0, *, masked: bool = False
    ) -> None:
        """Note which pairs of the round have a weight in a product with V."""
        if self._places is not None:
            self._places.taken[self._round, :, : taken.shape[1]] |= taken
            self.note("products", self.noted("products") + 1)
            self.note("product_line", line)
            self.note("mask_line", mask_line)
            self.note("masked", int(masked))

    def end(self, held: Mapping[str, Held], carried: Iterable[str], *, seen: bool) -> None:
        """Write what variables hold at the end of the round, or later where it was not `seen`."""
        if self._places is None or self._round < 0:
            return
        self.note("ended", int(seen))
        carried = set(carried)
        for name, (values, of_products) in held.items():
            slot = self._slot(name, values)
            if slot is None:
                continue
            if slot < VECTORS:
                self._places.vectors[self._round, slot] = values.reshape(-1)
            else:
                turned = values.shape != (self._rows, self.head_dim)
                self._places.matrices[self._round, slot - VECTORS] = values.T if turned else values
            self._arrays["present"][self._round, slot] = 1
            described = self._arrays["variables"][slot]
            described[VARIABLE.index("of_products")] |= int(of_products)
            described[VARIABLE.index("carried")] |= int(name in carried)

    def _slot(self, name: str, values: np.ndarray) -> int | None:
        """Return where a variable is kept, None where it is none of the running state."""
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
            write_text(self._arrays["names"][first + used], name)
        return self._slots[key]
