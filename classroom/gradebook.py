"""The gradebook of a class as Canvas and Moodle import it.

Layouts: Canvas, https://community.canvaslms.com/docs/DOC-12826 (a row "Points Possible" above the
students); Moodle, the grading worksheet (an identifier and a column of grades).
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from classroom.grades import Grade, people
from classroom.records import Student
from classroom.store import Store
from grader.base.atomic_write import write_whole
from grader.spec.problem import load_problem

CANVAS, MOODLE = "gradebook-canvas.csv", "gradebook-moodle.csv"
# What makes a cell a formula; full-width signs do so where Excel is set to Japanese or Chinese.
# Before it stands nothing, or what some spreadsheet may take for the end of a cell.
_FORMULA = re.compile(r"(?<![^\W_])([=+\-@＝＋－＠])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def write(course: Path, store: Store, grades: Sequence[Grade]) -> tuple[Path, ...]:
    """Write both gradebooks into the course's folder; return their paths.

    Raises:
        OSError: one cannot be written.
    """
    students = people(store)
    texts = {CANVAS: canvas(students, grades), MOODLE: moodle(students, grades)}
    for name, text in texts.items():
        write_whole(course / name, text)
    return tuple(course / name for name in texts)


def canvas(students: Sequence[Student], grades: Sequence[Grade]) -> str:
    """Return Canvas's layout; what is not decided is blank, which Canvas takes for no change."""
    header = ["Student", "ID", "SIS Login ID", "Section"]
    possible = {grade.problem: f"{grade.possible:.1f}" for grade in grades}
    limits = ["    Points Possible", "", "", "", *possible.values()]
    rows = {s.id: [s.name or s.id, s.id, s.email or s.login, s.section] for s in students}
    return _csv(header, [limits], rows, grades)


def moodle(students: Sequence[Student], grades: Sequence[Grade]) -> str:
    """Return Moodle's layout: the roster's id as Identifier, a column of points per problem."""
    header = ["Identifier", "Full name", "Email address"]
    return _csv(header, [], {s.id: [s.id, s.name, s.email] for s in students}, grades)


def _csv(
    header: list[str],
    above: list[list[str]],
    students: Mapping[str, list[str]],
    grades: Sequence[Grade],
) -> str:
    """Return rows of students, by id, each with its points in a column per problem."""
    problems = list(dict.fromkeys(grade.problem for grade in grades))
    known = {(g.student, g.problem): f"{g.points:.1f}" for g in grades if g.points is not None}
    rows = [[*header, *map(_column, problems)], *above]
    for id, texts in students.items():
        rows.append([*map(_cell, texts), *(known.get((id, p), "") for p in problems)])
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows(rows)
    return made.getvalue()


def _column(problem: str) -> str:
    return f"{problem} {load_problem(problem).title}"


def _cell(text: str) -> str:
    """Return a text of which no spreadsheet takes a part for a formula; OWASP, CSV injection.

    Whatever separates its cells: an apostrophe goes before each sign behind no letter or digit.
    """
    return _FORMULA.sub(r"'\1", _CONTROL.sub(" ", text))
