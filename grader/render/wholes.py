"""Points as whole numbers, for readers that know no others: the total is rounded, once.

The parts add up to the rounded total, so each may be up to one point away from what was earned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from grader.model import Points


def rounded(points: float) -> int:
    """Return `points` as a whole number; a half counts for the student."""
    return math.floor(round(points, 6) + 0.5)


def wholes(parts: Sequence[Points]) -> list[tuple[int, int]]:
    """Return earned and available points of each part, which add up to the rounded totals.

    What is earned is never more than what is available, and is all of it where that is so.
    """
    available = _spread([part.available for part in parts], [math.inf] * len(parts))
    shares = [part.earned for part in parts]
    complete = [part.earned >= part.available for part in parts]
    return list(zip(_spread(shares, available, complete), available, strict=True))


def _spread(
    shares: Sequence[float], limits: Sequence[float], first: Sequence[bool] | None = None
) -> list[int]:
    """Round down, then give what is missing to those of `first`, then to the largest remainders."""
    whole = [min(math.floor(round(share, 6)), limit) for share, limit in zip(shares, limits)]
    whole = [int(number) for number in whole]
    preferred = first or [False] * len(shares)
    order = sorted(
        range(len(shares)), key=lambda i: (not preferred[i], whole[i] - round(shares[i], 6), i)
    )
    missing = rounded(sum(shares)) - sum(whole)
    while missing > 0:
        for i in order:
            if missing > 0 and whole[i] < limits[i]:
                whole[i] += 1
                missing -= 1
    return whole
