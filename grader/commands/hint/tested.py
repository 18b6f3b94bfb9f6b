"""Tests one problem on the CPU: what `hint` looks at."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console

from grader.api import Grader
from grader.isolate import capacity
from grader.judge.progress import Progress
from grader.judge.request import Request
from grader.spec.environment import probe
from grader.spec.grade_record import ProblemResult
from grader.spec.problem import load_problem


def tested(submission: Path, problem_id: str) -> ProblemResult:
    """Return the result of all tests of one problem; progress goes to standard error.

    One wrong case does not always tell two mistakes apart: one row of p02 is a single number.

    Raises:
        EnvironmentFault: torch or Triton is missing.
        KeyboardInterrupt: Ctrl-C ended it.
    """
    environment, seed = probe("cpu"), os.urandom(8).hex()
    request = Request(
        submission=submission.absolute(),
        shown_as=str(submission),
        problems=(problem_id,),
        environment=environment,
        seed=seed,
        jobs=1,
        cores=max(1, int(capacity.cores())),
        quick=True,
    )
    problem = load_problem(problem_id)
    cases = sum(len(problem.cases(c, seed, environment.device)) for c in problem.checks)
    with Progress(Console(stderr=True)) as progress:
        progress.start({problem_id: cases})
        record = Grader(request, progress).run()
    if record.interrupted:
        raise KeyboardInterrupt
    return record.problems[0]
