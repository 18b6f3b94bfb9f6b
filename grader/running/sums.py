"""What becomes of products: each round's belongs in a sum, and a sum has 32 bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from grader.running.trace import PRODUCTS, Counter


class Sums:
    """Notes the products of a program that nothing takes up, and additions in 16 bits."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._discarded = arrays["discarded"]
        self._counters = arrays["counters"]
        self._results: dict[tuple[int, int], list[Any]] = {}  # of one program, by product and line

    def used(self, values: Iterable[Any]) -> None:
        """Note that an operation takes these handles up."""
        for value in values:
            if hasattr(value, "unused"):
                value.unused = False

    def multiplied(self, result: Any, product: int, line: int) -> None:
        """Note a product that belongs in a sum."""
        if product < len(PRODUCTS):
            result.unused = True
            self._results.setdefault((product, line), []).append(result)

    def program_ends(self) -> None:
        """Look for products of the program that were taken up by nothing."""
        for (product, line), results in self._results.items():
            if any(result.unused for result in results) and not self._discarded[product]:
                self._discarded[product] = line
        self._results.clear()

    def added(self, result: Any, operation: Any, line: int) -> None:
        """Note an addition of elements of x, or of their products, that is rounded to 16 bits."""
        if operation is np.add and result.dtype.scalar.primitive_bitwidth == 16:
            self._counters[Counter.HALF_SUM_LINE] = line
