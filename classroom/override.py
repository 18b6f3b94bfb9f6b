"""`grader class override`: points that a person gives in place of the judge's."""

from __future__ import annotations

import argparse
import functools

from classroom.folder import CourseError, known_student, made, need, one_of, open_class
from classroom.records import Override, now
from classroom.replies_view import render_overrides
from grader.base import stdout
from grader.spec.problem import load_problem, problem_ids

HELP = "give a student other points than the judge did, with a reason"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `class override`."""
    parser.add_argument("--student", metavar="ID")
    parser.add_argument("--problem", metavar="p04")
    parser.add_argument("--points", type=float, metavar="N", help="of the problem, in all")
    parser.add_argument("--author", metavar="NAME", help="who decided")
    parser.add_argument("--reason", metavar="TEXT", help="why; the student reads it")
    parser.add_argument("--list", action="store_true", help="show all overrides there were")


def run(options: argparse.Namespace) -> int:
    """Keep an override, or with --list show all; return 0.

    Raises:
        CourseError: an option is missing or does not fit.
    """
    with open_class(options.course) as store:
        if not options.list:
            need(options, ("student", "problem", "points", "author", "reason"))
            problem = one_of(problem_ids(), options.problem, "--problem")
            most = load_problem(problem).total_points
            if not 0 <= options.points <= most:
                raise CourseError(f"--points: got {options.points:g}, expected 0 to {most}")
            override = made(
                Override,
                student=known_student(store, options.student),
                problem=problem,
                points=options.points,
                author=options.author.strip(),
                reason=options.reason.strip(),
                at=now(),
            )
            store.add(override)
        found = store.overrides()
    stdout.show(functools.partial(render_overrides, found if options.list else found[-1:]))
    return 0
