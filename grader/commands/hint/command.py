"""`python -m grader hint`: the next hint of the first step that is not solved."""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path

from rich.console import Console

from grader.api import Grader
from grader.base import stdout
from grader.base.user_state import state_path
from grader.commands.hint.next_hint import STATE, Shown, next_hint
from grader.commands.hint.view import render
from grader.commands.options import SUBMISSION, expect_folder, one_or_all, request_for, seed_of
from grader.commands.progress import Progress
from grader.spec.environment import probe
from grader.spec.grade_record import ProblemResult

HELP = "give the next hint of the first unsolved step"


OPTIONS = {
    "--only p04": "the problem (default: where you are)",
    "--restart": "begin with its first hint again",
    **SUBMISSION,
}


def run(options: argparse.Namespace) -> int:
    """Show the next hint; return 0."""
    ids, folder = one_or_all(options.only), expect_folder(options.submission)
    shown = Shown(state_path(os.environ, STATE))
    test = functools.partial(tested, folder)
    hint = next_hint(ids, folder, shown, test, restart=options.restart)
    stdout.show(functools.partial(render, hint, shown.notices))
    return 0


def tested(submission: Path, problem_id: str) -> ProblemResult:
    """Return the result of all tests of one problem; progress goes to standard error.

    One wrong case does not always tell two mistakes apart: one row of p02 is a single number.

    Raises:
        EnvironmentFault: torch or Triton is missing.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    how = {"seed": seed_of(None), "jobs": 1, "quick": True}
    request = request_for(submission, (problem_id,), probe("cpu"), **how)
    with Progress(Console(stderr=True)) as progress:
        progress.start(request.num_cases())
        record = Grader(request, progress).run()
    if record.interrupted:
        raise KeyboardInterrupt
    return record.problems[0]
