"""Limits the CPU time that reading a submission's text may take, and finds what coding it declares.

Python's parser takes more than linear time for some texts (long dotted names, combining letters,
f-strings), in C, where nothing can end it, and too deep a nesting can crash it. So a process of its
own parses each text first. What Python itself does afterwards ends with a signal.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

# The longest model answer takes a fiftieth of a second to parse, and a tenth to look through.
PARSE_S = 2
LOOK_S = 3.0
# PEP 263: a cookie in the first two lines changes what the bytes mean to Python, not to `examine`.
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
# The last argument of compile() is ast.PyCF_ONLY_AST: nothing is imported that costs time.
_PARSE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1]) + 1))
try:
    compile(sys.stdin.buffer.read().decode(), "submission", "exec", 0x400)
except Exception:
    pass
"""
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT)


class TooCostly(Exception):
    """A text takes longer than any answer does; says what takes how long."""


def try_parser(text: str) -> None:
    """Let another process parse `text`, which may be no Python at all: only its cost is judged.

    Raises:
        TooCostly: the parser took too long, or crashed.
    """
    command = [sys.executable, "-I", "-S", "-c", _PARSE, str(PARSE_S)]
    try:
        ended = subprocess.run(command, input=text.encode(), capture_output=True).returncode
    except OSError:  # no process can be started: no fault of the text's
        return
    if ended == -signal.SIGXCPU:
        raise TooCostly(f"takes Python's parser more than {PARSE_S} s")
    if -ended in _CRASHES:
        raise TooCostly("crashes Python's parser")


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """End what runs inside after some seconds of CPU time, by a signal: in the main thread alone.

    Raises:
        TooCostly: it took too long.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        raise TooCostly(f"takes more than {LOOK_S:g} s to look through")

    before = signal.signal(signal.SIGPROF, end)
    signal.setitimer(signal.ITIMER_PROF, LOOK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def other_coding(data: bytes) -> tuple[int, str] | None:
    """Return the line and the name of a coding that a source declares and that is not UTF-8.

    To Python "utf-8-unix", an editor's word, is UTF-8 too.
    """
    for number, row in enumerate(data.splitlines()[:2], start=1):
        cookie = _COOKIE.match(row)
        coding = cookie[1].lower().replace(b"_", b"-") if cookie else b"utf-8"
        if cookie and coding not in (b"utf-8", b"utf8") and not coding.startswith(b"utf-8-"):
            return number, cookie[1].decode("ascii", "replace")
    return None
