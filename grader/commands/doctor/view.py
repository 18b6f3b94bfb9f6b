"""What `doctor` found, as text. The standard library alone, as in doctor.py."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from grader.commands.doctor.patient import ERROR, OK, WARNING, Line

WIDTH = 80
_COLORS = {OK: "32", WARNING: "33", ERROR: "31"}
_NAME = 10


def render_line(line: Line, *, width: int = WIDTH, color: bool = False) -> str:
    """Return one subject: level, name, what was found, and below it what to type."""
    level = f"{line.level:<7}"
    lead = f"{level}  {line.name:<{_NAME}}  "
    text = _wrapped(line.found, lead, width)
    if color:
        text = f"\x1b[{_COLORS[line.level]}m{level}\x1b[0m" + text[len(level) :]
    if line.level != OK and line.remedy:
        text += _wrapped(line.remedy, " " * (len(lead) - 3) + "-> ", width)
    return text


def render_sum(lines: Sequence[Line]) -> str:
    """Return the last line: how many there are of each level, and what follows."""
    counts = {level: sum(line.level == level for line in lines) for level in (OK, WARNING, ERROR)}
    words = [f"{counts[OK]} ok", _plural(counts[WARNING], WARNING), _plural(counts[ERROR], ERROR)]
    after = "fix the errors from the top down" if counts[ERROR] else "make grade works here"
    return f"\n{', '.join(words)}: {after}\n"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _wrapped(text: str, lead: str, width: int) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text[:600])
    rows = textwrap.wrap(shown, max(width - len(lead), 20), break_on_hyphens=False) or [""]
    leads = [lead, *[" " * len(lead)] * (len(rows) - 1)]
    return "".join(f"{before}{row}".rstrip() + "\n" for before, row in zip(leads, rows))  # noqa: B905
