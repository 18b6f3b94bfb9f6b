"""Tests one problem on the CPU: what `hint` looks at."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from grader.api import Grader
from grader.commands.options import request_for
from grader.commands.progress import Progress
from grader.spec.environment import probe
from grader.spec.grade_record import ProblemResult


def tested(submission: Path, problem_id: str) -> ProblemResult:
    """Return the result of all tests of one problem; progress goes to standard error.

    One wrong case does not always tell two mistakes apart: one row of p02 is a single number.

    Raises:
        EnvironmentFault: torch or Triton is missing.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    seed = os.urandom(8).hex()
    request = request_for(submission, (problem_id,), probe("cpu"), seed=seed, jobs=1, quick=True)
    with Progress(Console(stderr=True)) as progress:
        progress.start(request.num_cases())
        record = Grader(request, progress).run()
    if record.interrupted:
        raise KeyboardInterrupt
    return record.problems[0]
