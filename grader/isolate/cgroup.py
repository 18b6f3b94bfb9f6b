"""A limit of memory that the kernel keeps: a control group (version 2) for each jail.

Groups can be made below one whose folder the judge may write: in a container that has its own, in
a service or scope of systemd's with Delegate=yes. A group that limits others may hold no process,
so the judge first moves into one below, with what was started with it. Source: "Control Group v2"
of Linux's documentation.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import time
from collections.abc import Iterable
from pathlib import Path

from grader.isolate import usage

MOUNTED = Path("/sys/fs/cgroup")
OWN = "judge-of-jails"  # the group into which the judge moves
_OF_A_GROUP = ("cgroup.procs", "cgroup.subtree_control")
_DELEGATED = ("user.delegate", "trusted.delegate")  # by which systemd marks such a group
_GONE_S = 2.0
_numbers = itertools.count()


class NoGroup(Exception):
    """No group can be made here; says why."""


class Group:
    """The group of one jail; memory that its processes took before they joined does not count."""

    def __init__(self, pids: Iterable[int], memory_bytes: int) -> None:
        """Move `pids` into a new group, with all their threads.

        Raises:
            NoGroup: none can be made.
        """
        self._folder = _parent() / f"jail-{os.getpid()}-{next(_numbers)}"
        try:
            self._folder.mkdir()
            _write(self._folder / "memory.max", memory_bytes)
            with contextlib.suppress(OSError):  # no such file where nothing is swapped
                _write(self._folder / "memory.swap.max", 0)
            with contextlib.suppress(OSError):  # Linux 4.19
                _write(self._folder / "memory.oom.group", 1)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    _write(self._folder / "cgroup.procs", pid)
        except OSError as error:
            self.close()
            raise NoGroup(_reason(error)) from None

    def is_over(self) -> bool:
        """Whether the kernel ended a process of the group for want of memory."""
        with contextlib.suppress(OSError, ValueError):
            rows = (self._folder / "memory.events").read_text(encoding="ascii").split()
            return int(rows[rows.index("oom_kill") + 1]) > 0
        return False

    def close(self) -> None:
        """End what is in the group, and remove it."""
        with contextlib.suppress(OSError):  # Linux 5.14; the jail's first process ends all, too
            _write(self._folder / "cgroup.kill", 1)
        deadline = time.monotonic() + _GONE_S
        while self._folder.exists() and time.monotonic() < deadline:
            try:
                self._folder.rmdir()
            except OSError:  # it has processes, which are about to end
                time.sleep(0.01)


def limits() -> str | None:
    """Return why no group limits the memory of a jail; None where one does."""
    try:
        _parent()
    except NoGroup as reason:
        return str(reason)
    return None


def _parent() -> Path:
    found = _found(MOUNTED)
    if isinstance(found, str):
        raise NoGroup(found)
    return found


@functools.cache
def _found(mounted: Path) -> Path | str:
    """Return the folder in which groups can be made, or why there is none."""
    lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    path = next((line[3:] for line in lines if line.startswith("0::")), None)
    if path is None or not (mounted / "cgroup.controllers").exists():
        return "this system has no control groups of version 2"
    # In a container the folder may be mounted without what is above it.
    folder = next(p for p in (mounted / path.lstrip("/"), mounted) if p.is_dir())
    parent = folder.parent if folder.name == OWN else folder
    try:
        if "memory" not in (parent / "cgroup.controllers").read_text("ascii").split():
            return "the control group of this process cannot limit memory"
        written = (parent, *map(parent.joinpath, _OF_A_GROUP))
        if not (_is_given(parent, mounted) and all(os.access(p, os.W_OK) for p in written)):
            return "the control group of this process is not the judge's to divide"
        if folder != parent or not (pids := _pids(parent)):
            return _enabled(parent)
        strangers = pids - _ours(pids)
        if strangers:
            return f"{len(strangers)} processes that are not the judge's are in its control group"
        (parent / OWN).mkdir(exist_ok=True)
        return _enabled(parent, pids)
    except OSError as error:
        return _reason(error)


def _is_given(group: Path, mounted: Path) -> bool:
    """Whether a group is a container's own, or systemd has delegated it to its processes."""
    found = []
    for name in _DELEGATED:
        with contextlib.suppress(OSError):
            found.append(os.getxattr(group, name))
    return group == mounted or b"1" in found


def _enabled(parent: Path, pids: Iterable[int] = ()) -> Path:
    """Let the groups below `parent` limit memory, after moving `pids` into one; return `parent`."""
    moved = []
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                _write(parent / OWN / "cgroup.procs", pid)
                moved.append(pid)
        _write(parent / "cgroup.subtree_control", "+memory")
    except OSError:
        for pid in moved:
            with contextlib.suppress(OSError):
                _write(parent / "cgroup.procs", pid)
        with contextlib.suppress(OSError):
            (parent / OWN).rmdir()
        raise
    return parent


def _pids(group: Path) -> set[int]:
    return set(map(int, (group / "cgroup.procs").read_text("ascii").split()))


def _ours(pids: set[int]) -> set[int]:
    """Return those that the judge started, or that are in its session."""
    found = {os.getpid(), *usage.descendants(os.getpid())} & pids
    for pid in pids - {0}:  # 0 stands for a process outside of this container
        with contextlib.suppress(OSError):
            if os.getsid(pid) == os.getsid(0):
                found.add(pid)
    return found


def _write(path: Path, value: object) -> None:
    path.write_text(str(value), encoding="ascii")


def _reason(error: OSError) -> str:
    return f"no control group can be made: {error.strerror}"
