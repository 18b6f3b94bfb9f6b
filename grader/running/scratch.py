"""One folder per process of the judge for all it writes: gone when it ends, swept up if it died."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import shutil
import tempfile
from pathlib import Path

_NAME = re.compile(r"grader-(\d{1,10})-(\d{1,20})-\w+")


@functools.cache
def _folder_of(pid: int) -> Path:
    _sweep()
    path = Path(tempfile.mkdtemp(prefix=f"grader-{pid}-{_start_time(pid)}-"))

    def remove() -> None:
        if os.getpid() == pid:  # not in a forked child
            shutil.rmtree(path, ignore_errors=True)

    atexit.register(remove)
    return path


def folder() -> Path:
    """Return this process's folder for temporary files; it is removed at exit."""
    return _folder_of(os.getpid())


def _sweep() -> None:
    """Remove the folders of this user's processes that were killed before they could do it."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob("grader-*-*-*"):
            name = _NAME.fullmatch(path.name)
            with contextlib.suppress(OSError):
                ours = path.lstat().st_uid == os.getuid() and path.is_dir()
                if ours and name and _start_time(int(name[1])) != int(name[2]):
                    shutil.rmtree(path, ignore_errors=True)


def _start_time(pid: int) -> int:
    """Return when `pid` started in clock ticks since boot, 0 when it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(fields.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
