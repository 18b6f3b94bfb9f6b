"""`grader class collect`: reads submissions and a roster into the database of a class."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

from classroom.collect import Collected, Kept, collect, keep
from classroom.grades import grades
from classroom.lock import locked
from classroom.roster import RosterError, read_roster, read_times
from classroom.store import Store
from classroom.summary import summed_up
from classroom.summary_view import render
from grader.base import stdout
from grader.spec.problem import problem_ids

HELP = "read submissions and a roster; grades nothing"
DATABASE = "class.db"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `class collect`."""
    parser.add_argument("source", type=Path, metavar="SOURCE", help=_SOURCE)
    add_lists(parser)


_SOURCE = "folder or archive of submissions: Gradescope, Canvas, Moodle, GitHub, one per student"


def add_lists(parser: argparse.ArgumentParser) -> None:
    """Declare the files that say who is in the class, and when each handed in."""
    parser.add_argument("--roster", type=Path, metavar="CSV", help="who is in the class")
    parser.add_argument(
        "--assignment",
        metavar="NAME",
        help="what stands before -<login> in the names of clones (default: what all begin with)",
    )
    parser.add_argument(
        "--choose",
        action="append",
        default=[],
        metavar="NAME",
        help="the submission that counts where several accounts handed in for one student",
    )
    parser.add_argument(
        "--times", type=Path, metavar="CSV", help="when each handed in: id,submitted_at"
    )


def run(options: argparse.Namespace) -> int:
    """Collect, show what there is now; return 0."""
    with locked(options.course), Store(options.course / DATABASE) as store:
        collected, kept = into(store, options)
        found = grades(store, problem_ids(), store.versions())
        summary = summed_up(store, found, kept=kept, left_out=collected.notes)
    stdout.show(functools.partial(render, summary))
    return 0


def into(store: Store, options: argparse.Namespace) -> tuple[Collected, Kept | None]:
    """Put a roster and submissions into the database; all is read before anything is stored.

    Raises:
        RosterError: the roster or the times cannot be used.
        SourceError: the submissions cannot.
    """
    source, roster = options.source, options.roster
    for option in ("times", "assignment", "choose"):
        if getattr(options, option) and not source:
            raise RosterError(f"--{option}: got it without SOURCE, expected the submissions too")
    students = read_roster(roster) if roster else store.students()
    times = read_times(options.times) if options.times else {}
    collected = Collected(())
    if source:
        given = {"assignment": options.assignment, "choose": options.choose}
        collected = collect(source, students, times, **given)
    if roster:
        store.set_students(students)
    return collected, keep(store, collected) if source else None
