"""Ends what a submission left behind: the judge adopts its orphans, and kills them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

from grader.isolate import usage

_PR_SET_CHILD_SUBREAPER = 36
_ENOUGH_S = 20.0
_own: set[int] = set()
_lock = threading.Lock()


def adopt_orphans() -> None:
    """Become the parent of every descendant whose parent dies; `start` and `adopt` do so first."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def start(command: list[str], **options: Any) -> subprocess.Popen:
    """Start a child that the judge itself ends, as `subprocess.Popen` does, without an input."""
    adopt_orphans()
    with _lock:
        child = subprocess.Popen(command, **{"stdin": subprocess.DEVNULL} | options)
        _own.add(child.pid)
        return child


def adopt(fork: Callable[[], int]) -> int | None:
    """Count the child whose id `fork` returns as one that the judge started; return that id.

    Return None if it is no child of the judge.
    """
    adopt_orphans()
    with _lock:
        pid = fork()
        if pid not in usage.children(os.getpid()):
            return None
        _own.add(pid)
        return pid


def started() -> set[int]:
    """Return the children that the judge itself started and has not seen to their end."""
    with _lock:
        return set(_own)


def ended(child: Any) -> None:
    """Forget a child that has ended, and kill what it left behind."""
    with _lock:
        _own.discard(child.pid)
    kill_orphans()


def kill_orphans() -> None:
    """Kill what workers left behind: daemons that have become the judge's children.

    A child in another session that the judge did not start can be nothing else: its helpers share
    its session, and no process can join that of another. All are stopped before the first is
    killed, so that daemons that start each other anew do not get the time to.
    """
    deadline = time.monotonic() + _ENOUGH_S
    while time.monotonic() < deadline:
        with _lock:  # so that no child has started and is not yet in `_own`
            orphans = _orphans()
            if not orphans:
                return
            for number in (signal.SIGSTOP, signal.SIGKILL):
                for pid in orphans:
                    with contextlib.suppress(OSError):
                        os.kill(pid, number)
                orphans = _orphans()
            for pid in orphans:
                with contextlib.suppress(OSError):
                    os.waitpid(pid, os.WNOHANG)
        time.sleep(0.002)


def _orphans() -> list[int]:
    """Return adopted children, and the processes below them."""
    found = []
    for pid in usage.children(os.getpid()):
        with contextlib.suppress(OSError):
            if pid not in _own and os.getsid(pid) != os.getsid(0):
                found += [pid, *usage.descendants(pid)]
    return found
