"""One folder per process of the judge for all it writes: gone when it ends, swept up if it died."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import re
import stat
import tempfile
from pathlib import Path

_NAME = re.compile(r"grader-(\d{1,10})-(\d{1,20})-(?:(\d+)_)?\w+")


@functools.cache
def _folder_of(pid: int) -> Path:
    sweep()
    path = Path(tempfile.mkdtemp(prefix=f"grader-{pid}-{_start_time(pid)}-{_namespace()}_"))

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

    Nothing outside of it is touched: all is done from open folders, and no link is followed.
    Each folder is moved to the top before it is emptied: thousands of nested ones have a path that
    is too long for the system, and are too deep for `shutil.rmtree`.
    """
    with contextlib.suppress(OSError):
        if os.path.islink(path):  # put in the folder's place
            os.unlink(path)
            return
        top = _open_folder(path)
        try:
            _empty(top)
        finally:
            os.close(top)
        os.rmdir(path)


def _empty(top: int) -> None:
    """Remove all that is in the open folder `top`."""
    numbers = itertools.count()
    pending = _remove_files(top)
    while pending:
        name = pending.pop()
        with contextlib.suppress(OSError):
            folder = _open_folder(name, top)
            try:
                for inner in _remove_files(folder):
                    with contextlib.suppress(OSError):
                        os.close(_open_folder(inner, folder))  # unlock it, else it cannot be moved
                        lifted = f".{os.getpid()}-{next(numbers)}"
                        os.rename(inner, lifted, src_dir_fd=folder, dst_dir_fd=top)
                        pending.append(lifted)
            finally:
                os.close(folder)
            os.rmdir(name, dir_fd=top)


def _open_folder(path: Path | str, parent: int | None = None) -> int:
    """Unlock and open a folder that is no link, below an open one if given."""
    handle = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
        return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY)
    finally:
        os.close(handle)


def _remove_files(folder: int) -> list[str]:
    """Remove all but the folders in the open folder; return their names."""
    folders = []
    for name in os.listdir(folder):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                folders.append(name)
            else:
                os.unlink(name, dir_fd=folder)
    return folders


def sweep() -> None:
    """Remove the folders of this user's processes that were killed before they could do it.

    Folders of another PID namespace, a container's, stay: its process ids mean nothing here.
    """
    with contextlib.suppress(OSError):
        for path in Path(tempfile.gettempdir()).glob("grader-*-*-*"):
            name = _NAME.fullmatch(path.name)
            with contextlib.suppress(OSError):
                ours = path.lstat().st_uid == os.getuid() and path.is_dir()
                ours = ours and name is not None and name[3] in (None, _namespace())
                if ours and _start_time(int(name[1])) != int(name[2]):
                    remove_tree(path)


def _namespace() -> str:
    """Return the number of this process's PID namespace, "0" where the system has none."""
    with contextlib.suppress(OSError):
        return str(os.stat("/proc/self/ns/pid").st_ino)
    return "0"


def _start_time(pid: int) -> int:
    """Return when `pid` started in clock ticks since boot, 0 when it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        return int(fields.rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return 0
