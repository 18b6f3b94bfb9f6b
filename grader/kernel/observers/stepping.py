"""Records one program, round by round of its loop over keys.

A round begins with the product of the queries and a tile of keys, and ends with a round of the loop
around that product in TTIR. `Steps` then records the variables' values under the student's names;
`grader.causes.state.comparing` finds out which of them is the running maximum.
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
from grader.kernel.observers.places import Located
from grader.kernel.observers.record import as_numpy
from grader.kernel.observers.rounds import LOADS, RoundsShape, RoundsWriter
from grader.kernel.observers.trace import OPERANDS, PRODUCTS

_OUT = PRODUCTS.index("out")
_STORED = ("stored", "stored_too")


class Steps:
    """Writes the rounds of the program that a `RoundsShape` asks for into its block.

    Of several such programs in a launch it follows the first one, and counts the others.
    """

    def __init__(self, shape: RoundsShape, memory: np.ndarray, path: str) -> None:
        self._shape = shape
        self._path = path
        self._write = RoundsWriter(shape, memory)
        self._kernel, self._grid, self._launches = "", (1, 1, 1), 0
        self._program: int | None = None  # the followed one of this launch
        self._all: set[tuple[int, int]] = set()  # programs that the shape asks for, by launch
        self._queries: np.ndarray | None = None  # of the followed pass over keys
        self._over = False  # that pass is over
        self._keys: np.ndarray | None = None
        self._loop: Operation | None = None  # its round ends this one; None: the program's end does
        self._values: dict[str, Any] = {}  # of variables, at the last end of a loop's round
        self._carried: tuple[str, ...] = ()  # names of variables that the loop carries
        self._level = 0  # the round's loop is so many outside the innermost
        self._open = False  # the round has not ended
        self._loading: int | None = None  # the program of this launch whose loads count
        self._loads: list[tuple[int, ...]] = []  # of the next round, before it begins
        self._segments: list[Operation | None] = []  # loops, by number

    # -- where a kernel is ------------------------------------------------------------------------

    def launched(self, event: events.Launched) -> None:
        """Begin a launch."""
        self.ends()
        self._program = self._loading = None
        self._loads.clear()
        self._kernel, self._grid = event.name, event.grid
        self._launches += 1

    def ends(self) -> None:
        """End the followed pass, if any."""
        self._end_open()
        self._over |= self._queries is not None

    def stored(self, programs: Tensor, line: int) -> None:
        """End an open round where the kernel stores, and note the line of the store."""
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
        # No round is over before its weights meet V: this may be a loop over head_dim.
        if self._open and event.op is self._loop and self._has_met:
            self._end_round(seen=True)

    def _place(self, programs: Tensor) -> int | None:
        """Return the position of the followed program among others, None if it is not there."""
        found = np.flatnonzero(as_numpy(programs) == self._program)
        return int(found[0]) if len(found) else None

    # -- what it does -----------------------------------------------------------------------------

    def loaded(self, found: Located, line: int) -> None:
        """Note a load of rows of an input, for the open round or for the next one."""
        operand, touched, rows = found.operand, found.touched, found.rows
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
        ids, there = np.unique(rows[at][inside]), found.columns[at][inside]
        near = [np.abs(np.diff(touched.addresses[at], axis=n)).ravel() for n in range(active.ndim)]
        steps = [int(deltas[0]) for deltas in near if deltas.size and deltas[0]]
        load = (
            line, 1 + OPERANDS.index(operand.name), ids[0], ids[-1], ids.size, there.min(),
            there.max(), active.sum(), active.sum() - inside.sum(), active.size - active.sum(),
            min(steps, default=0),
        )  # fmt: skip
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
        """Begin a round with a tile of keys, or continue the open one if the keys are its own."""
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

    def reduced(self, event: events.Computed) -> None:
        """Note the largest scores of the open round."""
        place = self._place(event.programs)
        if place is not None and self._open:
            self._write.reduce(_of_program(event.results[0], place, event.types[-1].shape))

    def weighted(
        self, event: events.Computed, weights: Tile, values: Rows, line: int, of_rows: bool
    ) -> None:
        """Note which pairs of the round have a weight in a product with these rows of V.

        `of_rows` is false if the weights are the right operand: queries are then columns of the
        result.
        """
        place = self._place(event.programs)
        if place is None or self._over or not self._has_begun:
            return
        assert self._queries is not None
        taken = ~weights.of_pairs("hidden", False)[place]
        ids, met = weights.axes[1].ids[place], values.ids[place]
        if not np.array_equal(ids, self._keys) or len(taken) != self._queries.size:
            self._write.row["apart"] = 1  # presumably the weights of another round
            return
        both = (met >= 0) & (ids >= 0)
        if (met[both] != ids[both]).any():
            self._write.row["mixed"] = 1 + met[met >= 0].min()
        masked = bool(weights.of_pairs("mask", 0)[place].any())
        self._write.of_rows = of_rows
        self._write.take(taken, line, weights.note.mask_line, masked=masked)

    def _wanted(self, programs: np.ndarray, queries: np.ndarray) -> np.ndarray:
        """Return which programs the shape asks for, by number or by the queries that they hold."""
        if self._shape.program is not None:
            (x, y, _), (i, j, k) = self._grid, self._shape.program
            inside = all(n < most for n, most in zip((i, j, k), self._grid, strict=True))
            return (programs == i + x * (j + y * k)) & inside
        if self._shape.row < 0:
            return np.ones(len(programs), bool)
        return (queries == self._shape.row).any(1)

    @property
    def _follows_any(self) -> bool:
        """Whether any program will do, so that each launch's pass replaces the one before it."""
        return self._shape.program is None and self._shape.row < 0

    @property
    def _has_begun(self) -> bool:
        """Whether the followed pass has a round."""
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
    """Return the part of an array of the program at a position."""
    own = value[place if value.shape[0] > 1 else 0]
    return as_numpy((own.float() if own.dtype is torch.bfloat16 else own).expand(shape))
