"""Charts as SVG: what was measured on a logarithmic axis, and points over the runs.

They are drawn here, and no library draws them in the browser: uPlot and Chart.js paint on a canvas,
which shows nothing without a script, on paper or to a screen reader, and the strict
Content-Security-Policy of the page lets no style be set by a script. Vega-Lite and Plotly make SVG,
but weigh 0.8 to 4 MB. Three kinds of marks on two axes need neither.
A chart is 480 units wide, so that its text, 14 units, is 10 px high on a phone.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence

from grader.base.text import finite

WIDTH = 480
_LEFT, _RIGHT = 44, 84
_ROW, _TOP, _BOTTOM = 30, 8, 24
_MOST_TICKS = 6
_DECADES = 30  # what is smaller or larger than this power of ten is drawn at the edge


@dataclasses.dataclass(frozen=True)
class Measure:
    """One row: a value, the naive one (`base`), and the span from no points to all (`low`, `high`).

    What is not known is None. `shown` is the value as text.
    """

    label: str
    value: float | None
    shown: str
    base: float | None = None
    low: float | None = None
    high: float | None = None


@dataclasses.dataclass(frozen=True)
class Tick:
    """A line across the chart with its text."""

    at: float
    text: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A row as it is drawn: positions, None where there is nothing to draw."""

    label: str
    shown: str
    y: float
    value: float | None
    base: float | None
    span: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Dots:
    """A chart of rows over a logarithmic axis."""

    height: float
    rows: tuple[Row, ...]
    ticks: tuple[Tick, ...]


@dataclasses.dataclass(frozen=True)
class LogAxis:
    """An axis from 10 ** `first` to 10 ** `last`, drawn from `start` to `end`."""

    first: float
    last: float
    start: float
    end: float

    def at(self, number: float) -> float:
        """Return the place of a number; what is beyond an end is drawn there."""
        share = (math.log10(number) - self.first) / (self.last - self.first)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 1)

    def ticks(self, written: Callable[[float], str]) -> tuple[Tick, ...]:
        """Return 1, 2 and 5 of each decade, or 1 alone where there are many decades."""
        factors = (1, 2, 5) if self.last - self.first < 2 else (1,)
        decades = range(math.floor(self.first), math.floor(self.last) + 1)
        every = max(1, -(-len(decades) // _MOST_TICKS))
        numbers = [f * 10.0**d for d in decades if d % every == 0 for f in factors]
        inside = [n for n in numbers if self.first <= math.log10(n) <= self.last]
        return tuple(Tick(self.at(n), written(n)) for n in inside)


def dots(measures: Sequence[Measure], written: Callable[[float], str]) -> Dots | None:
    """Return the chart of `measures`, with `written` numbers at its axis; None if it is empty."""
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
        y = _TOP + (number + 0.5) * _ROW
        rows.append(Row(m.label, m.shown, y, at(m.value), at(m.base), span))
    return Dots(_TOP + len(rows) * _ROW + _BOTTOM, tuple(rows), axis.ticks(written))


def _drawn(value: float | None) -> bool:
    number = finite(value)
    return number is not None and 10.0**-_DECADES < number < 10.0**_DECADES


@dataclasses.dataclass(frozen=True)
class Steps:
    """Points over the runs: a line that stays until the next run, and a dot for each run."""

    height: float
    path: str
    marks: tuple[tuple[float, float], ...]
    ticks: tuple[Tick, ...]
    last: tuple[float, float]


def steps(values: Iterable[float], most: float) -> Steps | None:
    """Return the chart of the points after each run, of `most` possible; None below two runs."""
    found = list(values)
    if len(found) < 2:
        return None
    height, top, bottom = 190, 14, 160
    most = max(most, max(found), 1.0)
    left, right = _LEFT, WIDTH - 60
    places = [
        (
            round(left + n * (right - left) / (len(found) - 1), 1),
            round(bottom - value / most * (bottom - top), 1),
        )
        for n, value in enumerate(found)
    ]
    path = f"M{places[0][0]} {places[0][1]}" + "".join(f"H{x}V{y}" for x, y in places[1:])
    step = next((s for s in (1, 2, 5, 10, 25, 50, 100, 250) if most / s <= 6), 10_000)
    ticks = [
        Tick(round(bottom - v / most * (bottom - top), 1), str(v))
        for v in range(0, int(most) + 1, step)
    ]
    return Steps(height, path, tuple(places), tuple(ticks), places[-1])
