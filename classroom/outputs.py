"""Writes and names the output files of a class, in the course's folder.

Layouts of the gradebooks: Canvas, https://community.canvaslms.com/docs/DOC-12826 (a row "Points
Possible" above the students); Moodle, the grading worksheet (an identifier and a column of grades).
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from classroom.grades import Standing
from grader.base.atomic_write import write_whole
from grader.spec.environment import EnvironmentFault
from grader.spec.problem import load_problem

CLASS_PAGE = "class.html"
FORMER_PAGES = "similar.html", "leaderboard.html"  # written by versions before 0.27
REPORTS = "reports"
_PLAIN = re.compile(r"[a-z0-9_][a-z0-9_-]{0,63}")
# Names that Windows reserves for devices, with any ending.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)")


def file_stem(student: str) -> str:
    """Return a file name without ending, unique to each id, whatever the id contains.

    An id of small letters, digits, "_" and "-" stays as it is. Any other gets a hash: a file system
    may ignore case, and an id may be a path, a device or too long.
    """
    if _PLAIN.fullmatch(student) and not _DEVICES.fullmatch(student):
        return student
    digest = hashlib.sha256(student.encode("utf-8", "backslashreplace")).hexdigest()[:16]
    plain = re.sub(r"[^a-z0-9]+", "-", student.lower()).strip("-")[:40]
    return f"id-{plain}.{digest}" if plain else f"id.{digest}"


def report_files(course: Path, student: str) -> tuple[Path, Path]:
    """Return the paths of a student's reports, the page and the text."""
    stem = file_stem(student)
    return course / REPORTS / f"{stem}.html", course / REPORTS / f"{stem}.txt"


def about_all(course: Path) -> tuple[Path, ...]:
    """Return the pages and gradebooks of the whole class, which may show any student."""
    return tuple(course / name for name in (CLASS_PAGE, *FORMER_PAGES, *GRADEBOOKS))


def make_reports_folder(course: Path) -> None:
    """Make the folder of the students' reports if it is missing.

    Raises:
        OSError: the folder cannot be made.
        EnvironmentFault: the folder is a link to another place.
    """
    folder = course / REPORTS
    folder.mkdir(exist_ok=True)
    if folder.is_symlink():
        raise EnvironmentFault(f"{folder}: got a link, expected a folder: remove it")


def stale_reports(course: Path, students: Iterable[str]) -> list[Path]:
    """Return the reports in the folder that belong to none of these students."""
    wanted = {file.name for student in students for file in report_files(course, student)}
    with os.scandir(course / REPORTS) as entries:
        return sorted(
            course / REPORTS / entry.name
            for entry in entries
            if entry.name.endswith((".html", ".txt"))
            and entry.name not in wanted
            and entry.is_file(follow_symlinks=False)
        )


# The start of a formula; full-width signs count in Japanese and Chinese Excel. It may stand at the
# start of a cell, or behind any character that a spreadsheet may read as the end of a cell.
_FORMULA = re.compile(r"(?<![^\W_])([=+\-@＝＋－＠])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def canvas(standing: Standing) -> str:
    """Return Canvas's layout; undecided points are blank, which Canvas reads as no change."""
    possible = {place[1]: f"{grade.possible:.1f}" for place, grade in standing.grades.items()}
    rows = [[s.name or s.id, s.id, s.email or s.login, s.section] for s in standing.students]
    above = ["    Points Possible", "", "", "", *possible.values()]
    return _csv(standing, ["Student", "ID", "SIS Login ID", "Section"], rows, [above])


def moodle(standing: Standing) -> str:
    """Return Moodle's layout: the roster's id as Identifier, a column of points per problem."""
    rows = [[s.id, s.name, s.email] for s in standing.students]
    return _csv(standing, ["Identifier", "Full name", "Email address"], rows)


def _csv(
    standing: Standing,
    header: list[str],
    students: list[list[str]],
    above: Sequence[list[str]] = (),
) -> str:
    """Return rows of students, each with the points in a column per problem."""
    table = [[*header, *(f"{p} {load_problem(p).title}" for p in standing.problems)], *above]
    for student, texts in zip(standing.students, students, strict=True):
        points = (standing.grades[student.id, p].points for p in standing.problems)
        row = ["" if number is None else f"{number:.1f}" for number in points]
        table.append([*map(_cell, texts), *row])
    made = io.StringIO()
    csv.writer(made, lineterminator="\n").writerows(table)
    return made.getvalue()


def _cell(text: str) -> str:
    """Return a text in which no spreadsheet finds a formula (OWASP, "CSV injection").

    Whatever the separator, each sign that follows no letter or digit gets an apostrophe before it.
    """
    return _FORMULA.sub(r"'\1", _CONTROL.sub(" ", text))


# Files that `class grade` and `class publish` write, and `class forget` deletes.
GRADEBOOKS: Mapping[str, Callable[[Standing], str]] = {
    "gradebook-canvas.csv": canvas,
    "gradebook-moodle.csv": moodle,
}


def write_gradebooks(course: Path, standing: Standing) -> tuple[Path, ...]:
    """Write all gradebooks into the course's folder; return their paths.

    Raises:
        OSError: a gradebook cannot be written.
    """
    paths = {course / name: render(standing) for name, render in GRADEBOOKS.items()}
    for path, text in paths.items():
        write_whole(path, text)
    return tuple(paths)
