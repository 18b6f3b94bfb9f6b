"""`grader class publish`: makes present grades those that students were told.

As DOMjudge does after a rejudging, what changes is shown before it counts: losses and grades that
are not decided are refused until someone asks for them.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

from classroom import gradebook
from classroom.changes import Changes, Kind, changes_since, to_publish
from classroom.changes_view import render
from classroom.folder import CourseError, made, need, open_class
from classroom.lock import locked
from classroom.records import Publication, now
from classroom.standing import read_standing
from grader.base import stdout

HELP = "publish present grades, after showing what changes"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `class publish`."""
    parser.add_argument("--author", metavar="NAME", help="who publishes")
    parser.add_argument(
        "--accept-losses", action="store_true", help="publish though students lose points"
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="publish though some grades are not decided; those stay as they were published",
    )


def run(options: argparse.Namespace) -> int:
    """Show the changes, publish and write the gradebooks; return 0, or 1 where it was refused.

    Raises:
        CourseError: no author, or no grade to publish.
    """
    need(options, ("author",))
    written: tuple[Path, ...] = ()
    with open_class(options.course) as store, locked(options.course):
        standing = read_standing(store, options.course)
        last = store.last_publication()
        changes = changes_since(last, standing)
        grades = to_publish(standing, last)
        if not grades:
            raise CourseError("publish: got a class without a decided grade, expected one or more")
        new = made(Publication, number=1, author=options.author, at=now(), grades=tuple(grades))
        refused = _refusals(changes, options)
        number = None
        if not refused and (changes.is_any or last is None):
            number = store.publish(new.author, new.at, new.grades)
        if not refused:
            written = gradebook.write(options.course, store, list(standing.grades.values()))
    files = [str(path) for path in written]
    stdout.show(
        functools.partial(render, changes, refused=refused, published=number, written=files)
    )
    return int(bool(refused))


def _refusals(changes: Changes, options: argparse.Namespace) -> tuple[str, ...]:
    """Return why nothing is published, and the option that changes it."""
    found = []
    for kind, given, what, option in (
        (Kind.LOST, options.accept_losses, "points are lost by", "--accept-losses"),
        (Kind.UNDECIDED, options.partial, "nothing is decided for", "--partial"),
    ):
        students = list(dict.fromkeys(change.student for change in changes.of(kind)))
        if students and not given:
            found.append(f"{what} {', '.join(students)}; {option} publishes all the same")
    return tuple(found)
