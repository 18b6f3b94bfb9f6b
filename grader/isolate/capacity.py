"""What this machine lets the judge use: cores and memory, within the limits of its container.

A container sees all cores and all memory of its host; how much of them it may use stands in the
files of its control group. Source: "Control Group v2" and "cgroup-v1/memory" of Linux's
documentation, and proc_pid_cgroup(5).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_UNKNOWN_BYTES = 2**33
_CFS = ("quota", "period")
# Files of limit and use, and which rows of memory.stat are cache: version 2, then version 1.
_MEMORY_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


def cores(root: Path = Path("/")) -> float:
    """Return how many cores may be used at a time; 0.5 for half of one."""
    found = [float(len(os.sched_getaffinity(0)))]
    for group in _groups(root, "cpu"):
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            if (group / "cpu.max").exists():
                quota, period = (group / "cpu.max").read_text(encoding="ascii").split()
            else:
                quota, period = (str(_number(group / f"cpu.cfs_{what}_us")) for what in _CFS)
            if quota != "max" and int(quota) > 0:
                found.append(int(quota) / int(period))
    return min(found)


def free_bytes(root: Path = Path("/")) -> int:
    """Return how much more memory may be used before the kernel ends a process.

    The cache of files counts as free: the kernel gives it back when memory is needed.
    """
    found = [_of_machine(root)]
    for group in _groups(root, "memory"):
        for limit, used, cache in _MEMORY_FILES:
            with contextlib.suppress(OSError, ValueError):
                held = _number(group / used) - _cached(group / "memory.stat", cache)
                found.append(max(_number(group / limit) - held, 0))
    return min(found)


def _number(path: Path) -> int:
    return int(path.read_text(encoding="ascii"))


def _cached(path: Path, names: tuple[str, ...]) -> int:
    rows = (line.split() for line in path.read_text(encoding="ascii").splitlines())
    return sum(int(row[1]) for row in rows if len(row) == 2 and row[0] in names)


def _of_machine(root: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in (root / "proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return _UNKNOWN_BYTES


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it.

    In a container the folder may be mounted without what is above it: then the path that the kernel
    names is not there, and the limits stand at the top.
    """
    mounted = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = [*line.split(":", 2), "", ""][:3]
        if names and controller not in names.split(","):
            continue
        tops = [mounted / names, mounted / controller] if names else [mounted, mounted / "unified"]
        for top in dict.fromkeys(tops):
            folder = top / path.lstrip("/")
            yield from (p for p in (folder, *folder.parents) if p.is_relative_to(top))
