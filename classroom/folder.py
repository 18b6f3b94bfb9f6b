"""The folder of a course, and what the commands of a class take as input."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from pydantic import ValidationError

from classroom.grades import people
from classroom.records import CourseError
from classroom.store import Store
from grader.spec.grade_record import Record
from grader.spec.problem import explained

DATABASE = "class.db"
_Record = TypeVar("_Record", bound=Record)


class Command(NamedTuple):
    """A command of `grader class`: `run` returns its exit code, `add_options` declares its own."""

    help: str
    run: Callable[[argparse.Namespace], int]
    add_options: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def open_class(course: Path) -> Store:
    """Return the store of the class in the folder `course`.

    Raises:
        CourseError: there is no class in it.
        StoreError: its database cannot be used.
    """
    path = course / DATABASE
    if not path.is_file():
        raise CourseError(
            f"--course: got {course}, which has no {DATABASE}; expected the folder that"
            " grader class collect made"
        )
    return Store(path)


def known_student(store: Store, student: str) -> str:
    """Return the id of a student of the class, or of one who handed something in.

    Raises:
        CourseError: there is none of this id.
    """
    known = {s.id for s in people(store)} | store.hand_ins().keys()
    return one_of(known, student, "--student")


def one_of(known: Iterable[str], got: str, option: str) -> str:
    """Return `got` where it is known.

    Raises:
        CourseError: it is not; names what looks like it.
    """
    names = sorted(known)
    if got in names:
        return got
    near = difflib.get_close_matches(got, names, 3) or names[:3]
    some = ", ".join(near) + (", ..." if len(names) > len(near) else "")
    raise CourseError(f"{option}: got {got!r}, expected one of {some or 'none: there are none'}")


def need(options: object, names: Sequence[str]) -> None:
    """See that options were given.

    Raises:
        CourseError: one was not.
    """
    missing = [name for name in names if getattr(options, name) is None]
    if missing:
        raise CourseError(f"--{missing[0]}: got nothing, expected a value")


def made(record: type[_Record], **values: object) -> _Record:
    """Return a record of what was given on the command line.

    Raises:
        CourseError: a value does not fit.
    """
    try:
        return record(**values)
    except ValidationError as error:
        raise CourseError(f"--{explained(error)}") from None
