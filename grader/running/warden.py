"""Ends a jailed worker that takes too much: the judge looks at its processes from outside.

Nothing here needs a privilege or a cgroup. What is taken between two looks goes unseen, so that
these are limits that protect the machine, and no measure of what a submission needs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from grader.running import usage

_LOOK_S = 0.05
MOST_PROCESSES = 64
MOST_MEMORY_BYTES = 4 * 2**30  # beyond what the worker has before it imports the submission
MOST_KERNEL_BYTES = 2**30  # of compiled kernels, which lie outside of the jail


class Warden:
    """Watches the processes below the jail's first one until `stop`."""

    def __init__(
        self,
        first: int,
        *,
        kernels: Path | None = None,
        processes: int = MOST_PROCESSES,
        memory_bytes: int = MOST_MEMORY_BYTES,
    ) -> None:
        """Watch the jail whose process 1 is `first`; when that dies all others in it do."""
        self.over: str | None = None
        self._first = first
        self._kernels = kernels
        self._processes = processes
        self._memory_bytes = memory_bytes + _memory_bytes(self._pids())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_S):
            self.over = self._excess()
            if self.over is not None:
                with contextlib.suppress(OSError):
                    os.kill(self._first, signal.SIGKILL)
                return

    def _pids(self) -> list[int]:
        return [self._first, *usage.descendants(self._first)]

    def _excess(self) -> str | None:
        pids = self._pids()
        if len(pids) - 1 > self._processes:
            return f"it ran {len(pids) - 1} processes, and {self._processes} are the most"
        memory = _memory_bytes(pids)
        if memory > self._memory_bytes:  # perhaps since what a child has of its parent counts twice
            memory = _memory_bytes(pids, of=usage.proportional_bytes)
        if memory > self._memory_bytes:
            most = _gib(self._memory_bytes)
            return f"its processes held {_gib(memory)} of host memory, and {most} is the most"
        if self._kernels is not None:
            size = sum(_size(path) for path in _files(self._kernels))
            if size > MOST_KERNEL_BYTES:
                most = _gib(MOST_KERNEL_BYTES)
                return f"its compiled kernels took {_gib(size)} of disk, and {most} is the most"
        return None


def _memory_bytes(pids: list[int], of: Callable[[int], int] = usage.resident_bytes) -> int:
    """Return what processes hold: memory of each, and files that have no name and no folder."""
    return sum(map(of, pids)) + sum(_nameless(pids).values())


def _nameless(pids: list[int]) -> dict[int, int]:
    """Return the memory of the memfds that processes have open, by inode: none counts twice."""
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(entry.path).startswith("/memfd:"):
                        status = os.stat(entry.path)
                        found[status.st_ino] = 512 * status.st_blocks
    return found


def _files(folder: Path) -> list[str]:
    return [os.path.join(path, name) for path, _, names in os.walk(folder) for name in names]


def _size(path: str) -> int:
    with contextlib.suppress(OSError):
        return 512 * os.lstat(path).st_blocks
    return 0


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def processes_of(bubblewrap: int) -> tuple[int, int] | None:
    """Return the process 1 of the jail that `bubblewrap` made, and the worker below it.

    None unless they are a chain of three processes, which they are before a submission has run.
    """
    first = usage.children(bubblewrap)
    worker = usage.children(first[0]) if len(first) == 1 else []
    return (first[0], worker[0]) if len(worker) == 1 else None
