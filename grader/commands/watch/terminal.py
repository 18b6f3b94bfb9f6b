"""The watch's terminal: single keys, a status line, and the changes since the last run.

Without a terminal there are neither keys nor a status line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import termios
import tty
from types import FrameType
from typing import Any, Self, TextIO

from grader.base.text import clean, fit, points, styled, wrap
from grader.report.message import NAME_LIMIT, NOT_WRONG, message_lines
from grader.report.score import fraction, losses, next_lines, shown_causes
from grader.spec.grade_record import Points, ProblemResult, Verdict


class Keys:
    """Reads single keys from a terminal; restores its mode at the end, and while suspended."""

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
            self._set(single=True)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._set(single=False)

    def read(self) -> str:
        """Return the keys that were pressed; "" if there are none, and at the end of the stream."""
        if not self.in_foreground():
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

    def _set(self, *, single: bool) -> None:
        """Put the terminal into single-key mode, or back into its former mode."""
        if self._before is None or not self.in_foreground():
            return
        with contextlib.suppress(termios.error):
            if single:
                tty.setcbreak(self.fd, termios.TCSADRAIN)
            else:
                termios.tcsetattr(self.fd, termios.TCSADRAIN, self._before)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        self._set(single=False)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._suspend)

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        self._set(single=True)


class Screen:
    """Writes text line by line, and on a terminal a status line below it.

    `looks` are `width` in cells, `height` in lines, and `color`, whether to use colour.
    """

    def __init__(self, stream: TextIO | None, *, status: bool, **looks: int | bool) -> None:
        self._stream = stream
        self.looks = {"width": 80, "height": 40, "color": False} | looks
        self.width = int(self.looks["width"])
        self._shows_status = status
        self._shown = ""

    def say(self, text: str) -> None:
        """Write `text`: whole lines, cleaned by the caller."""
        shown = self._shown
        self.status("")
        self._write(text)
        self.status(shown)

    def status(self, text: str) -> None:
        """Replace the status line by `text`; "" removes it."""
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
        except (OSError, ValueError):  # the reader is gone; the report is still written
            self._stream = None


KEYS = {
    "a, Enter": "run all again",
    "h": "the next hint",
    "o": "open the report",
    "?": "these keys",
    "q": "quit",
}
_LEAST_LINES = 12
_LEADS = {"now passes": "green", "now fails": "red", "error[": "bold red", "help: ": "green"}


def keys(width: int = 80) -> str:
    """Return the list of keys and their effects."""
    return "\n".join(wrap(", ".join(f"{k}: {v}" for k, v in KEYS.items()), width, "keys  ")) + "\n"


def note(text: str, width: int = 80) -> str:
    """Return a line about the watch itself."""
    return "\n".join(wrap(clean(text, 500), width, "watch: ")) + "\n"


def result(
    now: ProblemResult,
    changed: Changes,
    *,
    first_s: float | None,
    end_s: float,
    width: int = 80,
    height: int = 40,
    color: bool = False,
) -> str:
    """Return the result of a run, in at most `height` lines (12 at least).

    The changes since the run before come first, then the first message of the report.
    """
    lines = wrap(_head(now, changed, first_s, end_s), width, "", "    ")
    listed = changed.passes, changed.fails, changed.still
    for label, ids in zip(("now passes", "now fails", "still fails"), listed, strict=True):
        names = ", ".join(clean(id, NAME_LIMIT) for id in ids)
        lines += wrap(names, width, f"{label:<11}  ") if ids else []
    for name, reason in losses(now).items():
        lines += wrap(reason, width, f"{name}: ")
    closing = next_lines([now], width)
    found, _ = shown_causes(now)
    room = max(height, _LEAST_LINES) - len(lines) - len(closing)
    message_rows = message_lines(now.id, found[0], width) if found else []
    if len(message_rows) > room:
        message_rows = [*message_rows[: max(room - 1, 1)], "  [...] make grade shows all"]
    rows = ((line, _style_of(line)) for line in (*lines, *message_rows, *closing))
    return styled(rows, width, color=color)


def _head(now: ProblemResult, changed: Changes, first_s: float | None, end_s: float) -> str:
    before, gain = changed.before, ""
    if before is not None and before.earned != now.points.earned:
        gain = f"{points(before.earned)} -> "
    first = f", first verdict after {first_s:.1f} s" if first_s is not None else ""
    verdict = str(now.verdict).replace("-", " ")
    return f"{now.id} {verdict}: points {gain}{fraction(now.points)}; {end_s:.1f} s{first}"


def _style_of(line: str) -> str:
    return next((style for lead, style in _LEADS.items() if line.startswith(lead)), "")


# A check that times out would use up the time allowed for such calls before the others run.
_NOT_FIRST = (*NOT_WRONG, Verdict.TIMEOUT)


@dataclasses.dataclass(frozen=True)
class Changes:
    """Ids of checks that newly pass, newly fail and still fail; and the points before."""

    passes: tuple[str, ...]
    fails: tuple[str, ...]
    still: tuple[str, ...]
    before: Points | None


def changes(before: ProblemResult | None, now: ProblemResult) -> Changes:
    """Compare two runs; `before` is None where there is nothing to compare with."""
    earlier = {} if before is None else {c.id: c.verdict for c in before.checks}
    broken = [c.id for c in now.checks if c.verdict not in NOT_WRONG]
    passing = [c.id for c in now.checks if c.verdict is Verdict.PASS]
    passes = [id for id in passing if earlier.get(id, Verdict.PASS) is not Verdict.PASS]
    was_broken = {id for id, verdict in earlier.items() if verdict not in NOT_WRONG}
    return Changes(
        tuple(passes),
        tuple(id for id in broken if id not in was_broken),
        tuple(id for id in broken if id in was_broken),
        None if before is None else before.points,
    )


def first_checks(result: ProblemResult | None, dependent: frozenset[str]) -> tuple[str, ...]:
    """Return the checks to run first in the next run: those that failed in `result`.

    Excepted are `dependent` ones, which are judged by the results of earlier calls (compilation,
    refused arguments), and those that timed out.
    """
    if result is None or result.message is not None:
        return ()
    failed = [c.id for c in result.checks if c.verdict not in _NOT_FIRST]
    return tuple(id for id in failed if id not in dependent)
