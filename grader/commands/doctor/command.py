"""`python -m grader doctor`: says what it looks at as soon as it knows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from grader.commands.doctor.doctor import examine
from grader.commands.doctor.machine import Machine
from grader.commands.doctor.patient import ERROR
from grader.commands.doctor.view import render_line, render_sum

EXIT_ENVIRONMENT = 4
ROOT = Path(__file__).resolve().parents[3]
HELP = "check Python, packages, GPU and machine, and say what to type where something is wrong"


def run(machine: Machine, write: Callable[[str], None], *, color: bool = False) -> int:
    """Examine the machine and write a line per subject; return 0, or 4 where one is an error."""
    lines = []
    for line in examine(machine):
        lines.append(line)
        write(render_line(line, color=color))
    write(render_sum(lines))
    return EXIT_ENVIRONMENT if any(line.level == ERROR for line in lines) else 0


def main(arguments: Sequence[str]) -> int:
    """Run where the packages of the command line need not be installed."""
    argparse.ArgumentParser(prog="grader doctor", description=HELP).parse_args(arguments)
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"

    def write(text: str) -> None:
        if sys.stdout is not None:
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()

    try:
        return run(Machine(ROOT, encoding=encoding), write)
    except KeyboardInterrupt:
        return 130
