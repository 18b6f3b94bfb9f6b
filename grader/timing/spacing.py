"""Keeps the two targets of a problem apart, and rounds them."""

from __future__ import annotations

import math

from grader.spec.problem_tables import Targets

# Points are linear in log(speed-up) between the targets, so that a speed-up that is read 10 % too
# low costs log(1.1) / log(1.5), a quarter of the points, at the worst; closer targets cost more.
_LEAST_RATIO = 1.5


def spaced(floor: float, full: float) -> Targets:
    """Return targets with this `full`, and this `floor` unless it is too close: then a lower one.

    Raises:
        ValueError: `full` is not a positive number.
    """
    if not 0 < full < math.inf:
        raise ValueError(f"full: got {full}, expected a positive number")
    return Targets(floor=min(floor, rounded_down(full / _LEAST_RATIO)), full=full)


def rounded_down(value: float) -> float:
    """Return a positive number with two significant digits that is not above `value`."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(math.floor(value / step + 1e-9) * step, 12)
