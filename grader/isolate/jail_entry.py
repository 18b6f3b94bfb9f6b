"""Enters the jail: `python -I -S jail_entry.py FILTER USER bwrap ...` becomes bubblewrap.

FILTER is what the kernel is to refuse (system_calls.py), in hexadecimal digits. With a USER, a
number, root becomes that user first: whoever broke out of the jail's namespaces would be root
otherwise. What bubblewrap is to show may lie in folders that only root may enter, such as /root.
For bubblewrap alone folders replace these that hold nothing but the way to what it shows.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import sys

_BINDS = ("--bind", "--ro-bind", "--ro-bind-try", "--dev-bind")
_NEW_MOUNTS, _BIND, _RECURSIVE, _PRIVATE = 0x00020000, 0x1000, 0x4000, 0x40000
_MAY_ENTER = 0o001
_MOST_OPEN = 1024  # open files of a process, the default of most systems
OPEN_FOLDERS = "run the judge as an ordinary user, or let all enter the folders above (chmod o+x)"


def _main() -> None:
    program, user, *command = sys.argv[1:]
    # Where memory runs out, the kernel ends the worker first.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_OPEN, _MOST_OPEN))
    rules = os.memfd_create("filter", 0)
    os.write(rules, bytes.fromhex(program))
    os.lseek(rules, 0, os.SEEK_SET)
    if user:
        _become(int(user), _shown(command))
    os.execvp(command[0], [command[0], "--seccomp", str(rules), *command[1:]])


def _shown(command: list[str]) -> list[str]:
    """Return the paths that bubblewrap is to show, and that of its program."""
    options = itertools.pairwise(command[: command.index("--")])
    paths = [command[0], *(path for option, path in options if option in _BINDS)]
    return [path for path in dict.fromkeys(paths) if os.path.exists(path)]


def _become(user: int, paths: list[str]) -> None:
    closed = {folder for path in paths for folder in _folders(path) if not _is_open(folder)}
    if closed:
        _make_ways(sorted(closed), paths)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    for path in paths:
        try:
            os.stat(path)
        except OSError as error:
            sys.exit(
                f"{path}: user {user}, which root becomes in a jail, cannot reach it:"
                f" {error.strerror}; {OPEN_FOLDERS}"
            )


def _folders(path: str) -> list[str]:
    parts = path.split("/")[1:-1]
    return ["/".join(["", *parts[: n + 1]]) for n in range(len(parts))]


def _is_open(folder: str) -> bool:
    return bool(os.stat(folder).st_mode & _MAY_ENTER)


def _make_ways(closed: list[str], paths: list[str]) -> None:
    """Mount over each closed folder, for this process alone, a folder that all may enter."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_MOUNTS) != 0:
        return  # root of a container; `_become` reports what cannot be reached
    libc.mount(b"none", b"/", None, _RECURSIVE | _PRIVATE, None)
    for folder in closed:
        if _is_open(folder):  # it lies in a folder that was mounted over before
            continue
        below = [path for path in paths if path.startswith(folder + "/")]
        held = {path: os.open(path, os.O_PATH) for path in below}
        libc.mount(b"none", os.fsencode(folder), b"tmpfs", 0, b"size=1m,mode=755")
        for path, fd in held.items():
            is_folder = os.path.isdir(f"/proc/self/fd/{fd}")
            os.makedirs(path if is_folder else os.path.dirname(path), 0o755, exist_ok=True)
            if not is_folder:
                os.close(os.open(path, os.O_CREAT))
            source = os.fsencode(f"/proc/self/fd/{fd}")
            libc.mount(source, os.fsencode(path), None, _BIND | _RECURSIVE, None)
            os.close(fd)


if __name__ == "__main__":
    _main()
