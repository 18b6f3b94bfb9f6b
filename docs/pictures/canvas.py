"""A small SVG writer: boxes, text, lines and arrows in the colours and type of the house.

A picture is 480 units wide, so that its text, 14 units or more, is still 11 px high on a phone.
Text in `backticks` is set in a monospaced type: a name of the code.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from xml.sax.saxutils import escape

from .palette import style_sheet

WIDTH = 480
MARGIN = 16
SMALLEST_TEXT = 14


@dataclasses.dataclass(frozen=True)
class Picture:
    """One finished picture: the name of its file without `.svg`, and the text of the file."""

    name: str
    svg: str


class Canvas:
    """Collects the elements of one picture; `finish` returns it."""

    def __init__(self, name: str, *, title: str, desc: str, height: float) -> None:
        self.name, self.height = name, height
        self._title, self._desc = title, desc
        self._body: list[str] = []
        self._hatches: set[str] = set()

    def heading(self, *lines: str) -> None:
        """Say at the top what the picture shows."""
        for number, line in enumerate(lines):
            self.text(MARGIN, 32 + 22 * number, line, size=17, bold=True)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str = "paper",
        *,
        stroke: str = "line",
        stroke_width: float = 1,
        dashed: bool = False,
        radius: float = 3,
    ) -> None:
        """A rectangle; `fill` or `stroke` "none" leaves that out."""
        attributes = f'{_box(x, y, width, height)} rx="{_number(radius)}"'
        self._add(f"<rect {attributes} {self._paint(fill, stroke, stroke_width, dashed)}/>")

    def hatched(
        self, x: float, y: float, width: float, height: float, fill: str, stroke: str = "line"
    ) -> None:
        """A rectangle with diagonal stripes in the colour `fill`."""
        self._hatches.add(fill)
        url = f'style="fill:url(#{self.name}-{fill})" class="s-{stroke}"'
        self._add(f'<rect {_box(x, y, width, height)} rx="3" {url}/>')

    def text(
        self,
        x: float,
        y: float,
        content: str,
        *,
        size: float = 15,
        fill: str = "ink",
        anchor: str = "start",
        bold: bool = False,
        halo: bool = False,
    ) -> None:
        """One line of text, `y` at its baseline; anchor is start, middle or end.

        `halo` keeps lines of a plot clear of the letters.
        """
        assert size >= SMALLEST_TEXT, content
        classes = [f"f-{fill}"] + ["bold"] * bold + ["halo"] * halo
        place = f'x="{_number(x)}" y="{_number(y)}" font-size="{_number(size)}"'
        if anchor != "start":
            place += f' text-anchor="{anchor}"'
        self._add(f'<text {place} class="{" ".join(classes)}">{_spans(content)}</text>')

    def lines(self, x: float, y: float, contents: Iterable[str], *, leading=20, **style) -> None:
        """Several lines of text below each other."""
        for number, content in enumerate(contents):
            self.text(x, y + leading * number, content, **style)

    def line(
        self,
        points: Iterable[tuple[float, float]],
        *,
        stroke: str = "line",
        width: float = 1.5,
        dashed: bool = False,
        arrow: bool = False,
    ) -> None:
        """A line through points, with a head at its end if it is an arrow."""
        points = list(points)
        if arrow:
            (x1, y1), (x2, y2) = points[-2:]
            length = math.hypot(x2 - x1, y2 - y1)
            dx, dy = (x2 - x1) / length, (y2 - y1) / length
            back = (x2 - 9 * dx, y2 - 9 * dy)
            wings = [
                (back[0] - 4.5 * dy, back[1] + 4.5 * dx),
                (back[0] + 4.5 * dy, back[1] - 4.5 * dx),
            ]
            points[-1] = back
            self._add(f'<polygon points="{_points([(x2, y2), *wings])}" class="f-{stroke}"/>')
        paint = self._paint("none", stroke, width, dashed)
        self._add(f'<polyline points="{_points(points)}" {paint}/>')

    def dot(self, x: float, y: float, fill: str, radius: float = 6) -> None:
        """A filled circle with an outline in the colour of the paper."""
        place = f'cx="{_number(x)}" cy="{_number(y)}" r="{_number(radius)}"'
        self._add(f"<circle {place} {self._paint(fill, 'paper', 2, False)}/>")

    def finish(self) -> Picture:
        """Return the picture with its title, description, colours and patterns."""
        name, size = self.name, f'width="{WIDTH}" height="{_number(self.height)}"'
        patterns = "".join(_hatch(name, fill) for fill in sorted(self._hatches))
        paper = f'<rect {size} rx="8" class="f-paper"/>'
        drawn = "\n".join([f"{patterns}{paper}", *self._body])
        view = f'viewBox="0 0 {WIDTH} {_number(self.height)}"'
        return Picture(
            name,
            f'<svg xmlns="http://www.w3.org/2000/svg" {view} {size} role="img" '
            f'aria-labelledby="{name}-title {name}-desc">\n'
            f'<title id="{name}-title">{escape(self._title)}</title>\n'
            f'<desc id="{name}-desc">{escape(self._desc)}</desc>\n'
            f"<style>\n{style_sheet(drawn)}</style>\n{drawn}\n</svg>\n",
        )

    def _add(self, element: str) -> None:
        self._body.append(element)

    def _paint(self, fill: str, stroke: str, width: float, dashed: bool) -> str:
        paint = f'class="f-{fill} s-{stroke}"'
        if stroke != "none" and width != 1:
            paint += f' stroke-width="{_number(width)}"'
        return paint + (' stroke-dasharray="4 3"' if dashed else "")


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _points(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _box(x: float, y: float, width: float, height: float) -> str:
    corner = f'x="{_number(x)}" y="{_number(y)}"'
    return f'{corner} width="{_number(width)}" height="{_number(height)}"'


def _spans(content: str) -> str:
    parts = re.split(r"`([^`]+)`", escape(content))
    return "".join(
        f'<tspan class="mono">{part}</tspan>' if number % 2 else part
        for number, part in enumerate(parts)
    )


def _hatch(name: str, fill: str) -> str:
    return (
        f'<pattern id="{name}-{fill}" width="8" height="8" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><rect width="8" height="8" class="f-paper"/>'
        f'<rect width="4" height="8" class="f-{fill}"/></pattern>\n'
    )
