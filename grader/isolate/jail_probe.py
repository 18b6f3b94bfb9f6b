"""What a worker could do: runs in the jail, tries it, and prints what it found, as JSON.

`python -I -S jail_probe.py JSON`, which has `hidden` (paths that must not be there), `read_only`
(folders and files that must not be written to), `judge` (a process that must not be seen),
`namespaces` (kinds of them), `limited` (folders that must not hold `spare_bytes`), `keyctl` (the
number of that system call). It uses the standard library alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import time

_CLONE_NEWUSER = 0x10000000
_SESSION_KEYRING = -3


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
                "users": ctypes.CDLL(None).unshare(_CLONE_NEWUSER) == 0,
                "capabilities": _status("CapEff"),
                "may_gain": _status("NoNewPrivs") != "1",
                "uid": os.getuid(),
                "keyring": _keyring(asked["keyctl"]),
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


def _keyring(keyctl: int) -> int:
    """Return the number of the session keyring, less than zero where there are no keyrings."""
    return ctypes.CDLL(None).syscall(keyctl, 0, _SESSION_KEYRING, 0)


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
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
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
