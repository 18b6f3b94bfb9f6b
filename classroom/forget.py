"""`grader class forget`: deletes what a course's folder holds about one student."""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

from classroom import gradebook, outputs
from classroom.folder import known_student, need, open_class
from classroom.lock import locked
from classroom.replies_view import render_forgotten
from grader.base import stdout

HELP = "delete what is stored about a student, for good"
_NOT_DELETED = 1


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `class forget`."""
    parser.add_argument("--student", metavar="ID")
    parser.add_argument("--yes", action="store_true", help="delete; without it, say what would be")


def run(options: argparse.Namespace) -> int:
    """Delete a student's rows and files; return 0, or without --yes delete nothing and return 1.

    Pages and gradebooks about the whole class are deleted too, where they may hold the student:
    `report` and `publish` write them anew.

    Raises:
        CourseError: there is no class or no such student.
        EnvironmentFault: a file cannot be deleted, or a run is at work in the folder.
    """
    need(options, ("student",))
    course: Path = options.course
    with open_class(course) as store, locked(course):
        student = known_student(store, options.student)
        hand_in = store.hand_ins().get(student)
        gradebooks = (course / gradebook.CANVAS, course / gradebook.MOODLE)
        paths = [*outputs.report_files(course, student), *outputs.about_all(course), *gradebooks]
        # Files first: while the database knows the student, the command can be run again.
        found = outputs.remove(paths) if options.yes else [p for p in paths if p.is_file()]
        rows = store.forget(student) if options.yes else None
    files = [str(path.relative_to(course)) for path in found]
    source = hand_in.source if hand_in else None
    stdout.show(functools.partial(render_forgotten, student, rows, files, source))
    return 0 if options.yes else _NOT_DELETED
