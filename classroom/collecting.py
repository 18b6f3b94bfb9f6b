"""`grader class collect` and `status`: reads submissions and a roster; says what there is."""

from __future__ import annotations

import argparse
import functools

from classroom.collect import Collected, Kept, collect, keep
from classroom.folder import DATABASE, holder, locked, open_class
from classroom.grades import grades
from classroom.late import read_policy
from classroom.records import CourseError
from classroom.roster import read_roster, read_times
from classroom.store import Store
from classroom.summary import render, summed_up
from grader.base import stdout
from grader.base.options import Command
from grader.spec.problem import problem_ids

LISTS = {  # who is in the class, and when each handed in
    "--roster CSV": "who is in the class",
    "--assignment NAME": "what stands before -<login> in the names of clones (default: what all"
    " begin with)",
    "--choose NAME...": "the submission that counts where several accounts handed in for one"
    " student",
    "--times CSV": "when each handed in: id,submitted_at",
}


def _collect(options: argparse.Namespace) -> int:
    """Collect, show what there is now; return 0."""
    with locked(options.course), Store(options.course / DATABASE) as store:
        collected, kept = into(store, options)
        found = grades(store, problem_ids(), store.versions())
        summary = summed_up(store, found, kept=kept, left_out=collected.notes)
    stdout.show(functools.partial(render, summary))
    return 0


def _status(options: argparse.Namespace) -> int:
    """Show the summary; return 0.

    Raises:
        CourseError: there is no class in the folder.
    """
    with open_class(options.course) as store:
        found = grades(store, problem_ids(), store.versions(), read_policy(options.course))
        summary = summed_up(store, found, running=holder(options.course))
    stdout.show(functools.partial(render, summary))
    return 0


def into(store: Store, options: argparse.Namespace) -> tuple[Collected, Kept | None]:
    """Put a roster and submissions into the database; all is read before anything is stored.

    Raises:
        CourseError: the roster, the times or the submissions cannot be used.
    """
    source, roster = options.source, options.roster
    for option in ("times", "assignment", "choose"):
        if getattr(options, option) and not source:
            raise CourseError(f"--{option}: got it without SOURCE, expected the submissions too")
    students = read_roster(roster) if roster else store.students()
    times = read_times(options.times) if options.times else {}
    collected = Collected(())
    if source:
        given = {"assignment": options.assignment, "choose": options.choose}
        collected = collect(source, students, times, **given)
    if roster:
        store.set_students(students)
    return collected, keep(store, collected) if source else None


COLLECT = Command(
    "read submissions and a roster; grades nothing",
    _collect,
    {
        "SOURCE": "folder or archive of submissions: Gradescope, Canvas, Moodle, GitHub, one per"
        " student",
        **LISTS,
    },
)
STATUS = Command("say who handed in, what is graded, what failed and what is left", _status)
