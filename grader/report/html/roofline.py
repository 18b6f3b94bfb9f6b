"""The roofline of the GPU, and where each answer stands below it.

The bandwidth of memory limits a kernel with few operations per byte, the rate of dots one with
many. The lower of the two is the roof: Williams, Waterman and Patterson, "Roofline: An Insightful
Visual Performance Model for Multicore Architectures", CACM 52 (4), 2009.
Operations and bytes are what a call has to do, as `grader.spec.roofline` counts them,
and not what a kernel did.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from grader.base.text import finite
from grader.report.html.charts import WIDTH, LogAxis, Tick
from grader.report.score import shown_figures
from grader.spec.grade_record import GradeRecord, ProblemResult, SpeedFigures
from grader.spec.problem import ManifestError, load_problem, problem_ids
from grader.spec.roofline import answer_counts, rates

_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 450, 20, 250
_LABEL = 14  # pixels between labels


@dataclasses.dataclass(frozen=True)
class Point:
    """One answer: operations per byte, operations per second, and their share of the roof there."""

    id: str
    intensity: float
    rate: float
    share: float
    bound: str


@dataclasses.dataclass(frozen=True)
class Mark:
    """A point as it is drawn; its label may stand lower than it, so that none hides another."""

    label: str
    x: float
    y: float
    label_y: float


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The chart, and its points as rows of a table."""

    path: str
    marks: tuple[Mark, ...]
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]
    rows: list[tuple[str, ...]]
    height: int = _BOTTOM + 40
    width: int = WIDTH


def roofline(record: GradeRecord) -> Roofline | None:
    """Return the roofline; None where the GPU's rates or the times of the answers are not known."""
    known = rates(record.environment)
    if known is None:
        return None
    dots, bytes_per_s = known
    found = [_point(problem, dots, bytes_per_s) for problem in record.problems]
    points = [point for point in found if point is not None]
    if not points:
        return None
    ridge = dots / bytes_per_s
    low = math.log10(min(ridge, *(p.intensity for p in points))) - 0.3
    high = math.log10(max(ridge, *(p.intensity for p in points))) + 0.3
    bottom = math.log10(min(bytes_per_s * 10.0**low, *(p.rate for p in points))) - 0.2
    top = math.log10(max(dots, *(p.rate for p in points))) + 0.1
    across, up = LogAxis(low, high, _LEFT, _RIGHT), LogAxis(bottom, top, _BOTTOM, _TOP)
    x, y = across.at, up.at
    left = max(low, bottom - math.log10(bytes_per_s))
    corner = f"{x(10.0**left)} {y(bytes_per_s * 10.0**left)}"
    return Roofline(
        path=f"M{corner}L{x(ridge)} {y(dots)}H{_RIGHT}",
        marks=_marks(points, x, y),
        across=across.ticks("{:,.12g}".format),
        up=up.ticks(lambda n: f"{n / 1e12:.6g}"),
        rows=[
            (
                point.id,
                f"{point.intensity:,.0f}",
                f"{point.rate / 1e12:,.0f}",
                f"{100 * point.share:.2g} %",
                point.bound,
            )
            for point in points
        ],
    )


def _point(problem: ProblemResult, dots: float, bytes_per_s: float) -> Point | None:
    """Return where an answer with dots stands; None where its time or its shape is not known."""
    figures = shown_figures(problem.components.get("speed"))
    if not isinstance(figures, SpeedFigures) or problem.id not in problem_ids():
        return None
    took_ms = finite(figures.median_ms)
    try:
        given = load_problem(problem.id)
    except ManifestError:
        return None
    cases = [case for case in given.benchmarks_on("cuda") if str(case) == figures.shape]
    if not given.uses_triton or not cases or took_ms is None or took_ms <= 0:
        return None
    counts = answer_counts(given, cases[0])
    if not counts.operations:
        return None
    intensity, rate = counts.operations / counts.bytes, counts.operations / took_ms * 1000
    roof = min(dots, intensity * bytes_per_s)
    return Point(problem.id, intensity, rate, rate / roof, "dots" if roof == dots else "bytes")


def _marks(
    points: list[Point], x: Callable[[float], float], y: Callable[[float], float]
) -> tuple[Mark, ...]:
    """Place the points from the top down; a label that would touch the one above moves down."""
    marks: list[Mark] = []
    for point in sorted(points, key=lambda p: -p.rate):
        at, high = x(point.intensity), y(point.rate)
        near = [m.label_y for m in marks if abs(m.x - at) < 3 * _LABEL]
        marks.append(Mark(point.id, at, high, max([high + 5, *(n + _LABEL for n in near)])))
    return tuple(marks)
