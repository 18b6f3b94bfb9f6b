"""Runs a command that ends with its parent: python leash.py PARENT SIGNAL COMMAND...

Children of a killed process would live on. Linux sends SIGNAL to the command when the thread that
started it ends, even if that was killed. The command leads a session of its own, so that no
terminal signals it. The file is run by its path and imports nothing of the judge.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def leash(number: int) -> list[str]:
    """Return the words to put before a command that gets signal `number` when this process ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(int(number))]


if __name__ == "__main__":
    parent, number, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number))
    if os.getppid() != int(parent):  # the parent ended before prctl
        sys.exit(1)
    with contextlib.suppress(PermissionError):  # it leads a session already
        os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops a pending one
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    os.execvp(command[0], command)
