"""Reads CSV files about a class: the roster, and when each student handed in.

Columns are found by the names that Canvas (gradebook), Moodle (grading worksheet), Gradescope
(roster) and GitHub Classroom (roster, grades) give them. What a field holds is data, whatever it
looks like; no field is shown without being cleaned.
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
# By field: names of columns, the first that is there counts. Compared without case and signs.
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


# When a row's id and login handed in; either can be "".
Times = Mapping[tuple[str, str], str]
# What Canvas calls the student as whom an instructor tries a course; with SIS names first or last.
TEST_STUDENTS = ("Student, Test", "Test Student")


def read_roster(path: Path) -> tuple[Student, ...]:
    """Return the students of a CSV file with a header line, in its order.

    Raises:
        CourseError: it cannot be read, is not UTF-8, has no column of ids, a row without an id, or
            an id twice.
    """
    header, rows = _table(path)
    columns = {name: _column(header, names) for name, names in _COLUMNS.items()}
    if columns["id"] is None:
        raise CourseError(
            f"{path}: got the columns {clean(', '.join(header), 120)}, expected one that is called"
            f" {', '.join(_COLUMNS['id'][:5])} or {_COLUMNS['id'][-1]}"
        )
    if columns["login"] is None and _column(header, ("github_id",)):
        columns["login"] = columns["id"]  # Classroom 50, whose username is that of GitHub
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
    """Return when each student handed in, in UTC, by the id and the login that the file has.

    A row without a time says nothing. GitHub Classroom's grades are such a file.

    Raises:
        CourseError: it cannot be read, lacks a column, or has a time that is none or has no zone.
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
    """Return a time as ISO has it; GitHub Classroom writes 2026-11-23 08:00:00 UTC."""
    if text.endswith(" UTC"):
        return datetime.datetime.fromisoformat(text.removesuffix(" UTC")).isoformat() + "Z"
    return text


def _table(path: Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Return the header and the rows that are not blank, each with the number of its first line.

    A row has its cells by the header's; of columns with one name the first counts.
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
    """Return the column that the first of these names means, compared without case and signs."""
    plain = {_plain(cell): cell for cell in reversed(list(header))}
    return next((plain[_plain(name)] for name in names if _plain(name) in plain), None)


def _plain(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum())


def _is_no_student(row: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Whether this is a line that Canvas puts above the students, its test student, or staff.

    Canvas's gradebook ends with "Student, Test", who has an id; Gradescope's roster says the role.
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
# What may name a folder that the instructor named; ids first, so that no address hides one.
NAMED = ("id", "email", "login", "local part")


class Matching:
    """Students by the texts in the roster's columns, without case, which nobody else can choose.

    A platform's number, an id, a verified address and the login of a repository identify a student.
    A display name and a file name never do: students choose them. A text that two students share in
    one column means neither.
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
        """Return whose text this is in the first of `columns` that has it; None: nobody's."""
        text = text.casefold()
        return next((self._columns[c][text] for c in columns if text in self._columns[c]), None)

    def of_clone(self, name: str) -> Mapping[str, str]:
        """Return who a repository `assignment-login` can belong to, by the assignment.

        Both parts may hold dashes, so that a name alone can be read in several ways.
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
