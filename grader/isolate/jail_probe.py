"""What a worker could do: runs in the jail, tries it, and prints what it found, as JSON.

`python -I -S jail_probe.py JSON`, which has `hidden` (paths that must not be there), `read_only`
(folders and files that must not be written to), `judge` (a process that must not be seen),
`namespaces` (kinds of them), `limited` (folders that must not hold `spare_bytes`), `refused` (the
numbers of system calls, by name) and `newest` (the last number that is known). It uses the standard
library alone.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import sys
import time

_NEW_NAMESPACES = {
    **{"cgroup": 0x02000000, "ipc": 0x08000000, "mnt": 0x00020000, "net": 0x40000000},
    **{"pid": 0x20000000, "user": 0x10000000, "uts": 0x04000000},
}
_NO_PROCESS = 0x800  # CLONE_SIGHAND without CLONE_VM, with which clone makes no process
_SET_DUMPABLE = 4
_NEWER = 64  # numbers above the newest that are tried
_FAMILIES = 64  # of sockets, more than there are
_RAW = 3


def _main() -> None:
    asked = json.loads(sys.argv[1])
    print(
        json.dumps(
            {
                "seen": [path for path in asked["hidden"] if os.path.lexists(path)],
                "written": [path for path in asked["read_only"] if _can_write(path)],
                "processes": sum(name.isdigit() for name in os.listdir("/proc")),
                "signals": _can_signal(asked["judge"]),
                "networks": _networks(),
                "namespaces": {n: os.readlink(f"/proc/self/ns/{n}") for n in asked["namespaces"]},
                "reaches": _can_connect(),
                "users": ctypes.CDLL(None).unshare(_NEW_NAMESPACES["user"]) == 0,
                "capabilities": _status("CapEff"),
                "may_gain": _status("NoNewPrivs") != "1",
                "uid": os.getuid(),
                "allowed": [*_allowed(asked["refused"], asked["newest"]), *_families()],
                "unlimited": [
                    path for path in asked["limited"] if _can_hold(path, asked["spare_bytes"])
                ],
                "devices": sorted(
                    entry.name
                    for entry in os.scandir("/dev")
                    if not entry.is_dir(follow_symlinks=False) and not entry.is_symlink()
                ),
            }
        ),
        flush=True,
    )
    _leave_a_daemon()


def _can_write(path: str) -> bool:
    try:
        if not os.path.isdir(path):
            os.close(os.open(path, os.O_WRONLY))
            return True
        os.close(os.open(os.path.join(path, "probe"), os.O_WRONLY | os.O_CREAT))
    except OSError:
        return False
    os.unlink(os.path.join(path, "probe"))
    return True


def _allowed(refused: dict[str, int], newest: int) -> list[str]:
    """Return what the kernel does not refuse, called with arguments that have no effect."""
    libc = ctypes.CDLL(None, use_errno=True)
    nothing = [ctypes.c_long(-1)] * 6

    def is_refused(number: int, *arguments: int) -> bool:
        given = [*map(ctypes.c_long, arguments), *nothing][:6]
        return libc.syscall(number, *given) == -1 and ctypes.get_errno() == errno.ENOSYS

    found = [name for name, number in refused.items() if not is_refused(number)]
    newer = range(newest + 1, newest + 1 + _NEWER)
    found += [f"system call {number}" for number in newer if not is_refused(number)]
    libc.personality.argtypes = [ctypes.c_ulong]
    if libc.personality(0) != -1:
        found.append("personality")
    if libc.prctl(_SET_DUMPABLE, 1, 0, 0, 0) == 0:
        found.append("prctl, to be not dumpable")
    clone = {"x86_64": 56}.get(os.uname().machine, 220)
    for name, flag in _NEW_NAMESPACES.items():
        if not is_refused(clone, flag | _NO_PROCESS, 0, 0, 0, 0):
            found.append(f"clone of a {name} namespace")
    return found


def _families() -> list[str]:
    """Return the families, except local sockets, of which a socket can be made."""
    libc, found = ctypes.CDLL(None, use_errno=True), []
    for family in set(range(_FAMILIES)) - {socket.AF_UNIX}:
        fd = libc.socket(family, _RAW, 0)
        if fd >= 0 or ctypes.get_errno() != errno.EAFNOSUPPORT:
            found.append(f"socket of family {family}")
        if fd >= 0:
            os.close(fd)
    return found


def _can_signal(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def _networks() -> list[str]:
    with open("/proc/self/net/dev") as file:
        names = [line.partition(":")[0].strip() for line in file if ":" in line]
    return sorted(set(names) - {"lo"})


def _can_connect() -> bool:
    """Whether a datagram to an address of nobody's (RFC 5737) finds a way out."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.connect(("192.0.2.1", 9))
    except OSError:
        return False
    return True


def _status(name: str) -> str:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name + ":"):
                return line.partition(":")[2].strip()
    return ""


def _can_hold(folder: str, size: int) -> bool:
    path = os.path.join(folder, "large")
    try:
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        return False
    finally:
        if os.path.exists(path):
            os.unlink(path)
    return True


def _leave_a_daemon() -> None:
    """Leave a process behind that has left its session, its parent and every signal."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.closerange(0, 1024)
            time.sleep(600)
        os._exit(0)
    os.wait()


if __name__ == "__main__":
    _main()
