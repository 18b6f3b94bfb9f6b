"""Finds the student of the roster to whom a submission belongs, by what nobody else can choose.

A platform's number, an id, a verified address and the login of a repository identify a student.
A display name and a file name never do: students choose them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from classroom.records import Student

_PARTICIPANT = re.compile(r"participant (\d+)")
# What may name a folder that the instructor named; ids first, so that no address hides one.
NAMED = ("id", "email", "login", "local part")


class Matching:
    """Students by the texts in the roster's columns, without case.

    A text that two students share in one column means neither.
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
