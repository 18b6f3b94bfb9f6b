"""A course's folder: who is at work in it, and what the commands of a class take as input."""

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
    """Another run is at work in the same folder; says which."""


@contextlib.contextmanager
def locked(course: Path) -> Iterator[None]:
    """Hold the lock of a course's folder, which is made if it is not there.

    The lock goes with the process, however that ends.

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
    """Return who is at work in a course's folder, None if nobody is."""
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
