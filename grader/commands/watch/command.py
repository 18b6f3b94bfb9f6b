"""`python -m grader watch`: grades one problem again at each save."""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from grader.base import scratch, stdout
from grader.base.user_state import state_path
from grader.commands.hint.hints import STATE, Shown, in_source
from grader.commands.options import (
    DEVICE,
    SUBMISSION,
    UsageError,
    expect_folder,
    one_or_all,
    request_for,
    seed_of,
)
from grader.commands.watch import terminal as page
from grader.commands.watch.loop import Watch
from grader.commands.watch.terminal import Keys, Screen
from grader.isolate.processes import Children
from grader.judge import scoring
from grader.judge.request import Request
from grader.judge.surroundings import expect_memory
from grader.source.submission import read_source
from grader.spec.environment import probe
from grader.spec.problem import Problem, load_problem

HELP = "grade one problem again at each save"
OPTIONS = {
    "--only p04": "the problem (default: the first that has a step to write)",
    **DEVICE,
    "--report": "write report.html after each run",
    **SUBMISSION,
}


def first_open(problem_ids: Sequence[str], submission: Path) -> Problem:
    """Return the first problem with a step to write or a file that cannot run, else the last."""
    problems = [load_problem(id) for id in problem_ids]
    found = (p for p in problems if in_source(p, read_source(p, submission)) is not None)
    return next(found, problems[-1])


def run(options: argparse.Namespace) -> int:
    """Grade one problem again at each save; q ends with 0, Ctrl-C with 130."""
    ids, folder = one_or_all(options.only), expect_folder(options.submission)
    if not stdout.is_open():
        raise UsageError("watch: got no standard output, expected a terminal, a pipe or a file")
    signal.signal(signal.SIGHUP, signal.default_int_handler)
    environment = probe(options.device)
    expect_memory(jailed=False)
    problem = first_open(ids, folder)
    request = request_for(folder, (problem.id,), environment, seed="", jobs=1, quick=True)
    try:
        _watch(problem, request, reports=options.report)
    except KeyboardInterrupt:
        return scoring.EXIT_INTERRUPTED
    return scoring.EXIT_FULL_MARKS


def _watch(problem: Problem, request: Request, *, reports: bool) -> None:
    """Watch until q or Ctrl-C; each run grades `request` with a new seed."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    console = Console()
    screen = Screen(
        sys.stdout,
        status=terminal and os.environ.get("TERM") != "dumb",
        width=max(min(console.width, 100), 72) if terminal else 80,
        height=max(console.height - 1, 12) if terminal else 40,
        color=terminal and stdout.wants_color(),
    )

    def next_request(first: tuple[str, ...]) -> Request:
        return dataclasses.replace(request, seed=seed_of(None), first=first)

    children = Children(kernels=scratch.folder() / "compiled")
    with Keys(sys.stdin) as keys:
        try:
            children.open_server(differentiate=bool(problem.gradients))
            where = os.path.join(request.shown_as, problem.id, problem.file)
            screen.say(page.note(f"{where}; Ctrl-C ends it", screen.width))
            if keys.fd is None:
                screen.say(page.note("no keys: standard input is no terminal", screen.width))
            else:
                screen.say(page.keys(screen.width))
            shown = Shown(state_path(os.environ, STATE))
            Watch(problem, next_request, children, keys, screen, shown, reports=reports).run()
        finally:
            children.close()
