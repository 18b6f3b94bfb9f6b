"""The page about a class: points, steps, checks, causes and times, without names."""

from __future__ import annotations

from classroom.figures import ClassSummary
from classroom.grades import Status
from classroom.pages import page

_MOST = 8  # rows of a table; a screen's worth
_WORDS = {
    Status.GRADED: "graded",
    Status.OVERRIDDEN: "overridden",
    Status.REFUSED: "refused",
    Status.NOT_HANDED_IN: "not handed in",
    Status.FAULT: "held up by a fault",
    Status.PENDING: "not graded yet",
}


def render(summary: ClassSummary) -> str:
    """Return the page as HTML."""
    return page("class.html", summary=summary, most=_MOST, refused=Status.REFUSED, statuses=_WORDS)
