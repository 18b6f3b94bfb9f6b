"""Writes down one program round by round of its loop over keys.

A round begins with the product of the queries and a tile of keys, and ends where the loop around it
does in TTIR: what variables hold then, by the names that the student gave them, is written down.
Which of them is the running maximum is found out by `grader.causes.state.comparing`.
"""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any

import numpy as np

from grader.kernel.machine import events
from grader.kernel.machine.ttir import Operation
from grader.kernel.observers import rounds
from grader.kernel.observers.knowledge import handle
from grader.kernel.observers.lineage import Rows, is_of_pairs
from grader.kernel.observers.products import tags_of
from grader.kernel.observers.rounds import MATRICES, MOST_ROWS, ROUND, VARIABLE, VECTORS, Head
from grader.kernel.observers.trace import SCORES
from grader.kernel.observers.tracing import OUT, Tracing

_SHARE = 0.25  # of the seconds of a launch, for writing down what a call without an end has done


class Steps:
    """Writes the rounds of the program that a `RoundsShape` asks for into its block."""

    def __init__(self, shape: rounds.RoundsShape, memory: np.ndarray, path: str) -> None:
        self._shape = shape
        self._path = path
        self._arrays = shape.arrays(memory)
        self._head = self._arrays["head"]
        self._kernel, self._launches, self._program = "", 0, (0, 0, 0)
        self._places: rounds.Places | None = None
        self._queries: np.ndarray | None = None  # of the walk that is followed
        self._over = False  # that walk is over
        self.breaks_off = False  # the call does not end: of programs that run at once the first
        self._others: set[tuple[int, tuple[int, int, int]]] = set()
        self._round = -1
        self._keys: np.ndarray | None = None
        self._around: tuple[Operation, ...] = ()  # the loops around what is noted next
        self._loop_of_round: Any = None  # the loop whose end ends the round
        self._values: dict[str, Any] = {}  # what variables held there
        self._level = 0  # how many loops further out than the innermost that is
        self._open = False  # the round has not ended
        self._carried: set[str] = set()  # into its loop
        self._segments: list[Any] = []  # loops
        self._slots: dict[tuple[str, bool], int] = {}  # of variables, by name and whether a vector

    # -- where a kernel is ------------------------------------------------------------------------

    def launched(self, kernel: str) -> None:
        """Begin with a launch."""
        self._kernel = kernel
        self._launches += 1

    def inside(self, loops: tuple[Operation, ...]) -> None:
        """Note the loops around what is told next."""
        self._around = loops

    def round_ends(self, loop: Operation, values: dict[str, Any], carried: tuple[str, ...]) -> None:
        """Note what variables hold at the end of a round of a loop."""
        self._values, self._carried = values, set(carried)
        met = self._round >= 0 and (self._of_round("products") or self._of_round("apart"))
        # Before its weights have met V, no round is over: there may be a loop over head_dim.
        if self._open and loop is self._loop_of_round and met:
            self._end_round(loop, seen=True)

    def ends(self) -> None:
        """End with the last program."""
        self._program_ends()

    def program_begins(self, x: int, y: int, z: int) -> None:
        """Note which program runs from now on."""
        self._program_ends()
        self._program = (x, y, z)

    def _program_ends(self) -> None:
        self.stored()
        self._over |= self._queries is not None
        self._loop_of_round = None

    # -- what it does -----------------------------------------------------------------------------

    def multiplied(self, queries: Rows, keys: Rows, line: int) -> None:
        """Begin a round: queries were multiplied with a tile of keys."""
        if self._queries is not None and not np.array_equal(queries.ids, self._queries):
            self._program_ends()
        if self._over or self._queries is None:
            if not self._wants(queries):
                return
            if self._over and not self._follows_all:
                self._note_other()
                return
            self._begin_walk(queries)
        assert self._queries is not None
        if self._places is None or keys.ids.size > MOST_ROWS:
            self._head[Head.MORE] += 1
            return
        again = self._keys is not None and np.array_equal(keys.ids, self._keys)
        met = self._round >= 0 and (self._of_round("products") or self._of_round("apart"))
        if again and self._round >= 0 and not met:
            self._level += 1  # a part of head_dim: the round ends with the loop around these parts
            self._open = True
        else:
            self.stored()
            self._level = 0
            self._begin_round(keys, line)
        self._find_loop()

    def weighted(
        self, weights: Any, own: Rows, values: Rows, line: int, *, transposed: bool
    ) -> None:
        """Note which pairs of the round have a weight in a product with V.

        `own` are the keys that the weights are of, `values` the rows of V that they meet.
        """
        if self._over or self._round < 0 or self._places is None:
            return
        assert self._keys is not None and self._queries is not None
        hidden = getattr(weights, "hidden", None)
        taken = np.ones(weights.data.shape, bool) if hidden is None else ~hidden
        taken = taken.T if transposed else taken
        if not np.array_equal(own.ids, self._keys) or taken.shape[0] != self._queries.size:
            self._note("apart", 1)  # the weights of another round, for all that is known
            return
        both = (values.ids >= 0) & (own.ids >= 0)
        if (values.ids[both] != own.ids[both]).any():
            self._note("mixed", 1 + int(values.ids[values.ids >= 0].min()))
        self._places.taken[self._round, :, : taken.shape[1]] |= taken
        self._note("products", self._of_round("products") + 1)
        self._note("product_line", line)
        self._note("mask_line", getattr(weights, "mask_line", 0))

    def stored(self) -> None:
        """End a round whose end was not seen, before what the kernel does with the result."""
        if self._open:
            self._end_round(self._loop_of_round, seen=False)

    def _wants(self, queries: Rows) -> bool:
        if self._shape.program is not None:
            return self._program == tuple(self._shape.program)
        return self._shape.row < 0 or bool((queries.ids == self._shape.row).any())

    @property
    def _follows_all(self) -> bool:
        """Whether each walk takes the place of the one before it."""
        asked = self._shape.program is not None or self._shape.row >= 0
        return not asked and not self.breaks_off

    def _note_other(self) -> None:
        other = (self._launches, self._program)
        if other not in self._others:
            self._others.add(other)
            self._head[Head.OTHERS] = len(self._others)

    def _begin_walk(self, queries: Rows) -> None:
        if self._places is not None:  # of an earlier walk
            for name in ("head", "queries", "rounds", "present"):
                self._arrays[name][:] = 0
            self._places.taken[: self._round + 1] = 0
        self._over, self._round, self._keys = False, -1, None
        self._queries = queries.ids.copy()
        self._others.add((self._launches, self._program))
        self._places = self._shape.places(self._arrays, queries.ids.size)
        if self._places is not None:
            self._arrays["queries"][: queries.ids.size] = queries.ids
            rounds.write_text(self._arrays["kernel"], self._kernel)
            head = self._head
            head[Head.X], head[Head.Y], head[Head.Z] = self._program
            head[Head.LAUNCH], head[Head.TILE_Q] = self._launches, queries.ids.size

    def _begin_round(self, keys: Rows, line: int) -> None:
        assert self._places is not None
        self._keys = keys.ids.copy()
        if self._round + 1 >= self._places.most:
            self._head[Head.MORE] += 1
            return
        self._round += 1
        self._arrays["keys"][self._round] = -1
        self._arrays["keys"][self._round, : keys.ids.size] = keys.ids
        self._note("line", line)
        self._open = True
        self._head[Head.ROUNDS] = self._round + 1

    def _find_loop(self) -> None:
        if not self._open:
            return
        around = self._around[self._level :]
        self._loop_of_round = around[0] if around else self
        first = around[0].place.line_in(self._path) if around else 0
        if self._loop_of_round not in self._segments:
            self._segments.append(self._loop_of_round)
        self._note("segment", self._segments.index(self._loop_of_round))
        self._note("loop", first)

    def _end_round(self, loop: Any, *, seen: bool) -> None:
        self._open = False
        if loop is None or self._places is None:
            return
        self._note("ended", int(seen))
        for name, variable in self._values.items():
            slot = self._slot(name, variable)
            if slot is None:
                continue
            values = variable.data
            if slot < VECTORS:
                self._places.vectors[self._round, slot] = values.reshape(-1)
            else:
                turned = values.shape != (self._queries.size, self._shape.head_dim)
                index = slot - VECTORS
                self._places.matrices[self._round, index] = values.T if turned else values
                made = (getattr(variable, "product", None) or (None,))[0] == OUT
                self._arrays["variables"][slot, VARIABLE.index("of_products")] |= int(made)
            self._arrays["present"][self._round, slot] = 1
            carried = VARIABLE.index("carried")
            self._arrays["variables"][slot, carried] |= int(name in self._carried)

    def _slot(self, name: str, handle: Any) -> int | None:
        """Return where a variable is kept, None where it is none of the running state."""
        data, rows = getattr(handle, "data", None), self._queries.size
        if not isinstance(data, np.ndarray):  # a block pointer
            return None
        vector = data.shape in ((rows,), (rows, 1), (1, rows))
        matrix = data.shape in ((rows, self._shape.head_dim), (self._shape.head_dim, rows))
        if not (vector or matrix) or getattr(handle, "loaded", False) or is_of_pairs(handle):
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


class Stepping(Tracing):
    """A trace of a call that also has the rounds of one program."""

    def __init__(self, *places: Any, steps: Steps, seconds: float = math.inf) -> None:
        """Trace a call of which a launch may take so many `seconds`."""
        super().__init__(*places)
        self._steps = steps
        self._seconds = seconds
        self._end = time.process_time() + (1 - _SHARE) * seconds

    def _look(self, event: events.Event) -> Any:
        if time.process_time() > self._end:
            self.break_off()
            raise TimeoutError("the call takes too long to be traced")
        if isinstance(event, events.RoundEnded):
            self._do_later(event, lambda row: self._steps.round_ends(*_ended(event, row)))
        return super()._look(event)

    def _launched(self, event: events.Launched) -> None:
        super()._launched(event)
        self._steps.launched(event.name)

    def _program_begins(self, x: int, y: int, z: int) -> None:
        super()._program_begins(x, y, z)
        self._steps.program_begins(x, y, z)

    def _programs_end(self) -> None:
        super()._programs_end()
        self._steps.ends()

    def break_off(self) -> None:
        """Write down what there is, where the call may not come to its end."""
        self._steps.breaks_off = True
        self._end = time.process_time() + _SHARE * self._seconds
        with contextlib.suppress(Exception), np.errstate(all="ignore"):
            self._programs_end()

    def _note_product(self, event: events.Computed, product: int, a: Any, b: Any) -> None:
        tags_a, tags_b = tags_of(a), tags_of(b)
        line = self._where.running()
        self._steps.inside(event.loops)
        if product == SCORES:
            queries, keys = tags_a[0], tags_b[1]
            if not queries.of_queries:
                queries, keys = keys, queries
            if (queries.operand, keys.operand) == ("q", "k"):
                self._steps.multiplied(queries, keys, line)
        elif product == OUT:
            left = tags_a[0] is not None  # the weights are the left operand
            weights, own, values = (a, tags_a[1], tags_b[0]) if left else (b, tags_b[0], tags_a[1])
            self._steps.weighted(weights, own, values, line, transposed=not left)

    def _note_store(self) -> None:
        self._steps.stored()


def _ended(event: events.RoundEnded, row: int) -> tuple[Operation, dict[str, Any], Any]:
    values = {
        name: handle(note, row, type, value) for name, (value, type, note) in event.values.items()
    }
    return event.op, values, event.carried
