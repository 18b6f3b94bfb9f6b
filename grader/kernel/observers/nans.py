"""Where a NaN first came out of numbers.

Lanes of no query, of a last tile that reaches past the end, are left out: what comes out there is
stored nowhere, and right kernels have NaN in them.
"""

from __future__ import annotations

import torch

from grader.kernel.machine import events
from grader.kernel.observers.knowledge import Rows
from grader.kernel.observers.record import Record
from grader.kernel.observers.trace import Counter

_OPERATIONS = (  # 0: another
    *("arith.subf", "arith.addf", "arith.mulf", "arith.divf", "math.exp2", "math.exp", "tt.dot"),
)
_SUBTRACTION = _OPERATIONS.index("arith.subf") + 1


class Nans:
    """Counts the kinds of operations by which NaN came out of operands without."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._kinds: set[int] = set()

    def look(self, event: events.Computed, axes: tuple[Rows | None, ...]) -> None:
        """Look at what an operation made of its operands; `axes` are those of its result."""
        (result,), (*types, type) = event.results, event.types
        if not type.is_float:
            return
        found = result.isnan()
        if not bool(found.any()):
            return
        someone = torch.ones((1,) * (len(type.shape) + 1), dtype=torch.bool)
        for axis, rows in enumerate(axes):
            if rows is not None and rows.of_queries:
                sizes = [1] * len(type.shape)
                sizes[axis] = rows.ids.shape[1]
                someone = someone & (rows.ids != -1).reshape(-1, *sizes)
        found = found & someone
        born = _any(found)
        for value, own in zip(event.operands, types, strict=True):
            if own.is_float:
                there = value.isnan()
                born = born & ~_any(there & someone if own.shape == type.shape else there)
        if not bool(born.any()):
            return
        name, counters = event.op.name, self._record.counters
        kind = _OPERATIONS.index(name) + 1 if name in _OPERATIONS else 0
        if not self._kinds:
            self._record.note_line(Counter.NAN_LINE)
            counters[Counter.NAN_OPERATION] = kind
            if kind == _SUBTRACTION:
                first = int(born.nonzero()[0, 0])
                taken, lanes = torch.broadcast_tensors(event.operands[0], found)
                counters[Counter.NAN_SIGN] = _sign(taken[first][lanes[first]])
        self._kinds.add(kind)
        counters[Counter.NAN_KINDS] = len(self._kinds)


def _any(flags: torch.Tensor) -> torch.Tensor:
    """Return in which programs any lane is true."""
    return flags.flatten(1).any(1) if flags.dim() > 1 else flags


def _sign(numbers: torch.Tensor) -> int:
    """Return 1 where all of some numbers are -inf, 2 where all are +inf, 0 elsewhere."""
    if not bool(numbers.isinf().all()):
        return 0
    return 1 if bool((numbers < 0).all()) else 2 if bool((numbers > 0).all()) else 0
