"""`python -m grader lint DIR`: examines files without running them."""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path

from grader.base import stdout
from grader.commands.lint import view
from grader.commands.options import UsageError, expect_folder
from grader.judge import scoring
from grader.source.submission import read_source
from grader.spec.problem import load_problem, problems_named

HELP = "list what the source policy refuses; runs nothing"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `lint`."""
    parser.add_argument("submission", type=Path, metavar="DIR", help="folder with pNN/<file>.py")
    parser.add_argument("--only", metavar="p04,p05", help="look at these problems only")


def run(options: argparse.Namespace) -> int:
    """Show what is refused; return 1 where anything keeps a file from being graded, else 0."""
    folder = expect_folder(options.submission, "DIR")
    problems = [
        problem
        for problem in map(load_problem, problems_named(options.only))
        if os.path.lexists(folder / problem.id / problem.file)
    ]
    if not problems:
        raise UsageError(f"DIR: got {folder}, expected a folder with pNN/<file>.py")
    sources = [read_source(problem, folder) for problem in problems]
    stdout.show(functools.partial(view.render, sources))
    return scoring.EXIT_POINTS_LOST if any(map(view.is_refused, sources)) else 0
