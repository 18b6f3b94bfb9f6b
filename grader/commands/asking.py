"""Asks a person questions, on standard input and output, be they a terminal or not."""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Callable
from typing import TextIO

from rich.console import Console

from grader.base import stdout
from grader.base.text import clean, wrap
from grader.commands.options import UsageError
from grader.judge import scoring

INDENT = "  "
COLORS = {"right": "32", "wrong": "31", "strong": "1"}


class Terminal:
    """Writes questions to one stream and reads answers from another."""

    def __init__(
        self, stdin: TextIO | None, stdout: TextIO, width: int = 80, *, color: bool = False
    ) -> None:
        self._stdin = stdin
        self._stdout = stdout
        self.width = width
        self._color = color
        self._shows_what_is_typed = stdin is not None and stdin.isatty()

    def write(self, text: str) -> None:
        """Write text as it is.

        Raises:
            BrokenPipeError: the reader is gone, or the text cannot be written.
        """
        try:
            self._stdout.write(text)
            self._stdout.flush()
        except OSError as error:  # a full disk, a terminal that is gone
            raise BrokenPipeError(*error.args) from None

    def read(self, prompt: str) -> str:
        """Show a prompt and return the next line, which is echoed unless a terminal did so.

        Raises:
            EOFError: the input has ended.
        """
        self.write(prompt)
        try:
            line = self._stdin.readline() if self._stdin else ""
        except OSError:  # a terminal that is gone
            line = ""
        if not line:
            raise EOFError
        if not self._shows_what_is_typed:
            self.write(clean(line, 60) + "\n")
        return line

    def ask(self, prompt: str) -> str:
        """Return the line that is typed; q raises EOFError, as the end of the input does."""
        typed = self.read(prompt).strip()
        if typed.lower() in ("q", "quit"):
            raise EOFError
        return typed

    def notes(self, notices: list[str]) -> None:
        """Write the notices and clear the list, so that each appears once."""
        for notice in notices:
            self.text(clean(notice, 1000), first="note: ", rest="      ")
        notices.clear()

    def line(self, text: str = "", color: str | None = None) -> None:
        """Write one line as it is."""
        if color and self._color:
            text = f"\x1b[{COLORS[color]}m{text}\x1b[0m"
        self.write(text + "\n")

    def text(self, text: str, first: str = "", rest: str | None = None) -> None:
        """Write paragraphs, wrapped; those indented by four blanks stay as they are."""
        for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip("\n"))):
            if number:
                self.line()
            if paragraph.startswith(" " * 4):
                for row in paragraph.splitlines():
                    self.line((rest or first) + row)
                continue
            for row in wrap(" ".join(paragraph.split()), self.width, first, rest):
                self.line(row)
            first = first if rest is None else rest


def on_terminal(command: str, ask: Callable[[Terminal], bool]) -> int:
    """Run `ask` on the standard streams; return 0, or 130 where it returned False (Ctrl-C).

    Raises:
        UsageError: there is no standard output.
    """
    if sys.stdout is None:
        raise UsageError(
            f"{command}: got no standard output, expected a terminal, a pipe or a file"
        )
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    width = max(min(Console().width, 80), 40) if sys.stdout.isatty() else 80
    whole = True
    try:
        whole = ask(Terminal(sys.stdin, sys.stdout, width, color=stdout.wants_color()))
    except BrokenPipeError:
        stdout.silence()
    return scoring.EXIT_FULL_MARKS if whole else scoring.EXIT_INTERRUPTED
