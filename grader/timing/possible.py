"""Finds times that no GPU can reach: such a call did not read its inputs, or did not compute.

L2 is flushed before each call, so that the inputs come from the memory of the device.
"""

from __future__ import annotations

from grader.spec.grade_record import Environment, SpeedFigures
from grader.spec.problem import Problem
from grader.spec.roofline import least

# A time is impossible below this share of the least one. The fastest recorded answer took 0.92 of
# it (p02 on an H200, docs/records): the cost of an empty call, which is subtracted, is itself
# measured, and as long as that call.
_ROOM = 0.5


def impossible(problem: Problem, figures: SpeedFigures, environment: Environment) -> str | None:
    """Return why no right answer can have these figures; None if one can, or nobody knows."""
    cases = problem.benchmarks_on(environment.device)
    case = next((case for case in cases if str(case) == figures.shape), None)
    roof = least(problem, case, environment) if case else None
    if roof is None or figures.median_ms is None or figures.median_ms >= _ROOM * roof.ms:
        return None
    by_dots = roof.operations / roof.rate > roof.bytes / roof.bandwidth
    what = "multiplies the matrices" if by_dots else "reads the inputs"
    return (
        f"impossible: a call took {figures.median_ms:.2g} ms, and this GPU {what} in"
        f" {roof.ms:.2g} ms at its highest clocks"
    )
