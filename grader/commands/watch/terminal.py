"""The keys and the status line of a terminal; without one there are no keys and no status."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import tty
from types import FrameType
from typing import Any, Self, TextIO

from grader.base.text import clean, fit


class Keys:
    """Single keys from a terminal that is given back as it was, also while the job is stopped."""

    def __init__(self, stream: TextIO | None) -> None:
        self.fd: int | None = None
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is not None and os.isatty(stream.fileno()):
                self.fd = stream.fileno()

    def __enter__(self) -> Self:
        if self.fd is not None:
            with contextlib.suppress(termios.error):
                self._before = termios.tcgetattr(self.fd)
            for number, handler in ((signal.SIGTSTP, self._suspend), (signal.SIGCONT, self._go_on)):
                self._handlers[number] = signal.signal(number, handler)
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._give_back()

    def read(self) -> str:
        """Return the keys that were pressed; "" where there are none, also at the stream's end."""
        if self.fd is None or not self.in_foreground():
            return ""
        try:
            data = os.read(self.fd, 64)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self.fd = None
        return data.decode("ascii", "ignore")

    def in_foreground(self) -> bool:
        """Whether this job may read from its terminal now."""
        try:
            return self.fd is not None and os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return False

    def _begin(self) -> None:
        if self._before is not None and self.fd is not None and self.in_foreground():
            with contextlib.suppress(termios.error):
                tty.setcbreak(self.fd, termios.TCSADRAIN)

    def _give_back(self) -> None:
        if self._before is not None and self.fd is not None and self.in_foreground():
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self._before)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._give_back()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        self._begin()


class Screen:
    """Text line by line, and on a terminal one line below it that says what is going on.

    `looks` has its cells, lines and whether there is colour: `width`, `height`, `color`.
    """

    def __init__(self, stream: TextIO | None, *, status: bool, **looks: int | bool) -> None:
        self._stream = stream
        self.looks = {"width": 80, "height": 40, "color": False} | looks
        self.width = int(self.looks["width"])
        self._shows_status = status
        self._shown = ""

    def say(self, text: str) -> None:
        """Write whole lines, which are clean already."""
        shown = self._shown
        self.status("")
        self._write(text)
        self.status(shown)

    def status(self, text: str) -> None:
        """Show `text` in place of the status before; "" takes it away."""
        text = clean(text)
        if self._shows_status and text != self._shown:
            line = fit(text, self.width - 1).rstrip() if text else ""
            self._write(f"\r\x1b[2K{line}")
            self._shown = text

    def _write(self, text: str) -> None:
        if self._stream is None:
            return
        encoding = self._stream.encoding or "ascii"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # nobody reads any more; the report is still written
            self._stream = None
