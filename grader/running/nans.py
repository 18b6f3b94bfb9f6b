"""Where a NaN first came out of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from grader.running.trace import Counter

_OPERATIONS = ("subtract", "add", "multiply", "divide", "exp2", "exp", "dot")  # 0: another


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
        if data is None or data.dtype.kind != "f" or not np.isnan(data).any():
            return
        if any(o.data.dtype.kind == "f" and np.isnan(o.data).any() for o in operands):
            return
        name = getattr(operation, "__name__", str(operation))
        kind = _OPERATIONS.index(name) + 1 if name in _OPERATIONS else 0
        if not self._kinds:
            self._counters[Counter.NAN_LINE] = line()
            self._counters[Counter.NAN_OPERATION] = kind
        self._kinds.add(kind)
        self._counters[Counter.NAN_KINDS] = len(self._kinds)
