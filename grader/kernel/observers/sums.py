"""What becomes of products: each round's belongs in a sum, and a sum has 32 bits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from grader.kernel.observers.trace import SCORES, Counter


class Sums:
    """Notes the products of a program that nothing takes up, and additions in 16 bits."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self._discarded = arrays["discarded"]
        self._left_out = arrays["left_out"]
        self._counters = arrays["counters"]
        # Of one program, by product, line and the loop around it.
        self._results: dict[tuple[int, int, int], list[Any]] = {}

    def used(self, values: Iterable[Any]) -> None:
        """Note that an operation takes these handles up."""
        for value in values:
            if "unused" in getattr(value, "__dict__", ()):  # Triton 3.6 has no hasattr of tuples
                value.unused = False

    def multiplied(self, result: Any, product: int, line: int, loop: int) -> None:
        """Note a product that belongs in a sum."""
        if product <= SCORES:
            result.unused = True
            self._results.setdefault((product, line, loop), []).append(result)

    def program_ends(self) -> None:
        """Look for products of the program that were taken up by nothing.

        Those of a loop's earlier rounds are replaced by the later ones; that of the last round has
        them all, and nothing is done with it.
        """
        for (product, line, _), (*earlier, last) in self._results.items():
            table = self._discarded if any(r.unused for r in earlier) else self._left_out
            if (last.unused or table is self._discarded) and not table[product]:
                table[product] = line
        self._results.clear()

    def summed(self, reduction: Any, handle: Any, line: int) -> None:
        """Note a sum over an axis of elements of x, or of their products, that has 16 bits."""
        name = getattr(reduction.combine_fn, "__name__", "")
        if name == "_sum_combine" and handle.dtype.scalar.primitive_bitwidth == 16:
            self._counters[Counter.HALF_SUM_LINE] = line

    def added(self, result: Any, operation: Any, line: int) -> None:
        """Note an addition of elements of x, or of their products, that is rounded to 16 bits."""
        if operation is np.add and result.dtype.scalar.primitive_bitwidth == 16:
            self._counters[Counter.HALF_SUM_LINE] = line
