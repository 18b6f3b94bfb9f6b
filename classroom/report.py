"""`grader class report`: pages about the class, about each student, and what looks alike."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterator
from pathlib import Path

from classroom import leaderboard, outputs, report_view, similar, student_report
from classroom import leaderboard_view as leaderboard_page
from classroom import similar_view as similar_page
from classroom.changes import changes_since
from classroom.figures import summarize
from classroom.folder import open_class
from classroom.replies_view import render_written
from classroom.standing import Standing, read_standing
from classroom.store import Store
from classroom.student_report import Graded
from grader.base import stdout
from grader.spec.problem import load_problem

HELP = "write class.html, a report per student, and similar.html"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `class report`."""
    parser.add_argument(
        "--leaderboard",
        type=Path,
        metavar="CSV",
        help="write leaderboard.html too, of those in this file: id,pseudonym",
    )


def run(options: argparse.Namespace) -> int:
    """Write the reports, show what was written; return 0.

    Raises:
        CourseError: there is no class, or the file of --leaderboard cannot be used.
        EnvironmentFault: a file cannot be written, or a package is missing.
    """
    course: Path = options.course
    with open_class(course) as store:
        standing = read_standing(store, course)
        chosen = options.leaderboard
        pseudonyms = leaderboard.read_optins(chosen, standing) if chosen else None
        found = list(_similar(store, standing))
        last = store.last_publication()
        differing = len(changes_since(last, standing).changes) if last else None
    outputs.put(course / outputs.CLASS_PAGE, report_view.render(summarize(standing)))
    count = _students(course, standing)
    names = {student.id: student.name for student in standing.students}
    outputs.put(course / outputs.SIMILAR_PAGE, similar_page.render(found, names))
    groups, pairs = sum(len(f.identical) for f in found), sum(len(f.pairs) for f in found)
    written = [
        f"{outputs.CLASS_PAGE}: what came out of the class, without names",
        f"{outputs.REPORTS}/: reports of {count} students, a page and a text each",
        f"{outputs.SIMILAR_PAGE}: {groups} groups of identical files, {pairs} pairs alike",
    ]
    if pseudonyms is not None:
        boards = leaderboard.boards(standing, pseudonyms)
        outputs.put(course / outputs.LEADERBOARD_PAGE, leaderboard_page.render(boards))
        written.append(f"{outputs.LEADERBOARD_PAGE}: {len(pseudonyms)} pseudonyms")
    stdout.show(functools.partial(render_written, course, written, differing))
    return 0


def _students(course: Path, standing: Standing) -> int:
    """Write the reports of all students, delete those of nobody; return of how many there are."""
    outputs.reports_folder(course)
    for student in standing.students:
        places = [(student.id, problem) for problem in standing.problems]
        graded = [Graded(standing.grades[p], standing.result(*p)) for p in places]
        page, text = outputs.report_files(course, student.id)
        outputs.put(page, student_report.render_page(student, graded))
        outputs.put(text, student_report.render_text(student, graded))
    outputs.remove(outputs.stale_reports(course, (s.id for s in standing.students)))
    return len(standing.students)


def _similar(store: Store, standing: Standing) -> Iterator[similar.Found]:
    """Compare the files of each problem.

    Raises:
        ImportError: what compares them is not installed.
    """
    for problem in standing.problems:
        owners: dict[str, list[str]] = {}
        for student, hand_in in standing.hand_ins.items():
            if problem in hand_in.files:
                owners.setdefault(hand_in.files[problem], []).append(student)
        if owners:
            data = {sha256: store.data(sha256) for sha256 in owners}
            yield similar.find(load_problem(problem), owners, data)
