"""Writes down one program round by round, as `grader.kernel.observers.stepping` does.

Which rounds there are is that room's; here a round ends where a loop of TTIR says so, and what
variables hold then is what the machine has for the student's names.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.kernel.machine import events
from grader.kernel.machine.observers.knowledge import handle
from grader.kernel.machine.observers.tracing import OUT, Tracing
from grader.kernel.machine.ttir import Operation
from grader.kernel.observers import rounds, stepping
from grader.kernel.observers.products import tags_of
from grader.kernel.observers.rounds import VARIABLE, VECTORS
from grader.kernel.observers.trace import SCORES


class Steps(stepping.Steps):
    """Writes the rounds of the program that a `RoundsShape` asks for into its block."""

    def __init__(self, shape: rounds.RoundsShape, memory: np.ndarray, path: str) -> None:
        super().__init__(shape, memory, path, b"")
        self._path = path
        self._around: tuple[Operation, ...] = ()
        self._seen: list[Operation] = []
        self._values: dict[str, Any] = {}

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
        if self._open and loop is self._frame and met:
            self._end_round(loop, seen=True)

    def ends(self) -> None:
        """End with the last program."""
        self._program_ends()

    def _program_ends(self) -> None:
        self.stored()
        self._over |= self._queries is not None
        self._frame = None

    def _find_loop(self) -> None:
        if not self._open:
            return
        around = self._around[self._level :]
        self._frame = around[0] if around else self
        first = around[0].place.line_in(self._path) if around else 0
        if self._frame not in self._seen:
            self._seen.append(self._frame)
        self._note("segment", self._seen.index(self._frame))
        self._note("loop", first)

    def _end_round(self, frame: Any, *, seen: bool) -> None:
        self._open = False
        if frame is None or self._places is None:
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


class Stepping(Tracing):
    """A trace of a call that also has the rounds of one program."""

    def __init__(self, *places: Any, steps: Steps) -> None:
        super().__init__(*places)
        self._steps = steps

    def _look(self, event: events.Event) -> Any:
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
