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
from grader.spec.environment import EnvironmentFault
from grader.spec.problem import load_problem

CANVAS, MOODLE = "gradebook-canvas.csv", "gradebook-moodle.csv"
# What makes a cell a formula; full-width signs do so where Excel is set to Japanese or Chinese.
# Before it stands nothing, or what some spreadsheet may take for the end of a cell.
_FORMULA = re.compile(r"(?<![^\W_])([=+\-@＝＋－＠])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def write(course: Path, store: Store, grades: Sequence[Grade]) -> tuple[Path, ...]:
    """Write both gradebooks into the course's folder; return their paths.

    Raises:
        EnvironmentFault: one cannot be written.
    """
    students = people(store)
    texts = {CANVAS: canvas(students, grades), MOODLE: moodle(students, grades)}
    for name, text in texts.items():
        try:
            write_whole(course / name, text)
        except OSError as error:
            raise EnvironmentFault(f"cannot write {course / name}: {error.strerror}") from None
    return tuple(course / name for name in texts)


def canvas(students: Sequence[Student], grades: Sequence[Grade]) -> str:
    """Return Canvas's layout; what is not decided is blank, which Canvas takes for no change."""
    problems = list(dict.fromkeys(grade.problem for grade in grades))
    possible = {grade.problem: grade.possible for grade in grades}
    header = ["Student", "ID", "SIS Login ID", "Section", *map(_column, problems)]
    limits = ["    Points Possible", "", "", "", *(f"{possible[p]:.1f}" for p in problems)]
    rows = [
        [*(_cell(t) for t in (s.name or s.id, s.id, s.email or s.login, s.section)), *points]
        for s, points in _points(students, problems, grades)
    ]
    return _csv([header, limits, *rows])


def moodle(students: Sequence[Student], grades: Sequence[Grade]) -> str:
    """Return Moodle's layout: the roster's id as Identifier, a column of points per problem."""
    problems = list(dict.fromkeys(grade.problem for grade in grades))
    header = ["Identifier", "Full name", "Email address", *map(_column, problems)]
    rows = [
        [*(_cell(text) for text in (s.id, s.name, s.email)), *points]
        for s, points in _points(students, problems, grades)
    ]
    return _csv([header, *rows])


def _points(
    students: Sequence[Student], problems: Sequence[str], grades: Sequence[Grade]
) -> list[tuple[Student, list[str]]]:
    known: Mapping[tuple[str, str], Grade] = {(g.student, g.problem): g for g in grades}

    def shown(student: Student, problem: str) -> str:
        grade = known.get((student.id, problem))
        return "" if grade is None or grade.points is None else f"{grade.points:.1f}"

    return [(s, [shown(s, p) for p in problems]) for s in students]


def _column(problem: str) -> str:
    return f"{problem} {load_problem(problem).title}"


def _cell(text: str) -> str:
    """Return a text of which no spreadsheet takes a part for a formula; OWASP, CSV injection.

    Whatever separates its cells: an apostrophe goes before each sign behind no letter or digit.
    """
    return _FORMULA.sub(r"'\1", _CONTROL.sub(" ", text))


def _csv(rows: Sequence[Sequence[str]]) -> str:
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows(rows)
    return made.getvalue()
