"""A course's folder: its lock and its database, and checks of the commands' input."""

from __future__ import annotations

import contextlib
import difflib
import fcntl
import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from classroom.grades import people
from classroom.records import CourseError, now
from classroom.store import Store
from grader.base.text import clean
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import Record
from grader.spec.problem import explained

FILE = ".lock"


class Busy(EnvironmentFault):
    """Another run holds the lock of the folder; the message says which."""


@contextlib.contextmanager
def locked(course: Path) -> Iterator[None]:
    """Hold the lock of a course's folder, which is made if it is missing.

    The lock is released when the process ends, in whatever way.

    Raises:
        Busy: another process holds it.
        EnvironmentFault: the folder cannot be made or written.
    """
    path = course / FILE
    try:
        course.mkdir(mode=0o700, parents=True, exist_ok=True)  # it holds names and grades
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise EnvironmentFault(f"--course: cannot write in {course}: {error.strerror}") from None
    with os.fdopen(handle, "r+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = clean(file.read(200), 120) or "unknown"
            raise Busy(
                f"{course}: another run is at work there ({who}); wait for it, or end it with"
                " Ctrl-C where it runs"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()} since {now()}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def holder(course: Path) -> str | None:
    """Return which process holds the lock of a course's folder, None if none does."""
    try:
        with open(course / FILE, encoding="utf-8", errors="replace") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return clean(file.read(200), 120) or "unknown"
    except OSError:
        return None
    return None


DATABASE = "class.db"
_Record = TypeVar("_Record", bound=Record)


def open_class(course: Path) -> Store:
    """Return the store of the class in the folder `course`.

    Raises:
        CourseError: the folder has no database.
        StoreError: the database cannot be used.
    """
    path = course / DATABASE
    if not path.is_file():
        raise CourseError(
            f"--course: got {course}, which has no {DATABASE}; expected the folder that"
            " grader class collect made"
        )
    return Store(path)


def known_student(store: Store, student: str) -> str:
    """Return `student` if it is the id of a student in the class, or of one who handed in.

    Raises:
        CourseError: nobody has this id.
    """
    known = {s.id for s in people(store)} | store.hand_ins().keys()
    return one_of(known, student, "--student")


def one_of(known: Iterable[str], got: str, option: str) -> str:
    """Return `got` if it is one of `known`.

    Raises:
        CourseError: it is not; the message names similar ones.
    """
    names = sorted(known)
    if got in names:
        return got
    near = difflib.get_close_matches(got, names, 3) or names[:3]
    some = ", ".join(near) + (", ..." if len(names) > len(near) else "")
    raise CourseError(f"{option}: got {got!r}, expected one of {some or 'none: there are none'}")


def need(options: object, names: Sequence[str]) -> None:
    """Check that the options `names` were given.

    Raises:
        CourseError: an option was not given.
    """
    missing = [name for name in names if getattr(options, name) is None]
    if missing:
        raise CourseError(f"--{missing[0]}: got nothing, expected a value")


def made(record: type[_Record], **values: object) -> _Record:
    """Return a record with values from the command line.

    Raises:
        CourseError: a value is not valid.
    """
    try:
        return record(**values)
    except ValidationError as error:
        raise CourseError(f"--{explained(error)}") from None
