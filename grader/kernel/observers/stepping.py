"""Writes down one program round by round of its loop over keys.

A round begins with the product of the queries and a tile of keys, and ends where the loop around it
does in TTIR: what variables hold then, by the names that the student gave them, is written down.
Which of them is the running maximum is found out by `grader.causes.state.comparing`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.tensors import place_in
from grader.kernel.machine.ttir import Operation
from grader.kernel.observers.knowledge import Rows, Tile
from grader.kernel.observers.operands import Operand
from grader.kernel.observers.places import Touched
from grader.kernel.observers.record import as_numpy
from grader.kernel.observers.rounds import LOAD, LOADS, RoundsShape, RoundsWriter
from grader.kernel.observers.trace import OPERANDS, PRODUCTS

_OUT = PRODUCTS.index("out")
_STORED = ("stored", "stored_too")


class Steps:
    """Writes the rounds of the program that a `RoundsShape` asks for into its block.

    Of those that it asks for the first one in a launch is followed; the others are counted.
    """

    def __init__(self, shape: RoundsShape, memory: np.ndarray, path: str) -> None:
        self._shape = shape
        self._path = path
        self._write = RoundsWriter(shape, memory)
        self._kernel, self._grid, self._launches = "", (1, 1, 1), 0
        self._program: int | None = None  # of this launch, which is followed
        self._all: set[tuple[int, int]] = set()  # programs that are asked for, by launch
        self._queries: np.ndarray | None = None  # whose pass over keys is followed
        self._over = False  # that pass is over
        self._keys: np.ndarray | None = None
        self._loop: Operation | None = None  # whose end ends the round, None: that of the program
        self._values: dict[str, Any] = {}  # what variables held at the last end of a loop's round
        self._carried: tuple[str, ...] = ()  # of these, into the next one
        self._level = 0  # how many loops further out than the innermost the round ends
        self._open = False  # the round has not ended
        self._loading: int | None = None  # the program of this launch whose loads are noted
        self._loads: list[dict[str, int]] = []  # before the round that they are of
        self._segments: list[Operation | None] = []  # loops

    # -- where a kernel is ------------------------------------------------------------------------

    def launched(self, event: events.Launched) -> None:
        """Begin with a launch."""
        self.ends()
        self._program = self._loading = None
        self._loads.clear()
        self._kernel, self._grid = event.name, event.grid
        self._launches += 1

    def ends(self) -> None:
        """End the pass that is followed, if any."""
        self._end_open()
        self._over |= self._queries is not None

    def stored(self, programs: Tensor, line: int) -> None:
        """End a round whose end was not seen, before what the kernel does with the result."""
        if self._place(programs) is not None:
            self._end_open()
            row = self._write.row
            stored = [row[name] for name in _STORED]
            if self._has_begun and not self._over and 0 in stored and line not in stored:
                row[_STORED[stored.index(0)]] = line

    def round_ended(self, event: events.RoundEnded) -> None:
        """Note what variables hold at the end of a round of a loop."""
        place = self._place(event.programs)
        if place is None or self._over:
            return
        self._carried = event.carried
        self._values = {
            name: (_of_program(value, place, type.shape), note)
            for name, (value, type, note) in event.values.items()
        }
        # Before its weights have met V, no round is over: there may be a loop over head_dim.
        if self._open and event.op is self._loop and self._has_met:
            self._end_round(seen=True)

    def _place(self, programs: Tensor) -> int | None:
        """Return where the program that is followed is among others."""
        found = np.flatnonzero(as_numpy(programs) == self._program)
        return int(found[0]) if len(found) else None

    # -- what it does -----------------------------------------------------------------------------

    def loaded(
        self, operand: Operand, touched: Touched, rows: np.ndarray, columns: np.ndarray, line: int
    ) -> None:
        """Note a load of rows of an input, which is of this round or of the next one."""
        if self._loading is None and (self._shape.row < 0 or operand.name == "q"):
            wanted = self._wanted(touched.programs, rows.reshape(len(rows), -1))
            self._loading = int(touched.programs[wanted][0]) if wanted.any() else None
        place = np.flatnonzero(touched.programs == self._loading)
        if (self._over and not self._follows_any) or not place.size:
            return
        at, active = int(place[0]), touched.active[place[0]]
        inside = active & (rows[at] >= 0)
        if not inside.any():
            return
        ids, there = np.unique(rows[at][inside]), columns[at][inside]
        near = [np.abs(np.diff(touched.addresses[at], axis=n)).ravel() for n in range(active.ndim)]
        steps = [int(deltas[0]) for deltas in near if deltas.size and deltas[0]]
        numbers = (
            line, 1 + OPERANDS.index(operand.name), ids[0], ids[-1], ids.size, there.min(),
            there.max(), active.sum(), active.sum() - inside.sum(), active.size - active.sum(),
            min(steps, default=0),
        )  # fmt: skip
        load = dict(zip(LOAD, map(int, numbers), strict=True))
        if self._open:
            self._write.load(load)
        elif len(self._loads) < LOADS:
            self._loads.append(load)

    def multiplied(self, event: events.Computed, queries: Rows, keys: Rows, line: int) -> None:
        """Begin a round: queries were multiplied with a tile of keys."""
        programs = as_numpy(event.programs)
        wanted = self._wanted(programs, queries.ids)
        if self._program is None and wanted.any() and (self._follows_any or not self._over):
            self._program = int(programs[wanted][0])
        if not self._follows_any:
            self._all |= {(self._launches, n) for n in programs[wanted].tolist()}
            self._write.head["others"] = max(0, len(self._all) - 1)
        place = self._place(event.programs)
        if place is None:
            return
        ids = queries.ids[place]
        if self._queries is not None and not np.array_equal(ids, self._queries):
            self.ends()
        if self._over or self._queries is None:
            if not wanted[place] or (self._over and not self._follows_any):
                return
            self._begin_pass(ids)
        self._meet(keys.ids[place], line, event.loops)

    def _meet(self, keys: np.ndarray, line: int, loops: tuple[Operation, ...]) -> None:
        """Begin a round with a tile of keys, or go on with the one that it is a part of."""
        if self._has_begun and not self._has_met and np.array_equal(keys, self._keys):
            self._level += 1  # a part of head_dim: the round ends with the loop around these parts
            self._open = True
        else:
            self._end_open()
            self._level = 0
            self._keys = keys.copy()
            self._open = self._write.meet(keys, line)
            if not self._open:
                return
            for load in self._loads if self._loading == self._program else ():
                self._write.load(load)
            self._loads.clear()
        self._loop = next(iter(loops[self._level :]), None)
        if self._loop not in self._segments:
            self._segments.append(self._loop)
        row = self._write.row
        row["segment"] = self._segments.index(self._loop)
        row["loop"] = self._loop.place.line_in(self._path) if self._loop else 0

    def weighted(
        self, event: events.Computed, weights: Tile, values: Rows, line: int, of_rows: bool
    ) -> None:
        """Note which pairs of the round have a weight in a product with these rows of V.

        Where the weights are its right operand, what becomes of it is not `of_rows`: a query is a
        column.
        """
        place = self._place(event.programs)
        if place is None or self._over or not self._has_begun:
            return
        assert self._queries is not None
        taken = ~weights.of_pairs("hidden", False)[place]
        ids, met = weights.axes[1].ids[place], values.ids[place]
        if not np.array_equal(ids, self._keys) or len(taken) != self._queries.size:
            self._write.row["apart"] = 1  # the weights of another round, for all that is known
            return
        both = (met >= 0) & (ids >= 0)
        if (met[both] != ids[both]).any():
            self._write.row["mixed"] = 1 + met[met >= 0].min()
        masked = bool(weights.of_pairs("mask", 0)[place].any())
        self._write.of_rows = of_rows
        self._write.take(taken, line, weights.note.mask_line, masked=masked)

    def _wanted(self, programs: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Return which programs are asked for, by their numbers and what they hold."""
        if self._shape.program is not None:
            (x, y, _), (i, j, k) = self._grid, self._shape.program
            inside = all(n < most for n, most in zip((i, j, k), self._grid, strict=True))
            return (programs == i + x * (j + y * k)) & inside
        if self._shape.row < 0:
            return np.ones(len(programs), bool)
        return (queries == self._shape.row).any(1)

    @property
    def _follows_any(self) -> bool:
        """Whether the pass of each launch takes the place of the one before it."""
        return self._shape.program is None and self._shape.row < 0

    @property
    def _has_begun(self) -> bool:
        """Whether there is a round of the walk that is followed."""
        return bool(self._write.head["rounds"])

    @property
    def _has_met(self) -> bool:
        """Whether weights have met V in this round."""
        row = self._write.row
        return self._has_begun and bool(row["products"] or row["apart"])

    def _begin_pass(self, queries: np.ndarray) -> None:
        assert self._program is not None
        self._over, self._keys, self._values = False, None, {}
        self._queries = queries.copy()
        self._write.begin(queries, self._kernel, place_in(self._grid, self._program))

    def _end_open(self) -> None:
        if self._open:
            self._end_round(seen=False)

    def _end_round(self, *, seen: bool) -> None:
        self._open = False
        held = {}
        for name, (values, note) in self._values.items():
            if not getattr(note, "loaded", False) and not getattr(note, "is_of_pairs", False):
                product = getattr(note, "product", None) or (None,)
                held[name] = values, product[0] == _OUT
        self._write.end(held, self._carried, seen=seen)


def _of_program(value: Tensor, place: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return what a program at a place holds of an array."""
    own = value[place if value.shape[0] > 1 else 0]
    return as_numpy((own.float() if own.dtype is torch.bfloat16 else own).expand(shape))
