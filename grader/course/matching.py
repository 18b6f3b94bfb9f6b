"""Finds the student whom a name in a source means."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from grader.course.records import Student

_PARTICIPANT = re.compile(r"participant (\d+)")


class Matching:
    """Students by all they are called: id, email and its local part, login, Moodle's number, name.

    A name that two students share means neither. Case does not count. Ids go first, and full names
    last, so that nobody is found under a name that is somebody else's id.
    """

    def __init__(self, students: Iterable[Student]) -> None:
        students = tuple(students)
        self.is_empty = not students
        self._students: dict[str, str | None] = {}
        for names in (_ids, _accounts, _local_parts, _full_names):
            found: dict[str, str | None] = {}
            for student in students:
                for name in filter(None, map(str.casefold, names(student))):
                    shared = name in found and found[name] != student.id
                    found[name] = None if shared else student.id
            self._students = found | self._students

    def student(self, name: str) -> str | None:
        """Return the id of the student who is called that; None where there is none, or two."""
        return self._students.get(name.casefold())

    def of_clone(self, name: str) -> str | None:
        """Return the student of a folder `assignment-<login>`; a login may hold dashes as well."""
        for at, char in enumerate(name):
            if char == "-" and (student := self.student(name[at + 1 :])):
                return student
        return None


def _ids(student: Student) -> Iterator[str]:
    yield student.id
    if number := _PARTICIPANT.fullmatch(student.id.casefold()):
        yield number[1]


def _accounts(student: Student) -> Iterator[str]:
    yield student.email
    yield student.login


def _local_parts(student: Student) -> Iterator[str]:
    yield student.email.partition("@")[0]
    yield student.id.partition("@")[0]


def _full_names(student: Student) -> Iterator[str]:
    yield student.name
    last, comma, first = student.name.partition(",")
    if comma:
        yield f"{first.strip()} {last.strip()}"
