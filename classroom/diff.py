"""`grader class diff`: present grades against those that were published last."""

from __future__ import annotations

import argparse
import functools

from classroom.changes import Kind, changes_since
from classroom.changes_view import render
from classroom.folder import open_class
from classroom.standing import read_standing
from grader.base import stdout

HELP = "compare present grades with the last publication; losses first"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `class diff`: it has none of its own."""


def run(options: argparse.Namespace) -> int:
    """Show the changes; return 1 if somebody loses points, else 0."""
    with open_class(options.course) as store:
        standing = read_standing(store, options.course)
        changes = changes_since(store.last_publication(), standing)
    stdout.show(functools.partial(render, changes))
    return int(bool(changes.of(Kind.LOST)))
