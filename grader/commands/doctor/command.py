"""`python -m grader doctor`: prints each finding about this machine as soon as it has it.

It imports the standard library alone: `grader/__main__.py` runs it before the set-up.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from grader.base import stdout
from grader.commands.doctor.checks import CHECKS, ERROR, OK, WARNING
from grader.commands.doctor.machine import Machine

EXIT_ENVIRONMENT = 4
ROOT = Path(__file__).resolve().parents[3]
HELP = "check Python, packages, GPU and machine, and say what to type where something is wrong"
_COLORS = {OK: "32", WARNING: "33", ERROR: "31"}


class Line(NamedTuple):
    """The finding on one subject: `level` is ok, warning or error; `remedy` says what to do."""

    name: str
    level: str
    found: str
    remedy: str = ""


def run(options: argparse.Namespace) -> int:
    """Check this machine; return 0, or 4 where something must be mended."""
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    color = stdout.is_open() and stdout.wants_color()
    lines = []
    for line in examine(Machine(ROOT, encoding=encoding)):
        lines.append(line)
        _write(render_line(line, color=color))
    _write(render_sum(lines))
    return EXIT_ENVIRONMENT if any(line.level == ERROR for line in lines) else 0


def main(arguments: Sequence[str]) -> int:
    """Run the command without `grader.commands.cli`, whose packages may not be installed."""
    parser = argparse.ArgumentParser(prog="grader doctor", description=HELP)
    try:
        return run(parser.parse_args(arguments))
    except KeyboardInterrupt:
        return 130


def examine(machine: Machine) -> Iterable[Line]:
    """Give one line per subject; a check that raises becomes a warning."""
    for name, check in CHECKS.items():
        try:
            yield Line(name, *check(machine))
        except Exception as error:
            said = f"could not be looked at: {type(error).__name__}: {error}"
            yield Line(name, WARNING, said)


def render_line(line: Line, *, width: int = 80, color: bool = False) -> str:
    """Return the text for one subject: level, name and finding, and below them what to type."""
    level = f"{line.level:<7}"
    lead = f"{level}  {line.name:<10}  "
    text = _wrapped(line.found, lead, width)
    if color:
        text = f"\x1b[{_COLORS[line.level]}m{level}\x1b[0m" + text[len(level) :]
    if line.level != OK and line.remedy:
        text += _wrapped(line.remedy, " " * (len(lead) - 3) + "-> ", width)
    return text


def render_sum(lines: Sequence[Line]) -> str:
    """Return the last line: the number of findings of each level, and what to do next."""
    counts = {level: sum(line.level == level for line in lines) for level in (OK, WARNING, ERROR)}
    words = [f"{n} {level}{'' if level == OK or n == 1 else 's'}" for level, n in counts.items()]
    after = "fix the errors from the top down" if counts[ERROR] else "make grade works here"
    return f"\n{', '.join(words)}: {after}\n"


def _wrapped(text: str, lead: str, width: int) -> str:
    shown = "".join(c if c.isprintable() else " " for c in text[:600])
    space = {"initial_indent": lead, "subsequent_indent": " " * len(lead)}
    return textwrap.fill(shown, width, break_on_hyphens=False, **space).rstrip() + "\n"


def _write(text: str) -> None:
    if stdout.is_open():
        stdout.write(text)
