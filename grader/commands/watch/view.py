"""What the watch says, as text for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from grader.base.text import clean, points, text_console, wrap
from grader.commands.watch.changes import Changes
from grader.report.message import NAME_LIMIT, message_lines
from grader.report.score import fraction, losses, next_lines, told_causes
from grader.spec.grade_record import ProblemResult, Verdict

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
    """Return what the keys do."""
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
    """Return what a run came to, in at most `height` lines (12 at least).

    First what changed since the run before; then the first message, as the report tells it.
    """
    lines = wrap(_head(now, changed, first_s, end_s), width, "", "    ")
    lines += _names("now passes", changed.passes, width)
    lines += _names("now fails", changed.fails, width)
    lines += _names("still fails", changed.still, width)
    for name, reason in losses(now).items():
        lines += wrap(reason, width, f"{name}: ")
    closing = next_lines([now], width)
    found, _ = told_causes(now)
    room = max(height, _LEAST_LINES) - len(lines) - len(closing)
    told = message_lines(now.id, found[0], width) if found else []
    if len(told) > room:
        told = [*told[: max(room - 1, 1)], "  [...] make grade tells all"]
    return _colored([*lines, *told, *closing], width, color=color)


def _head(now: ProblemResult, changed: Changes, first_s: float | None, end_s: float) -> str:
    before = changed.before
    gain = ""
    if before is not None and before.earned != now.points.earned:
        gain = f"{points(before.earned)} -> "
    first = f", first verdict after {first_s:.1f} s" if first_s is not None else ""
    verdict = str(now.verdict).replace("-", " ")
    if now.verdict is Verdict.PASS:
        verdict = "pass"
    score = fraction(now.points)
    return f"{now.id} {verdict}: points {gain}{score}; {end_s:.1f} s{first}"


def _names(label: str, ids: Sequence[str], width: int) -> list[str]:
    names = ", ".join(clean(id, NAME_LIMIT) for id in ids)
    return wrap(names, width, f"{label:<11}  ") if ids else []


def _colored(lines: Sequence[str], width: int, *, color: bool) -> str:
    if not color:
        return "".join(f"{line.rstrip()}\n" for line in lines)
    console = text_console(width, color=True)
    for line in lines:
        style = next((s for lead, s in _LEADS.items() if line.startswith(lead)), None)
        console.print(line.rstrip(), style=style, soft_wrap=True)
    return console.file.getvalue()
