"""The page of the leaderboard."""

from __future__ import annotations

from collections.abc import Sequence

from classroom.leaderboard import Board
from classroom.pages import page


def render(boards: Sequence[Board]) -> str:
    """Return the page as HTML."""
    return page("leaderboard.html", boards=boards)
