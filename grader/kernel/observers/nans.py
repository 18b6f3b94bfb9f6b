"""Where a NaN first came out of numbers.

Lanes of no query, of a last tile that reaches past the end, are left out: what comes out there is
stored nowhere, and right kernels have NaN in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.kernel.observers.trace import Counter

_OPERATIONS = ("subtract", "add", "multiply", "divide", "exp2", "exp", "dot")  # 0: another
_SUBTRACT = _OPERATIONS.index("subtract") + 1


class Nans:
    """Counts the kinds of operations by which NaN came out of operands without."""

    def __init__(self, counters: np.ndarray) -> None:
        self._counters = counters
        self._kinds: set[int] = set()

    def look(
        self, result: Any, operands: list[Any], operation: Any, line: Callable[[], int]
    ) -> None:
        """Look at what an operation made of its operands."""
        data = getattr(result, "data", None)
        if data is None or data.dtype.kind != "f":
            return
        born = np.isnan(data)
        if not born.any():
            return
        someone = ~_of_nobody(result)
        born &= someone
        if not born.any() or any(_has_nan(operand.data, someone) for operand in operands):
            return
        name = getattr(operation, "__name__", str(operation))
        kind = _OPERATIONS.index(name) + 1 if name in _OPERATIONS else 0
        if not self._kinds:
            self._counters[Counter.NAN_LINE] = line()
            self._counters[Counter.NAN_OPERATION] = kind
            if kind == _SUBTRACT and len(operands) == 2:
                taken = np.broadcast_to(operands[0].data, born.shape)[born]
                self._counters[Counter.NAN_SIGN] = _sign(taken)
        self._kinds.add(kind)
        self._counters[Counter.NAN_KINDS] = len(self._kinds)


def _of_nobody(result: Any) -> np.ndarray:
    """Return the lanes of a result that are of no row of q, in its shape."""
    lanes = np.zeros(result.data.shape, bool)
    for axis, rows in enumerate(getattr(result, "tags", None) or ()):
        if rows is not None and rows.of_queries and lanes.shape[axis] == rows.ids.size:
            shape = [1] * lanes.ndim
            shape[axis] = rows.ids.size
            lanes |= (rows.ids < 0).reshape(shape)
    return lanes


def _has_nan(data: np.ndarray, lanes: np.ndarray) -> bool:
    """Whether an operand is NaN in one of the lanes of its result."""
    if data.dtype.kind != "f":
        return False
    found = np.isnan(data)
    return bool((found & lanes if found.shape == lanes.shape else found).any())


def _sign(numbers: np.ndarray) -> int:
    """Return 1 where all of some numbers are -inf, 2 where all are +inf, 0 elsewhere."""
    if not np.isinf(numbers).all():
        return 0
    return 1 if (numbers < 0).all() else 2 if (numbers > 0).all() else 0
