"""What a worker prints: the judge stores its tail, and shows what means something to a student.

A worker may write without end, so that little is read at a time, and little is stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TAIL_BYTES = 16 * 1024
_FATAL = "Fatal Python error"  # begins a dump of Python's fault handler
_ABORTED = b"Fatal Python error: Aborted"
_FRAME = re.compile(r'  File "([^"\n]*)", line \d+,? in ')  # of faulthandler, of a traceback
_BELOW_FRAME = ("    ", "  [Previous line repeated")
_COMPILER = "/triton/compiler/"  # a folder that is in a frame while Triton compiles
_WARNING = re.compile(r"([^:\n]+):\d+: \w*Warning: ")  # Python's; a line of source follows
# Around the whole kernel in PTX, which Triton prints when the assembler refuses it.
_DUMP_RULE = "\n" + 64 * "=" + "\n"
_DUMP_END = "\nplease share the reproducer above with Triton project.\n"
# A whole kernel in Triton's IR, which MLIR prints when a pass fails, from its first line or, if the
# tail has lost that, from the tail's.
_MODULE = re.compile(r"(?:^module\b|\A)(?:(?!^module\b).)*?^#-\}\n", re.DOTALL | re.MULTILINE)


class Printed:
    """What the worker of the submission `filename` in `folder` has printed since `forget`."""

    def __init__(self, stream: Any, filename: str, folder: Path) -> None:
        self.stream = stream
        self._filename = filename
        self._folder = folder
        self._tail = b""
        os.set_blocking(stream.fileno(), False)

    def read(self) -> bool:
        """Read what lies in the pipe, a megabyte at most; return whether more may come."""
        for _ in range(16):
            try:
                chunk = os.read(self.stream.fileno(), 65536)
            except BlockingIOError:
                return True
            if not chunk:
                return False
            self._tail = (self._tail + chunk)[-_TAIL_BYTES:]
        return True

    def forget(self) -> None:
        """Forget what has been printed so far."""
        self._tail = b""

    def text(self) -> str:
        """Return what the submission printed."""
        lines = self.shown(self._decoded()).splitlines(keepends=True)
        return "".join(self._own(lines)).strip("\n")

    def shown(self, text: str) -> str:
        """Return `text` without what means nothing to a student: temporary folder, PTX, IR."""
        before, end, after = text.rpartition(_DUMP_END)
        if end:  # if the tail has lost the dump's beginning, all before its end belongs to it
            head, _, dump = before.removesuffix(_DUMP_RULE[:-1]).partition(_DUMP_RULE)
            text = (head + "\n" if dump else "") + after
        text = _MODULE.sub("", text)
        return text.replace(str(self._folder) + os.sep, "")

    def fatal_lines(self) -> list[int]:
        """Return the submission's lines in the last dump of a fatal signal, the innermost first."""
        pattern = rf'File "[^"\n]*{re.escape(self._filename)}"(?:, line |:)(\d{{1,7}})\b'
        _, fatal, dump = self.text().rpartition(_FATAL)
        return [int(n) for n in re.findall(pattern, dump)] if fatal else []

    def in_compiler(self) -> bool:
        """Whether Triton's compiler was at work in the last dump of a fatal signal."""
        return _COMPILER in self._decoded().rpartition(_FATAL)[2]

    def say_stopped(self) -> None:
        """Say of the dump that the judge asked for that the worker was stopped there."""
        self._tail = self._tail.replace(_ABORTED, b"Stopped here:")

    def _decoded(self) -> str:
        return self._tail.decode("utf-8", "replace")

    def _own(self, lines: list[str]) -> Iterator[str]:
        """Yield lines but for frames and warnings of other files, and the source below them."""
        foreign, below = False, _BELOW_FRAME
        for line in lines:
            frame, warning = _FRAME.match(line), _WARNING.match(line)
            place = frame or warning
            if place:
                foreign = place[1] != self._filename
                below = _BELOW_FRAME if frame else ("  ",)
            elif not line.startswith(below):
                foreign = line.startswith("Extension modules:")
            if not foreign:
                yield line
