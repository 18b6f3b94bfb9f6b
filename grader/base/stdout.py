"""Writes to standard output, which may be a terminal, a pipe, closed, or read by nobody any more.

The module needs the standard library alone, but for the width of a report: `doctor` writes where
nothing is installed.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any


def show(render: Callable[..., str], *what: Any, **more: Any) -> None:
    """Print what `render` returns for the terminal's width and colour, if output is open."""
    if is_open():
        write(render(*what, **more, width=_report_width(), color=wants_color()))


def is_open() -> bool:
    """Whether standard output was open when Python started, and still is."""
    return sys.stdout is not None and not sys.stdout.closed


def write(text: str) -> None:
    """Print text; a character that the output's encoding lacks becomes a question mark."""
    encoding = sys.stdout.encoding or "ascii"
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
        return
    silence()


def wants_color() -> bool:
    """Whether standard output is a terminal whose user has not asked for plain text."""
    plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    return sys.stdout.isatty() and not plain


def silence() -> None:
    """Send output nowhere from now on: nobody reads it, and Python's flush at exit would fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _report_width() -> int:
    from rich.console import Console

    return min(Console().width, 100) if sys.stdout.isatty() else 80
