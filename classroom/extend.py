"""`grader class extend`: a later deadline for one student."""

from __future__ import annotations

import argparse
import functools

from classroom.folder import known_student, made, need, open_class
from classroom.records import Extension, now
from classroom.replies_view import render_extensions
from grader.base import stdout

HELP = "move the deadline of one student"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `class extend`."""
    parser.add_argument("--student", metavar="ID")
    parser.add_argument(
        "--days", type=float, metavar="N", help="after the deadline of all; 0 takes it back"
    )
    parser.add_argument("--author", metavar="NAME", help="who decided")
    parser.add_argument("--reason", metavar="TEXT", help="why")
    parser.add_argument("--list", action="store_true", help="show all extensions there were")


def run(options: argparse.Namespace) -> int:
    """Keep an extension, or with --list show all; return 0.

    Raises:
        CourseError: an option is missing or does not fit.
    """
    with open_class(options.course) as store:
        if not options.list:
            need(options, ("student", "days", "author", "reason"))
            extension = made(
                Extension,
                student=known_student(store, options.student),
                days=options.days,
                author=options.author.strip(),
                reason=options.reason.strip(),
                at=now(),
            )
            store.add(extension)
        found = store.extensions()
    stdout.show(functools.partial(render_extensions, found if options.list else found[-1:]))
    return 0
