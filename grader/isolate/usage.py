"""What a process and all that it started use: CPU time and resident memory, read from outside.

The kernel has these figures; no process can make its own look smaller, but for the mark of its peak
memory, which is therefore read again and again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Self

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")
_SAMPLE_S = 0.002
_OWN, _WAITED = 11, 13  # fields of /proc/PID/stat: its time, and that of children it waited for
_SETRESUID, _SETRESGID = {"x86_64": (117, 119)}.get(os.uname().machine, (147, 149))


def children(pid: int) -> list[int]:
    """Return the child processes of `pid`."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        threads = os.listdir(tasks)
    except OSError:  # the process has ended
        return []
    found: list[int] = []
    for thread in threads:
        with contextlib.suppress(OSError, ValueError):
            found += map(int, (tasks / thread / "children").read_text(encoding="ascii").split())
    return found


def descendants(pid: int) -> list[int]:
    """Return all processes below `pid`."""
    found, pending = dict[int, None](), children(pid)
    while pending:
        child = pending.pop()
        if child not in found:
            found[child] = None
            pending += children(child)
    return list(found)


def user_of(pid: int) -> int | None:
    """Return the id that this process sees of another one's user, None where that has ended."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        return int(text.partition("\nUid:")[2].split()[0])
    return None


def threads(pid: int) -> int:
    """Return how many threads a process has, 0 where it has ended."""
    with contextlib.suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/task"))
    return 0


@contextlib.contextmanager
def seen_as_its_user(pid: int) -> Iterator[None]:
    """Let this thread look, as a process's user, at what the process has open or mapped.

    Root of a container may not look at processes of other users, unless it may trace them; the user
    who made their namespace may. libc's own functions would change the user of all threads.
    """
    user = user_of(pid) if os.geteuid() == 0 else None
    if not user:
        yield
        return
    libc, same, group = ctypes.CDLL(None), ctypes.c_long(-1), ctypes.c_long(os.getegid())
    libc.syscall(_SETRESGID, same, ctypes.c_long(user), same)
    libc.syscall(_SETRESUID, same, ctypes.c_long(user), same)
    try:
        yield
    finally:
        libc.syscall(_SETRESUID, same, ctypes.c_long(0), same)
        libc.syscall(_SETRESGID, same, group, same)


class Tree:
    """A worker, all that it started, and its orphans, which became children of `adopter`.

    The adopter is the judge, unless another process is given. `started` returns its children that
    are no orphans.
    """

    def __init__(
        self, pid: int, started: Callable[[], Collection[int]], adopter: int | None = None
    ) -> None:
        self.pid = pid
        self.adopter = adopter or os.getpid()
        self._started = started

    def pids(self) -> list[int]:
        """Return the processes of the tree that exist now."""
        known = set(self._started())
        orphans = [pid for pid in children(self.adopter) if pid not in known]
        found = [self.pid, *descendants(self.pid)]
        for orphan in orphans:
            found += [orphan, *descendants(orphan)]
        return list(dict.fromkeys(found))

    def resident_bytes(self) -> int:
        """Return `resident_bytes` of the tree, shared memory counted once for each process."""
        return sum(map(resident_bytes, self.pids()))


def resident_bytes(pid: int) -> int:
    """Return the resident memory that a process wrote, 0 if it has ended.

    Pages of files are left out: how much of torch's libraries is mapped says nothing of a call.
    """
    status = _status(pid)
    return status.get("RssAnon", 0) + status.get("RssShmem", 0)


def _own_seconds(pid: int) -> float:
    """Return the CPU time of a process in seconds, by the kernel's clock of it if there is one."""
    with contextlib.suppress(OSError):
        return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3)
    return _ticks(pid, _OWN)


def _ticks(pid: int, field: int) -> float:
    """Return the seconds in two fields of /proc/PID/stat: user time, and system time after it."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        fields = stat.rpartition(")")[2].split()
        return _TICK_S * (int(fields[field]) + int(fields[field + 1]))
    return 0.0


class Waiting:
    """The time that all threads of a tree have waited for a core since this was made, roughly.

    What a thread waited before it was first seen and after it was last seen does not count.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._last = self._read()
        self._last_s = time.monotonic()

    def next_s(self) -> float:
        """Return for how long since the last call the tree waited for a core and made no progress.

        That is what its threads waited, but no more than the time that passed less what they ran.
        """
        now, now_s = self._read(), time.monotonic()
        passed_s, self._last_s = now_s - self._last_s, now_s
        known = [(now[thread], self._last[thread]) for thread in now.keys() & self._last]
        ran_s, waited_s = (1e-9 * sum(new[i] - old[i] for new, old in known) for i in (0, 1))
        self._last = now
        return max(0.0, min(waited_s, passed_s - ran_s))

    def _read(self) -> dict[str, tuple[int, int]]:
        """Return the nanoseconds for which each thread had a core, and waited for one."""
        found = {}
        for pid in self._tree.pids():
            with contextlib.suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    with contextlib.suppress(OSError, ValueError):
                        ran, waited, _ = (task / "schedstat").read_text("ascii").split()
                        found[task.name] = int(ran), int(waited)
        return found


def _status(pid: int, file_name: str = "status") -> dict[str, int]:
    """Return the bytes that a file of /proc/PID says, by name; none if the process has ended."""
    found = {}
    with contextlib.suppress(OSError, ValueError):
        with open(f"/proc/{pid}/{file_name}", encoding="ascii", errors="replace") as file:
            for line in file:
                name, _, value = line.partition(":")
                if value.endswith(" kB\n"):
                    found[name] = 1024 * int(value.split()[0])
    return found


def proportional_bytes(pid: int) -> int:
    """Return the memory of one process, what it shares with others divided among them (PSS)."""
    with seen_as_its_user(pid):
        return _status(pid, "smaps_rollup").get("Pss", 0)


class UsageMonitor:
    """Samples what a tree uses while the context is open."""

    def __init__(self, tree: Tree) -> None:
        self.most_processes = 0  # of the tree, at a time
        self._tree = tree
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            self._look()

    def _pids(self) -> list[int]:
        pids = self._tree.pids()
        self.most_processes = max(self.most_processes, len(pids))
        return pids

    def _look(self) -> None:
        raise NotImplementedError


class CpuTime(UsageMonitor):
    """The CPU time that a tree spends while the context is open, in `seconds`.

    The kernel drops the time of a child whose parent ignores its end, so the tree is watched: what
    a process had spent when it was last seen counts, unless it is in what others waited for.
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self._spent: dict[int, float] = {}  # by each process, when it was last seen
        self._alive: set[int] = set()
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._look()
        self.seconds = -sum(self._spent.values())
        self._waited = self._waited_for()
        return super().__enter__()

    def _look(self) -> None:
        spent = {pid: _own_seconds(pid) for pid in self._pids()}
        # One that has just died has no clock any more: what it had when it was last seen holds.
        self._spent |= {pid: max(s, self._spent.get(pid, 0.0)) for pid, s in spent.items()}
        self._alive = set(spent)

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        alive = sum(self._spent[pid] for pid in self._alive)
        gone = sum(self._spent.values()) - alive
        self.seconds += alive + max(gone, self._waited_for() - self._waited)

    def _waited_for(self) -> float:
        """Return the CPU time of ended processes that the tree, or its adopter, waited for."""
        return sum(_ticks(pid, _WAITED) for pid in (self._tree.adopter, *self._tree.pids()))


class PeakMemory(UsageMonitor):
    """The most memory a tree held at a time, watched while the context is open.

    The kernel's own mark (VmHWM) misses nothing, but a process can reset it, it has pages of files
    in it and knows nothing of children; samples miss what lasts less than a few milliseconds. The
    larger of both counts.
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__(tree)
        self.before_bytes = 0
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError), open(f"/proc/{self._tree.pid}/clear_refs", "w") as file:
            file.write("5")
        self.before_bytes = self.peak_bytes = self._tree.resident_bytes()
        return super().__enter__()

    def _look(self) -> None:
        pids = self._pids()
        now = list(map(resident_bytes, pids))
        status = _status(self._tree.pid)
        mark = status.get("VmHWM", 0) - status.get("RssFile", 0)
        self.peak_bytes = max(self.peak_bytes, sum(now), sum(now[1:]) + mark)
