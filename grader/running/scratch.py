"""One folder per process of the judge for all it writes: gone when it ends, swept up if it died."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import re
import tempfile
from pathlib import Path

_NAME = re.compile(r"grader-(\d{1,10})-(\d{1,20})-\w+")


@functools.cache
def _folder_of(pid: int) -> Path:
    sweep()
    path = Path(tempfile.mkdtemp(prefix=f"grader-{pid}-{_start_time(pid)}-"))

    def remove() -> None:
        if os.getpid() == pid:  # not in a forked child
            remove_tree(path)

    atexit.register(remove)
    return path


def folder() -> Path:
    """Return this process's folder for temporary files; it is removed at exit."""
    return _folder_of(os.getpid())


def remove_tree(path: Path) -> None:
    """Remove a folder whatever a submission has put there; what cannot be removed stays.

    Folders are lifted to the top before they are emptied. Thousands of them one inside the other
    have a path that is too long for the system, and are too deep for `shutil.rmtree`.
    """
    numbers = itertools.count()
    pending = [path]
    while pending:
        folder = pending.pop()
        with contextlib.suppress(OSError):
            os.chmod(folder, 0o700)
            for entry in list(os.scandir(folder)):
                with contextlib.suppress(OSError):
                    if not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                    elif folder == path:
                        pending.append(Path(entry.path))
                    else:
                        os.chmod(entry.path, 0o700)  # a locked one cannot be moved
                        lifted = path / f".{os.getpid()}-{next(numbers)}"
                        os.rename(entry.path, lifted)
                        pending.append(lifted)
        if folder != path:
            with contextlib.suppress(OSError):
                os.rmdir(folder)
    with contextlib.suppress(OSError):
        os.rmdir(path)


def sweep() -> None:
    """Remove the folders of this user's processes that were killed before they could do it."""
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob("grader-*-*-*"):
            name = _NAME.fullmatch(path.name)
            with contextlib.suppress(OSError):
                ours = path.lstat().st_uid == os.getuid() and path.is_dir()
                if ours and name and _start_time(int(name[1])) != int(name[2]):
                    remove_tree(path)


def _start_time(pid: int) -> int:
    """Return when `pid` started in clock ticks since boot, 0 when it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(fields.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
