"""Records what a call's kernels read, multiply and store, as a `Trace`.

It sees each operation once for all programs that run at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events, kinds
from grader.kernel.observers import trace
from grader.kernel.observers.combining import ELEMENTWISE, Combining, Nans
from grader.kernel.observers.knowledge import moved
from grader.kernel.observers.pairs import Pairs
from grader.kernel.observers.placement import Placement
from grader.kernel.observers.products import Products
from grader.kernel.observers.record import Record, Where
from grader.kernel.observers.stepping import Steps
from grader.kernel.observers.touching import Touching

_MOVES = ("tt.expand_dims", "tt.trans", "tt.reshape", "tt.broadcast")


class Tracing:
    """An observer of the launches of one call; `finish` writes the tables.

    `fault` is an error of the observer itself, empty if none; after it, the observer sees nothing.
    """

    def __init__(
        self,
        shape: trace.TraceShape,
        memory: np.ndarray,
        path: str,
        source: bytes,
        inputs: dict[str, Any],
        steps: Steps | None = None,
    ) -> None:
        """Trace kernels of the submission at `path`, which get `inputs`.

        With `steps`, also record the rounds of one program.
        """
        self.fault = ""
        self._where = Where(path, source)
        self._record = record = Record(shape, memory, self._where, inputs)
        self._steps = steps
        pairs, placement, nans = Pairs(record), Placement(record), Nans(record)
        self._products = products = Products(record, pairs, placement, nans, steps)
        self._touching = touching = Touching(record, placement, pairs, steps)
        self._begins = [
            room.launched for room in (record, touching, pairs, products, steps) if room
        ]
        combining = Combining(record, placement, nans)
        self._applied = combining.applied
        self._looks = {
            **dict.fromkeys(ELEMENTWISE, combining.computed),
            **dict.fromkeys(_MOVES, moved),
            **dict.fromkeys(kinds.ACCESSES, touching.touched),
            "tt.dot": products.multiplied,
            "tt.reduce": products.reduced,
        }

    def __call__(self, event: events.Event) -> Any:
        """Observe an event; of a computation, return the note of its result."""
        if self.fault:
            return None
        try:
            with np.errstate(all="ignore"):
                return self._look(event)
        except MemoryError:  # of the kernel
            raise
        except Exception as error:  # of the observer
            self.fault = f"{type(error).__name__} at line {self._where.line}: {error}"
            return None

    def _look(self, event: events.Event) -> Any:
        if isinstance(event, events.Launched):
            for begin in self._begins:
                begin(event)
        elif isinstance(event, events.RoundEnded):
            self._record.round_ended(event)
            if self._steps:
                self._steps.round_ended(event)
        elif isinstance(event, events.Flowed):
            self._touching.flowed(event)
        elif isinstance(event, events.Computed):
            self._where.at(event.op)
            if event.op.name in kinds.COMBINING:
                self._applied(event)
            look = self._looks.get(event.op.name)
            return look and look(event)
        return None

    def finish(self, results: dict[str, Any]) -> None:
        """Write the tables; `results` are what the entry point returned, by name."""
        with np.errstate(all="ignore"), torch.no_grad():
            self._record.write()
            self._products.write()
            self._touching.write(results)
            if self._steps:
                self._steps.ends()
