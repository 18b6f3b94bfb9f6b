"""Points as whole numbers, for readers that know no others: the total is rounded, once.

The parts add up to the rounded total, so each may be up to one point away from what was earned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from grader.spec.grade_record import Points


def rounded(points: float) -> int:
    """Return `points` as a whole number; a half counts for the student."""
    return math.floor(round(points, 6) + 0.5)


def wholes(parts: Sequence[Points]) -> list[tuple[int, int]]:
    """Return earned and available points of each part, which add up to the rounded totals.

    No part earns more than is available in it. Parts that earned everything come first when points
    are handed out, then those that lost most by being rounded down.
    """
    possible = [part.available for part in parts]
    ceilings = [math.ceil(round(points, 6)) for points in possible]
    available = _spread(possible, ceilings, [False] * len(parts))
    complete = [part.earned >= part.available for part in parts]
    earned = _spread([part.earned for part in parts], available, complete)
    return list(zip(earned, available, strict=True))


def _spread(shares: Sequence[float], limits: Sequence[int], first: Sequence[bool]) -> list[int]:
    exact = [round(share, 6) for share in shares]
    whole = [min(math.floor(x), limit) for x, limit in zip(exact, limits, strict=True)]
    order = sorted(range(len(whole)), key=lambda i: (not first[i], whole[i] - exact[i], i))
    missing = rounded(sum(exact)) - sum(whole)
    while missing > 0:
        for i in order:
            if missing > 0 and whole[i] < limits[i]:
                whole[i] += 1
                missing -= 1
    return whole
