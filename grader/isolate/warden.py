"""Ends a jailed worker that takes too much: the judge looks at its processes from outside.

Nothing here needs a privilege or a control group; with one the kernel keeps the limit of memory,
too (cgroup.py). What is taken between two looks goes unseen, so that these are limits that protect
the machine, and no measure of what a submission needs.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

from grader.isolate import cgroup, usage

_LOOK_S = 0.05
_LOOKS_PER_MAPS = 20  # looking at maps takes milliseconds for which a process with torch waits
MOST_PROCESSES = 64
MOST_THREADS = 2048  # of all together: CUDA has some for each core
_BUFFER_BYTES = 256 * 2**10  # of a socket or a pipe, about as much as it can hold unread
MOST_MEMORY_BYTES = 4 * 2**30  # beyond what the worker has before it imports the submission
MOST_KERNEL_BYTES = 2**30  # of compiled kernels, which lie outside of the jail
MOST_KERNEL_FILES = 20_000  # an empty one takes no bytes, but a place in the file system
MOST_FILES = 20_000  # in memory, where what the kernel itself needs for each counts nowhere
_KERNEL_DEPTH = 4  # Triton writes no deeper than two


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
        pids = self._pids()
        self._memory_bytes = memory_bytes + _memory_bytes(pids)
        self._group: cgroup.Group | None = None
        with contextlib.suppress(cgroup.NoGroup):
            self._group = cgroup.Group(pids, memory_bytes)
        self._looks = itertools.count(1)
        self._in_memory = _in_memory(first)
        self._most_files = MOST_FILES + _files_in(self._in_memory, first)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; end what is in the jail's control group, if it has one."""
        self._stop.set()
        self._thread.join()
        if self._group is None:
            return
        if self.over is None and self._group.is_over():
            most = _gib(self._memory_bytes)
            self.over = f"its processes held more than {most} of host memory, which is the most"
        self._group.close()

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
        threads = sum(map(usage.threads, pids))
        if threads > MOST_THREADS:
            return f"it ran {threads} threads, and {MOST_THREADS} are the most"
        memory = _memory_bytes(pids)
        if memory > self._memory_bytes:  # perhaps since memory shared with a child counts twice
            memory = _memory_bytes(pids, of=usage.proportional_bytes)
        if memory > self._memory_bytes:
            most = _gib(self._memory_bytes)
            return f"its processes held {_gib(memory)} of host memory, and {most} is the most"
        if _files_in(self._in_memory, self._first) > self._most_files:
            return f"it made more than {MOST_FILES} files in memory, or attributes of such files"
        if self._kernels is None:
            return None
        return _excess_on_disk(self._kernels, pids, mapped=next(self._looks) % _LOOKS_PER_MAPS == 0)


def _excess_on_disk(kernels: Path, pids: list[int], *, mapped: bool) -> str | None:
    """Return what exceeds a limit in the folder of compiled kernels, or cannot be looked at.

    Deleted files count while they are open and, if these are to be looked at, while `mapped`.
    """
    sizes = dict[int, int]()
    pending = [(str(kernels), 0)]
    while pending:
        folder, depth = pending.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if len(sizes) >= MOST_KERNEL_FILES:
                        return f"it made more than {MOST_KERNEL_FILES} files of compiled kernels"
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        sizes[status.st_ino] = 512 * status.st_blocks
                        if stat.S_ISDIR(status.st_mode):
                            pending.append((entry.path, depth + 1))
        except FileNotFoundError:  # Triton moves a folder into place
            continue
        except OSError as error:
            return f"its compiled kernels cannot be looked at: {error.strerror}"
        if depth > _KERNEL_DEPTH:
            return f"it made folders more than {_KERNEL_DEPTH} deep of compiled kernels"
    try:
        device = os.stat(kernels).st_dev
    except FileNotFoundError:  # the jail has been cleaned up
        return None
    sizes |= _mapped(pids, device) if mapped else {}
    sizes |= _open_files(pids, "/", device)
    size = sum(sizes.values())
    if size > MOST_KERNEL_BYTES:
        most = _gib(MOST_KERNEL_BYTES)
        return f"its compiled kernels took {_gib(size)} of disk, and {most} is the most"
    return None


def _in_memory(first: int) -> list[str]:
    """Return the folders of a jail that are file systems in memory, as they are seen from here."""
    found = []
    with contextlib.suppress(OSError), open(f"/proc/{first}/mountinfo", encoding="ascii") as rows:
        for row in rows:
            mount, _, kind = row.partition(" - ")
            if kind.startswith("tmpfs "):
                found.append(f"/proc/{first}/root{mount.split()[4]}")
    return found


def _files_in(folders: list[str], first: int) -> int:
    """Return how many files there are, the space that their attributes take counted in files."""
    found = 0
    with usage.seen_as_its_user(first):
        for folder in folders:
            with contextlib.suppress(OSError):
                counts = os.statvfs(folder)
                found += counts.f_files - counts.f_ffree
    return found


def _mapped(pids: list[int], device: int) -> dict[int, int]:
    """Return, by inode, up to which byte deleted files on a device are mapped."""
    found: dict[int, int] = {}
    for pid in pids:
        seen = usage.seen_as_its_user(pid)
        with contextlib.suppress(OSError), seen, open(f"/proc/{pid}/maps", "rb") as maps:
            for line in maps:
                if not line.endswith(b" (deleted)\n"):
                    continue
                where, _, offset, numbers, inode = line.split()[:5]
                major, minor = (int(number, 16) for number in numbers.split(b":"))
                if os.makedev(major, minor) == device:
                    first, last = (int(address, 16) for address in where.split(b"-"))
                    end = int(offset, 16) + last - first
                    found[int(inode)] = max(found.get(int(inode), 0), end)
    return found


def _memory_bytes(pids: list[int], of: Callable[[int], int] = usage.resident_bytes) -> int:
    """Return the bytes that processes hold: memory of each, and each memfd once.

    A socket or a pipe counts as if it were full: nobody can see how much waits in it.
    """
    buffers = sum(len(_open_files(pids, kind)) for kind in ("socket:", "pipe:"))
    files = sum(_open_files(pids, "/memfd:").values())
    return sum(map(of, pids)) + files + _BUFFER_BYTES * buffers


def _open_files(pids: list[int], prefix: str, device: int | None = None) -> dict[int, int]:
    """Return the sizes, by inode, of files that are open under a path with this beginning.

    With a `device` only of those on it that have no name.
    """
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError), usage.seen_as_its_user(pid):
            for entry in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    if not os.readlink(entry.path).startswith(prefix):
                        continue
                    status = os.stat(entry.path)
                    if device is None or (status.st_dev, status.st_nlink) == (device, 0):
                        found[status.st_ino] = 512 * status.st_blocks
    return found


def _gib(number: int) -> str:
    return f"{number / 2**30:.1f} GiB"


def processes_of(bubblewrap: int) -> tuple[int, int] | None:
    """Return the process 1 of the jail that `bubblewrap` made, and the worker below it.

    None unless they are a chain of three processes, which they are before a submission has run.
    """
    first = usage.children(bubblewrap)
    worker = usage.children(first[0]) if len(first) == 1 else []
    return (first[0], worker[0]) if len(worker) == 1 else None
