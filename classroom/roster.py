"""Reads CSV files about a class: the roster, and the times of submission.

Columns are found by their names in exports of Canvas (gradebook), Moodle (grading worksheet),
Gradescope (roster) and GitHub Classroom (roster, grades). Fields are data, never formulas; none is
shown without being cleaned.
"""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError

from classroom.records import CourseError, Student, utc
from grader.base.text import clean

MAX_BYTES = 16 * 2**20
# By field: names of its column, the first found counts; case and punctuation are ignored.
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "id": ("id", "identifier", "sid", "student id", "id number", "username", "roster_identifier"),
    "name": ("name", "student", "full name", "student_name"),
    "email": ("email", "email address", "sis login id", "login_id"),
    "section": ("section", "sections", "group"),
    "login": ("login", "github_username", "github_login"),
    "number": ("number", "participant number"),
}
_FIRST, _LAST = ("first name", "first_name"), ("last name", "surname", "last_name")
_TIMES = ("submitted_at", "submission_timestamp", "submission time", "time")


# The time of submission by id and login, either of which may be "".
Times = Mapping[tuple[str, str], str]
# Canvas's names for its test student: last name first, or first name first.
TEST_STUDENTS = ("Student, Test", "Test Student")


def read_roster(path: Path) -> tuple[Student, ...]:
    """Return the students of a CSV file with a header line, in the order of its rows.

    Raises:
        CourseError: the file cannot be read, is not UTF-8, has no column of ids, a row without an
            id, or the same id twice.
    """
    header, rows = _table(path)
    columns = {name: _column(header, names) for name, names in _COLUMNS.items()}
    if columns["id"] is None:
        raise CourseError(
            f"{path}: got the columns {clean(', '.join(header), 120)}, expected one that is called"
            f" {', '.join(_COLUMNS['id'][:5])} or {_COLUMNS['id'][-1]}"
        )
    if columns["login"] is None and _column(header, ("github_id",)):
        columns["login"] = columns["id"]  # Classroom 50, whose ids are GitHub's usernames
    parts = [_column(header, _FIRST), _column(header, _LAST)]
    students: list[Student] = []
    seen: dict[str, int] = {}
    for number, row in rows:
        fields = {name: row.get(column, "") for name, column in columns.items()}
        if _is_no_student(row, fields):
            continue
        fields["name"] = fields["name"] or " ".join(filter(None, map(row.get, parts)))
        if not fields["id"]:
            raise CourseError(f"{path}: row {number}: got no {columns['id']}, expected one")
        other = seen.setdefault(fields["id"].casefold(), number)
        if other != number:
            raise CourseError(
                f"{path}: rows {other} and {number}: got the id {clean(fields['id'], 60)!r} in"
                " both, expected each once"
            )
        try:
            students.append(Student(**fields))
        except ValidationError:
            raise CourseError(
                f"{path}: row {number}: got an id of {len(fields['id'])} characters, expected at"
                " most 200"
            ) from None
    if not students:
        raise CourseError(f"{path}: got no student, expected a row for each")
    return tuple(students)


def read_times(path: Path) -> Times:
    """Return when each student handed in, in UTC, by the id and the login in the file.

    Rows without a time are skipped. GitHub Classroom's file of grades can be used.

    Raises:
        CourseError: the file cannot be read, lacks a column, or has a malformed time or no zone.
    """
    header, rows = _table(path)
    ids = [_column(header, _COLUMNS[name]) for name in ("id", "login")]
    when = _column(header, _TIMES)
    if when is None or ids == [None, None]:
        raise CourseError(
            f"{path}: got the columns {clean(', '.join(header), 120)}, expected id (or"
            f" github_username) and {_TIMES[0]} (or {_TIMES[1]})"
        )
    times: dict[tuple[str, str], str] = {}
    for number, row in rows:
        text = row[when]
        if not text:
            continue
        try:
            time = utc(_with_zone(text))
        except ValueError:
            raise CourseError(
                f"{path}: row {number}: {_TIMES[0]}: got {clean(text, 60)!r}, expected a time with"
                " its zone, as 2026-11-23T08:00:00Z"
            ) from None
        names = row.get(ids[0], ""), row.get(ids[1], "")
        times[names] = max(time, times.get(names, ""))
    return times


def _with_zone(text: str) -> str:
    """Return a time in ISO format; GitHub Classroom writes 2026-11-23 08:00:00 UTC."""
    if text.endswith(" UTC"):
        return datetime.datetime.fromisoformat(text.removesuffix(" UTC")).isoformat() + "Z"
    return text


def _table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the header and the rows that are not blank, each with the number of its first line.

    A row has its cells by column name; of columns with the same name the first counts.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CourseError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise CourseError(f"{path}: got more than {MAX_BYTES >> 20} MiB, expected a CSV file")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CourseError(
            f"{path}: byte {error.start}: got text that is not UTF-8; save it as CSV UTF-8"
        ) from None
    if "\0" in text:
        raise CourseError(f"{path}: got zero bytes, expected a CSV file")
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)  # Excel writes ; in many countries
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    table, line = [], 1
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                table.append((line, cells))
            line = reader.line_num + 1
    except csv.Error as error:
        raise CourseError(f"{path}: line {reader.line_num}: not valid CSV: {error}") from None
    if not table:
        raise CourseError(f"{path}: got an empty file, expected a header and rows below it")
    (_, header), *rows = table
    places = {name: header.index(name) for name in header}
    return header, [
        (line, {name: cells[at] if at < len(cells) else "" for name, at in places.items()})
        for line, cells in rows
    ]


def _column(header: Iterable[str], names: Sequence[str]) -> str | None:
    """Return the column with the first of these names found, ignoring case and punctuation."""
    plain = {_plain(cell): cell for cell in reversed(list(header))}
    return next((plain[_plain(name)] for name in names if _plain(name) in plain), None)


def _plain(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


def _is_no_student(row: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Whether a row is a heading or the test student of Canvas, or a member of staff.

    Canvas's gradebook ends with "Student, Test", who has an id; Gradescope's roster has roles.
    """
    role = _column(row, ("role", "course role", "roles"))
    if role and row[role] and "student" not in row[role].casefold():
        return True
    if "Student" not in row:
        return False
    if fields["name"] in TEST_STUDENTS:
        return True
    lines = ("Points Possible", "")
    return not fields["id"] and (fields["name"] in lines or "Manual Posting" in row.values())


_PARTICIPANT = re.compile(r"participant (\d+)")
# Columns that the name of an instructor's folder may be from; ids first, so that no email wins.
NAMED = ("id", "email", "login", "local part")


class Matching:
    """Finds students by texts from the roster's columns, ignoring case.

    A platform's number, an id, a verified email and the login of a repository identify a student.
    A display name and a file name never do: students choose them. A text that two students share in
    one column identifies neither.
    """

    def __init__(self, students: Iterable[Student]) -> None:
        students = tuple(students)
        self.ids = frozenset(student.id for student in students)
        self._columns: dict[str, dict[str, str | None]] = {}
        for column, texts in _TEXTS.items():
            found = self._columns.setdefault(column, {})
            for student in students:
                for text in filter(None, map(str.casefold, texts(student))):
                    shared = found.get(text, student.id) != student.id
                    found[text] = None if shared else student.id

    def student(self, text: str, *columns: str) -> str | None:
        """Return the student with this text in the first of `columns` that has it, or None."""
        text = text.casefold()
        return next((self._columns[c][text] for c in columns if text in self._columns[c]), None)

    def of_clone(self, name: str) -> Mapping[str, str]:
        """Return the possible owners of a repository `assignment-login`, by assignment.

        Both parts may contain dashes, so that a name can be split in several ways.
        """
        splits = ((name[:at], name[at + 1 :]) for at, char in enumerate(name) if char == "-")
        read = ((assignment, self.student(login, "login")) for assignment, login in splits)
        return {assignment.casefold(): student for assignment, student in read if student}


def _numbers(student: Student) -> Iterator[str]:
    number = student.number or student.id
    yield number
    if match := _PARTICIPANT.fullmatch(number.casefold()):
        yield match[1]


def _local_parts(student: Student) -> Iterator[str]:
    yield student.email.partition("@")[0]
    yield student.id.partition("@")[0]


_TEXTS: Mapping[str, Callable[[Student], Iterable[str]]] = {
    "id": lambda student: (student.id,),
    "number": _numbers,
    "email": lambda student: (student.email,),
    "login": lambda student: (student.login,),
    "local part": _local_parts,
}
