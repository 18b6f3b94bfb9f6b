"""Follows one program of a kernel in Triton's interpreter, round by round of its loop over keys.

The interpreter runs a kernel as a Python function, so the kernel's variables are those of a frame.
A round begins with the product of the queries and a tile of keys, and ends when the loop around it
comes to its head again: what the variables hold then is written down. Which of them is the running
maximum is found out by `grader.causes.state.comparing`. Runs inside the worker.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from grader.kernel.observers import rounds
from grader.kernel.observers.access import AccessMonitor
from grader.kernel.observers.lineage import Rows, is_of_pairs
from grader.kernel.observers.loops import Loops
from grader.kernel.observers.products import tags_of
from grader.kernel.observers.rounds import MATRICES, MOST_ROWS, ROUND, VARIABLE, VECTORS, Head
from grader.kernel.observers.trace import PRODUCTS, SCORES, TraceShape
from grader.kernel.observers.tracer import Tracer

_OUT = PRODUCTS.index("out")


class StepTracer(Tracer):
    """A tracer that also writes down the rounds of one program."""

    def __init__(
        self,
        shape: TraceShape,
        memory: np.ndarray,
        path: str,
        source: bytes,
        monitor: AccessMonitor,
        steps: Steps,
    ) -> None:
        super().__init__(shape, memory, path, source, monitor)
        self._steps = steps

    def _launched(self, launch: Any) -> Any:
        traced = super()._launched(launch)

        def call(this: Any, *args: Any, **kwargs: Any) -> Any:
            with self._steps.watching(getattr(this.fn, "__name__", "")):
                return traced(this, *args, **kwargs)

        return call

    def _note_program(self, x: int, y: int, z: int) -> None:
        super()._note_program(x, y, z)
        self._steps.program_begins(x, y, z)

    def _note_multiplied(self, result: Any, a: Any, b: Any, d: Any) -> int:
        product = super()._note_multiplied(result, a, b, d)
        tags_a, tags_b = tags_of(a), tags_of(b)
        if product == SCORES:
            queries, keys = tags_a[0], tags_b[1]
            if not queries.of_queries:
                queries, keys = keys, queries
            if (queries.operand, keys.operand) == ("q", "k"):
                self._steps.multiplied(queries, keys, self._lines.running())
        elif product == _OUT:
            left = tags_a[0] is not None  # the weights are the left operand
            weights, own, values = (a, tags_a[1], tags_b[0]) if left else (b, tags_b[0], tags_a[1])
            line = self._lines.running()
            self._steps.weighted(weights, own, values, line, transposed=not left)
        return product

    def _note_store(self, ptrs: Any, value: Any, mask: Any) -> None:
        super()._note_store(ptrs, value, mask)
        self._steps.stored()

    def finish(self, results: dict[str, Any]) -> None:
        """Write the tables; an error of the steps is one of the tracer."""
        super().finish(results)
        self.fault = self.fault or self._steps.fault


class Steps:
    """Writes the rounds of the program that a `RoundsShape` asks for into its block."""

    def __init__(
        self, shape: rounds.RoundsShape, memory: np.ndarray, path: str, source: bytes
    ) -> None:
        self.fault = ""  # an error of the judge's own
        self._shape = shape
        self._arrays = shape.arrays(memory)
        self._head = self._arrays["head"]
        self._loops = Loops(path, source)
        self._kernel, self._launches, self._program = "", 0, (0, 0, 0)
        self._places: rounds.Places | None = None
        self._queries: np.ndarray | None = None  # of the walk that is followed
        self._over = False  # that walk is over
        self._others: set[tuple[int, tuple[int, int, int]]] = set()
        self._round = -1
        self._keys: np.ndarray | None = None
        self._frame: Any = None  # whose loop's head ends the round
        self._heads: range = range(0)
        self._level = 0  # how many loops further out than the innermost that is
        self._open = False  # the round has not ended
        self._carried: set[str] = set()  # into its loop
        self._segments: list[tuple[str, int]] = []
        self._slots: dict[tuple[str, bool], int] = {}  # of variables, by name and whether a vector

    # -- where a kernel is ------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self, kernel: str) -> Iterator[None]:
        """Follow the programs of a launch of `kernel`, where one of them is wanted."""
        self._kernel, outer = kernel, sys.gettrace()
        self._launches += 1
        try:
            yield
        finally:
            self._program_ends()
            sys.settrace(outer)

    def _hear(self, frame: Any) -> None:
        """Hear of each line that a frame runs from now on, and of no other frame's.

        To hear of the lines of all programs takes as long as to run them.
        """
        frame.f_trace = self._ran
        sys.settrace(_ignore)

    def _ran(self, frame: Any, event: str, _: Any) -> Any:
        # Before its weights have met V, no round is over: there may be a loop over head_dim.
        if self._open and frame is self._frame and frame.f_lineno in self._heads:
            try:
                if self._of_round("products") or self._of_round("apart"):
                    self._end_round(frame, seen=True)
            except Exception as error:  # else it would be the kernel's
                self._fail(error)
        return self._ran

    def _fail(self, error: Exception) -> None:
        self.fault = f"{type(error).__name__} while a round ended: {error}"
        self._open = False

    def program_begins(self, x: int, y: int, z: int) -> None:
        """Note which program runs from now on."""
        self._program_ends()
        self._program = (x, y, z)

    def _program_ends(self) -> None:
        self.stored()
        self._over |= self._queries is not None
        if self._frame is not None:
            self._frame.f_trace = None
            sys.settrace(None)
        self._frame = None

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
            self._end_round(self._frame, seen=False)

    def _wants(self, queries: Rows) -> bool:
        if self._shape.program is not None:
            return self._program == tuple(self._shape.program)
        return self._follows_all or bool((queries.ids == self._shape.row).any())

    @property
    def _follows_all(self) -> bool:
        """Whether each walk takes the place of the one before it."""
        return self._shape.program is None and self._shape.row < 0

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
        """Find the loop whose head ends this round, and what is carried into it."""
        if not self._open:
            return
        frames = self._loops.frames(sys._getframe(1))
        levels = [(frame, loop) for frame in frames for loop in self._loops.around(frame)]
        if self._level < len(levels):
            self._frame, (first, self._heads) = levels[self._level]
        else:  # of no loop: its end is not seen
            self._frame, (first, self._heads) = frames[-1] if frames else None, (0, range(0))
        if self._frame is None:
            return
        self._hear(self._frame)
        segment = (self._frame.f_code.co_name, first)
        if segment not in self._segments:
            self._segments.append(segment)
        self._note("segment", self._segments.index(segment))
        self._note("loop", first if self._loops.is_own(self._frame) else 0)
        self._carried = self._loops.assigned_before(self._frame, first) if first else set()

    def _end_round(self, frame: Any, *, seen: bool) -> None:
        self._open = False
        if frame is None or self._places is None:
            return
        self._note("ended", int(seen))
        for name, handle in _tensors(frame):
            slot = self._slot(name, handle)
            if slot is None:
                continue
            values = _numbers(handle)
            if slot < VECTORS:
                self._places.vectors[self._round, slot] = values.reshape(-1)
            else:
                turned = values.shape != (self._queries.size, self._shape.head_dim)
                index = slot - VECTORS
                self._places.matrices[self._round, index] = values.T if turned else values
                made = (getattr(handle, "product", None) or (None,))[0] == _OUT
                self._arrays["variables"][slot, VARIABLE.index("of_products")] |= int(made)
            self._arrays["present"][self._round, slot] = 1
            carried = name.partition("[")[0] in self._carried
            self._arrays["variables"][slot, VARIABLE.index("carried")] |= int(carried)

    def _slot(self, name: str, handle: Any) -> int | None:
        """Return where a variable is kept, None where it is none of the running state."""
        data, rows = getattr(handle, "data", None), self._queries.size
        if not isinstance(data, np.ndarray):  # a block pointer
            return None
        vector = data.shape in ((rows,), (rows, 1), (1, rows))
        matrix = data.shape in ((rows, self._shape.head_dim), (self._shape.head_dim, rows))
        if not (vector or matrix) or getattr(handle, "loaded", False) or is_of_pairs(handle):
            return None
        if _numbers(handle) is None:
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


def _ignore(frame: Any, event: str, _: Any) -> None:
    """Hear of a call, and of nothing in it."""


def _tensors(frame: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and handle of a frame's tensors of numbers, those in tuples too."""
    from triton import language as tl

    for name, value in frame.f_locals.items():
        if type(value) is tl.tensor:
            yield name, value.handle
        elif type(value) in (tuple, tl.tuple):
            for index, part in enumerate(value):
                if type(part) is tl.tensor:
                    yield f"{name}[{index}]", part.handle


def _numbers(handle: Any) -> np.ndarray | None:
    """Return floating-point values, None where a tensor holds others."""
    data = handle.data
    if data.dtype.kind == "f":
        return data
    if data.dtype == np.uint16 and handle.dtype.name == "bf16":
        return (data.astype(np.uint32) << 16).view(np.float32)
    return None
