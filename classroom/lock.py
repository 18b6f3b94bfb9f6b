"""One run at a time in a course's folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from classroom.records import now
from grader.base.text import clean
from grader.spec.environment import EnvironmentFault

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
