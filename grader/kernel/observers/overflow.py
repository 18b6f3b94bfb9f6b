"""Offsets of 32 bits that wrap around: what is addressed then is somewhere else."""

from __future__ import annotations

import dataclasses

import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import cast
from grader.kernel.machine.ttir import Place

_BITS = 32


@dataclasses.dataclass(frozen=True)
class Wrap:
    """An operation's result was `wide` in the first of its programs, and 32 bits do not hold it."""

    place: Place
    operation: str
    program: int
    wide: int


class Overflow:
    """Collects operations that wrap around; `found` has the first time of each."""

    def __init__(self) -> None:
        self.found: list[Wrap] = []
        self._told: set[int] = set()

    def __call__(self, event: events.Event) -> None:
        """Look at one event."""
        if not isinstance(event, events.Wrapped) or id(event.op) in self._told:
            return
        self._told.add(id(event.op))
        wides = event.wide.reshape(event.wide.shape[0], -1)
        rows = wides != cast(wides, torch.int32)
        row, place = rows.nonzero()[0].tolist()
        wide = int(wides[row, place])
        program = int(event.programs[row if rows.shape[0] > 1 else 0])
        self.found.append(Wrap(event.op.place, event.op.name, program, wide))
