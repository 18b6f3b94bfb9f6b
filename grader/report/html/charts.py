"""Charts as SVG: measures on a logarithmic axis, points over the runs, the roofline of the GPU.

This module draws them without a library: uPlot and Chart.js paint on a canvas, which shows nothing
without a script, on paper or to a screen reader, and the page's Content-Security-Policy forbids
scripts to set styles. Vega-Lite and Plotly make SVG, but weigh 0.8 to 4 MB.
A chart is 480 units wide, so that its text, 14 units, is 10 px high on a phone.

The bandwidth of memory limits a kernel with few operations per byte, the rate of dots one with
many. The lower of the two is the roof: Williams, Waterman and Patterson, "Roofline: An Insightful
Visual Performance Model for Multicore Architectures", CACM 52 (4), 2009.
Operations and bytes are those that a call needs, as `grader.spec.roofline` counts them, and not
those that a kernel executed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace

from grader.base.text import finite
from grader.report.score import figures_of
from grader.spec.grade_record import GradeRecord, ProblemResult, SpeedFigures
from grader.spec.problem import ManifestError, load_problem, problem_ids
from grader.spec.roofline import answer_counts, rates

WIDTH = 480
_LEFT, _RIGHT = 44, 84
_ROW, _TOP, _BOTTOM = 30, 8, 24
_MOST_TICKS = 6
_DECADES = 30  # values beyond this power of ten, or its inverse, are not drawn


@dataclasses.dataclass(frozen=True)
class Measure:
    """One row: a value, the naive one (`base`), and the span from no points to all (`low`, `high`).

    None stands for an unknown number. `shown` is the value as text.
    """

    label: str
    value: float | None
    shown: str
    base: float | None = None
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Tick:
    """A grid line of the chart, with its label."""

    at: float
    text: str


@dataclasses.dataclass(frozen=True)
class LogAxis:
    """An axis from 10 ** `first` to 10 ** `last`, drawn from `start` to `end`."""

    first: float
    last: float
    start: float
    end: float

    def at(self, number: float) -> float:
        """Return the coordinate of a number, clamped to the ends of the axis."""
        share = (math.log10(number) - self.first) / (self.last - self.first)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self, written: Callable[[float], str]) -> tuple[Tick, ...]:
        """Return ticks at 1, 2 and 5 of each decade, or at 1 alone over two decades or more."""
        factors = (1, 2, 5) if self.last - self.first < 2 else (1,)
        decades = range(math.floor(self.first), math.floor(self.last) + 1)
        every = max(1, -(-len(decades) // _MOST_TICKS))
        numbers = [f * 10.0**d for d in decades if d % every == 0 for f in factors]
        inside = [n for n in numbers if self.first <= math.log10(n) <= self.last]
        return tuple(Tick(self.at(n), written(n)) for n in inside)


def dots(measures: Sequence[Measure], written: Callable[[float], str]) -> SimpleNamespace | None:
    """Return the chart of `measures`; `written` formats the axis. None if there is no number.

    A position in one of its `rows` is None if the number is unknown.
    """
    numbers = [n for m in measures for n in (m.value, m.base, m.low, m.high) if _drawn(n)]
    if not numbers:
        return None
    first = math.floor(math.log10(min(numbers)) * 2 - 0.2) / 2
    last = max(math.ceil(math.log10(max(numbers)) * 2 + 0.2) / 2, first + 0.5)
    axis = LogAxis(first, last, _LEFT, WIDTH - _RIGHT)

    def at(value: float | None) -> float | None:
        return axis.at(value) if value is not None and _drawn(value) else None

    rows = []
    for number, m in enumerate(measures):
        low, high = at(m.low), at(m.high)
        span = (min(low, high), max(low, high)) if low is not None and high is not None else None
        drawn = {"y": _TOP + (number + 0.5) * _ROW, "value": at(m.value), "base": at(m.base)}
        rows.append(SimpleNamespace(label=m.label, shown=m.shown, span=span, **drawn))
    height = _TOP + len(rows) * _ROW + _BOTTOM
    return SimpleNamespace(height=height, rows=rows, ticks=axis.ticks(written))


def _drawn(value: float | None) -> bool:
    number = finite(value)
    return number is not None and 10.0**-_DECADES < number < 10.0**_DECADES


def steps(values: Iterable[float], most: float) -> SimpleNamespace | None:
    """Return the chart of points after each run, out of `most`; None for fewer than two runs.

    It is a step line with a dot for each run.
    """
    found = list(values)
    if len(found) < 2:
        return None
    top, bottom, left, right = 14, 160, _LEFT, WIDTH - 60
    most = max(most, max(found), 1.0)

    def height(value: float) -> float:
        return round(bottom - value / most * (bottom - top), 1)

    across = (round(left + n * (right - left) / (len(found) - 1), 1) for n in range(len(found)))
    places = list(zip(across, map(height, found), strict=True))
    path = f"M{places[0][0]} {places[0][1]}" + "".join(f"H{x}V{y}" for x, y in places[1:])
    step = next((s for s in (1, 2, 5, 10, 25, 50, 100, 250) if most / s <= 6), 10_000)
    ticks = [Tick(height(value), str(value)) for value in range(0, int(most) + 1, step)]
    return SimpleNamespace(height=190, path=path, marks=places, ticks=ticks, last=places[-1])


_WEST, _EAST, _NORTH, _SOUTH = 52, 450, 20, 250
_LABEL = 14  # pixels between labels


@dataclasses.dataclass(frozen=True)
class Point:
    """One answer: operations per byte, operations per second, and their share of the roof there."""

    id: str
    intensity: float
    rate: float
    share: float
    bound: str


def roofline(record: GradeRecord) -> SimpleNamespace | None:
    """Return the chart, and its points as `rows` of a table.

    None where the GPU's rates or the times of all answers are unknown.
    """
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
    across, up = LogAxis(low, high, _WEST, _EAST), LogAxis(bottom, top, _SOUTH, _NORTH)
    x, y = across.at, up.at
    left = max(low, bottom - math.log10(bytes_per_s))
    corner = f"{x(10.0**left)} {y(bytes_per_s * 10.0**left)}"
    return SimpleNamespace(
        width=WIDTH,
        height=_SOUTH + 40,
        path=f"M{corner}L{x(ridge)} {y(dots)}H{_EAST}",
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
    """Return the point of an answer; None if it has no dots, or its time or shape is unknown."""
    figures = figures_of(problem, SpeedFigures)
    if figures is None or problem.id not in problem_ids():
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
) -> list[SimpleNamespace]:
    """Place the points from the top down; move a label down that would touch the one above."""
    marks: list[SimpleNamespace] = []
    for point in sorted(points, key=lambda p: -p.rate):
        at, high = x(point.intensity), y(point.rate)
        near = [m.label_y for m in marks if abs(m.x - at) < 3 * _LABEL]
        label_y = max([high + 5, *(n + _LABEL for n in near)])
        marks.append(SimpleNamespace(label=point.id, x=at, y=high, label_y=label_y))
    return marks
