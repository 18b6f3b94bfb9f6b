"""`grader class status`: what a class has come to so far; changes nothing."""

from __future__ import annotations

import argparse
import dataclasses
import functools

from classroom.collecting import DATABASE
from classroom.grades import grades
from classroom.late import read_policy
from classroom.lock import holder
from classroom.store import Store
from classroom.summary import summed_up
from classroom.summary_view import render
from grader.base import stdout
from grader.spec.problem import ManifestError, problem_ids

HELP = "say who handed in, what is graded, what failed and what is left"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `class status`: it has none of its own."""


def run(options: argparse.Namespace) -> int:
    """Show the summary; return 0.

    Raises:
        ManifestError: there is no class in the folder.
    """
    path = options.course / DATABASE
    if not path.is_file():
        raise ManifestError(
            f"--course: got {options.course}, which has no {DATABASE}; expected the folder that"
            " grader class collect made"
        )
    with Store(path) as store:
        policy = read_policy(options.course)
        found = grades(store, problem_ids(), store.versions(), policy)
        summary = summed_up(store, found)
    summary = dataclasses.replace(summary, running=holder(options.course))
    stdout.show(functools.partial(render, summary))
    return 0
