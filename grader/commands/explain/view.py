"""The page of a cause as text for the terminal."""

from __future__ import annotations

from grader.commands.hint.view import markdown
from grader.report.cause_pages import Explanation


def render(page: Explanation, *, width: int = 80, color: bool = False) -> str:
    """Return the page at `width` columns."""
    return "\n".join(markdown(page.text, width, color=color)) + "\n"
