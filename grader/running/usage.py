"""What a process and all that it started use: CPU time and resident memory, read from outside.

The kernel keeps these figures; no process can make its own look smaller, but for the mark of its
peak memory, which is why that is read again and again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SAMPLE_S = 0.002


def children(pid: int) -> list[int]:
    """Return the child processes of `pid`."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError, ValueError):
            found += map(int, path.read_text(encoding="ascii").split())
    return found


def descendants(pid: int) -> list[int]:
    """Return all processes below `pid`."""
    found, pending = [], children(pid)
    while pending:
        child = pending.pop()
        if child not in found:
            found.append(child)
            pending += children(child)
    return found


class Tree:
    """A worker, what it started, and what became the judge's child when its parent died."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._before = set(children(os.getpid())) - {pid}

    def pids(self) -> list[int]:
        """Return the processes of the tree that exist now."""
        orphans = [pid for pid in children(os.getpid()) if pid not in self._before]
        found = [self.pid, *descendants(self.pid)]
        for orphan in orphans:
            if orphan not in found:
                found += [orphan, *descendants(orphan)]
        return found

    def cpu_seconds(self) -> float:
        """Return the CPU time of the tree so far, dead processes included."""
        reaped = os.times()
        waited_for = reaped.children_user + reaped.children_system
        return waited_for + sum(_cpu_seconds(pid) for pid in self.pids())

    def resident_bytes(self) -> int:
        """Return the resident memory of the tree, shared memory counted once for each process."""
        return sum(_status_bytes(pid, "VmRSS:") for pid in self.pids())


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of the children it has waited for."""
    seconds = 0.0
    with contextlib.suppress(OSError, IndexError, ValueError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        fields = stat.rpartition(")")[2].split()
        seconds = _TICK_S * (int(fields[13]) + int(fields[14]))  # cutime, cstime
        own = _TICK_S * (int(fields[11]) + int(fields[12]))
        with contextlib.suppress(OSError):  # clock_getcpuclockid(3), in nanoseconds
            own = time.clock_gettime((~pid << 3) | 2)
        seconds += own
    return seconds


def _status_bytes(pid: int, name: str) -> int:
    with contextlib.suppress(OSError, IndexError, ValueError):
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            for line in file:
                if line.startswith(name):
                    return 1024 * int(line.split()[1])
    return 0


class PeakMemory:
    """The most memory a tree held at a time, watched while the context is open.

    The kernel's own mark (VmHWM) misses nothing, but a process can reset it and it knows nothing of
    children; samples miss what lasts less than a few milliseconds. The larger of both counts.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.before_bytes = 0
        self.peak_bytes = 0

    def __enter__(self) -> PeakMemory:
        with contextlib.suppress(OSError), open(f"/proc/{self._tree.pid}/clear_refs", "w") as file:
            file.write("5")
        self.before_bytes = self.peak_bytes = self._tree.resident_bytes()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._sample()
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._sample()

    def _sample(self) -> None:
        pids = self._tree.pids()
        marks = [_status_bytes(pid, "VmHWM:") for pid in pids[:1]]
        now = [_status_bytes(pid, "VmRSS:") for pid in pids]
        self.peak_bytes = max(self.peak_bytes, sum(now), *(sum(now[1:]) + mark for mark in marks))
