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
from grader.kernel.machine.ttir import Operation
from grader.kernel.observers import rounds
from grader.kernel.observers.knowledge import Lanes, Tile
from grader.kernel.observers.record import as_numpy
from grader.kernel.observers.rounds import MATRICES, MOST_ROWS, ROUND, VARIABLE, VECTORS, Head
from grader.kernel.observers.trace import PRODUCTS

_OUT = PRODUCTS.index("out")


class Steps:
    """Writes the rounds of the program that a `RoundsShape` asks for into its block.

    Of those that it asks for the first one in a launch is followed; the others are counted.
    """

    def __init__(self, shape: rounds.RoundsShape, memory: np.ndarray, path: str) -> None:
        self._shape = shape
        self._path = path
        self._arrays = shape.arrays(memory)
        self._head = self._arrays["head"]
        self._kernel, self._grid, self._launches = "", (1, 1, 1), 0
        self._program: int | None = None  # of this launch, which is followed
        self._all: set[tuple[int, int]] = set()  # programs that are asked for, by launch
        self._places: rounds.Places | None = None
        self._queries: np.ndarray | None = None  # whose pass over keys is followed
        self._over = False  # that pass is over
        self._round = -1
        self._keys: np.ndarray | None = None
        self._loop: Operation | None = None  # whose end ends the round, None: that of the program
        self._values: dict[str, Any] = {}  # what variables held at the last end of a loop's round
        self._carried: tuple[str, ...] = ()  # of these, into the next one
        self._level = 0  # how many loops further out than the innermost the round ends
        self._open = False  # the round has not ended
        self._segments: list[Operation | None] = []  # loops
        self._slots: dict[tuple[str, bool], int] = {}  # of variables, by name and whether a vector

    # -- where a kernel is ------------------------------------------------------------------------

    def launched(self, event: events.Launched) -> None:
        """Begin with a launch."""
        self.ends()
        self._program = None
        self._kernel, self._grid = event.name, event.grid
        self._launches += 1

    def ends(self) -> None:
        """End the pass that is followed, if any."""
        self._end_open()
        self._over |= self._queries is not None

    def stored(self, programs: Tensor) -> None:
        """End a round whose end was not seen, before what the kernel does with the result."""
        if self._place(programs) is not None:
            self._end_open()

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

    def multiplied(self, event: events.Computed, queries: Lanes, keys: Lanes, line: int) -> None:
        """Begin a round: queries were multiplied with a tile of keys."""
        programs = as_numpy(event.programs)
        wanted = self._wanted(programs, queries.ids)
        if self._program is None and wanted.any() and (self._follows_any or not self._over):
            self._program = int(programs[wanted][0])
        if not self._follows_any:
            self._all |= {(self._launches, n) for n in programs[wanted].tolist()}
            self._head[Head.OTHERS] = max(0, len(self._all) - 1)
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
        if self._places is None or keys.size > MOST_ROWS:
            self._head[Head.MORE] += 1
            return
        if self._round >= 0 and not self._has_met and np.array_equal(keys, self._keys):
            self._level += 1  # a part of head_dim: the round ends with the loop around these parts
            self._open = True
        else:
            self._end_open()
            self._level = 0
            self._keys = keys.copy()
            if self._round + 1 >= self._places.most:
                self._head[Head.MORE] += 1
                return
            self._round += 1
            self._arrays["keys"][self._round] = -1
            self._arrays["keys"][self._round, : keys.size] = keys
            self._note("line", line)
            self._open = True
            self._head[Head.ROUNDS] = self._round + 1
        self._loop = next(iter(loops[self._level :]), None)
        if self._loop not in self._segments:
            self._segments.append(self._loop)
        self._note("segment", self._segments.index(self._loop))
        self._note("loop", self._loop.place.line_in(self._path) if self._loop else 0)

    def weighted(self, event: events.Computed, weights: Tile, values: Lanes, line: int) -> None:
        """Note which pairs of the round have a weight in a product with these rows of V."""
        place = self._place(event.programs)
        if place is None or self._over or self._round < 0 or self._places is None:
            return
        assert self._queries is not None
        taken = ~weights.of_pairs("hidden", False)[place]
        ids, met = weights.axes[1].ids[place], values.ids[place]
        if not np.array_equal(ids, self._keys) or len(taken) != self._queries.size:
            self._note("apart", 1)  # the weights of another round, for all that is known
            return
        both = (met >= 0) & (ids >= 0)
        if (met[both] != ids[both]).any():
            self._note("mixed", 1 + int(met[met >= 0].min()))
        self._places.taken[self._round, :, : taken.shape[1]] |= taken
        self._note("products", self._of_round("products") + 1)
        self._note("product_line", line)
        self._note("mask_line", weights.note.mask_line)

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
    def _has_met(self) -> bool:
        """Whether weights have met V in this round."""
        return self._round >= 0 and bool(self._of_round("products") or self._of_round("apart"))

    def _begin_pass(self, queries: np.ndarray) -> None:
        if self._places is not None:  # of an earlier pass
            for name in ("head", "queries", "rounds", "present"):
                self._arrays[name][:] = 0
            self._places.taken[: self._round + 1] = 0
        self._over, self._round, self._keys, self._values = False, -1, None, {}
        self._queries = queries.copy()
        self._places = self._shape.places(self._arrays, queries.size)
        if self._places is not None:
            assert self._program is not None
            (x, y, _), number = self._grid, self._program
            self._arrays["queries"][: queries.size] = queries
            rounds.write_text(self._arrays["kernel"], self._kernel)
            self._head[Head.X : Head.Z + 1] = number % x, number // x % y, number // (x * y)
            self._head[Head.TILE_Q] = queries.size

    def _end_open(self) -> None:
        if self._open:
            self._end_round(seen=False)

    def _end_round(self, *, seen: bool) -> None:
        self._open = False
        if self._places is None:
            return
        self._note("ended", int(seen))
        for name, (values, note) in self._values.items():
            slot = self._slot(name, values, note)
            if slot is None:
                continue
            described = self._arrays["variables"][slot]
            if slot < VECTORS:
                self._places.vectors[self._round, slot] = values.reshape(-1)
            else:
                turned = values.shape != (self._queries.size, self._shape.head_dim)
                index = slot - VECTORS
                self._places.matrices[self._round, index] = values.T if turned else values
                made = (getattr(note, "product", None) or (None,))[0] == _OUT
                described[VARIABLE.index("of_products")] |= int(made)
            self._arrays["present"][self._round, slot] = 1
            described[VARIABLE.index("carried")] |= int(name in self._carried)

    def _slot(self, name: str, values: np.ndarray, note: Any) -> int | None:
        """Return where a variable is kept, None where it is none of the running state."""
        rows = self._queries.size
        vector = values.shape in ((rows,), (rows, 1), (1, rows))
        matrix = values.shape in ((rows, self._shape.head_dim), (self._shape.head_dim, rows))
        if not (vector or matrix) or getattr(note, "loaded", False):
            return None
        if getattr(note, "is_of_pairs", False):
            return None
        key = (name, vector)
        if key not in self._slots:
            first, most = (0, VECTORS) if vector else (VECTORS, MATRICES)
            taken = sum(v == vector for _, v in self._slots)
            if taken == most:
                return None
            self._slots[key] = first + taken
            rounds.write_text(self._arrays["names"][first + taken], name)
        return self._slots[key]

    def _note(self, column: str, value: int) -> None:
        self._arrays["rounds"][self._round, ROUND.index(column)] = value

    def _of_round(self, column: str) -> int:
        return int(self._arrays["rounds"][self._round, ROUND.index(column)])


def _of_program(value: Tensor, place: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return what a program at a place holds of an array."""
    own = value[place if value.shape[0] > 1 else 0]
    return as_numpy((own.float() if own.dtype is torch.bfloat16 else own).expand(shape))
