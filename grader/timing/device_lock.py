"""Who may use a device: tests of any number of gradings side by side, or one measurement alone.

Several submissions may be graded on one machine. A measurement takes the driver's word for what is
in use, so nothing else may start, run or end on that GPU meanwhile. Whoever waits for the lock
holds a gate that later ones cannot pass, so that nobody waits for ever.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

# A measurement takes minutes: a lock that is held for longer was never given back.
WAIT_S = 900.0
_LOOK_S = 0.05


@contextlib.contextmanager
def held(device: str, *, alone: bool, wait_s: float = WAIT_S) -> Iterator[bool]:
    """Lock `device` (a GPU's UUID, or cpu) while the context is open; yield whether that succeeds.

    It fails if others hold the lock for `wait_s`. Where no lock can be made it counts as held.
    """
    with contextlib.ExitStack() as lock:
        with _locked(f"{device}-gate", fcntl.LOCK_EX, wait_s) as had:
            kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
            had = had and lock.enter_context(_locked(device, kind, wait_s))
        yield had


def file_of(device: str) -> Path:
    """Return the file that is locked for `device`, by a measurement exclusively."""
    return Path(tempfile.gettempdir()) / f"grader-{os.getuid()}-{device}.lock"


@contextlib.contextmanager
def _locked(name: str, kind: int, wait_s: float) -> Iterator[bool]:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(file_of(name), flags, 0o600)
    except OSError:
        yield True
        return
    try:
        yield _flock(fd, kind, time.monotonic() + wait_s)
    finally:
        os.close(fd)


def _flock(fd: int, kind: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EINTR):
                return True  # a file system without locks
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)
