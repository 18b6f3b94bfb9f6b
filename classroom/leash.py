"""Runs a command that ends with its parent: python leash.py PARENT SIGNAL COMMAND...

What was started by a process that is killed would go on. Linux sends SIGNAL to the command when the
thread that started it ends, also when that was killed. No terminal signals it: the command leads a
session of its own. The file is run by its path and imports nothing of the judge.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def leash(number: int) -> list[str]:
    """Return what stands before a command that gets signal `number` when this process ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(number))]


if __name__ == "__main__":
    parent, number, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):  # it ended before that call
        sys.exit(1)
    with contextlib.suppress(PermissionError):  # it leads one already
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops the one that waits
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.execvp(command[0], command)
