"""Enters the jail: `python -I -S jail_entry.py bwrap ...` becomes bubblewrap, with a new keyring.

The kernel's session keyring belongs to no namespace: with the judge's, a submission would leave
text for the next one and for the host. The judge keeps its own, which may hold the tickets of its
network file systems.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys

KEYCTL = {"x86_64": 250, "aarch64": 219}.get(os.uname().machine)  # the number of the system call
_JOIN_SESSION_KEYRING = 1
_NO_KEYRINGS = (errno.ENOSYS, errno.EPERM)  # of the kernel, or refused by a container to all in it


def _main() -> None:
    # Where memory runs out, the kernel ends the worker first.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    if KEYCTL is None:
        sys.exit(f"no session keyring can be made on a machine of type {os.uname().machine}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(KEYCTL, _JOIN_SESSION_KEYRING, None) < 0:
        error = ctypes.get_errno()
        if error not in _NO_KEYRINGS:
            sys.exit(f"no session keyring can be made: {os.strerror(error)}")
    os.execvp(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    _main()
