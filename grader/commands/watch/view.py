"""What a run of one problem changed, and what the watch says of it on a terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grader.base.text import clean, points, styled, wrap
from grader.report.message import NAME_LIMIT, message_lines
from grader.report.score import fraction, losses, next_lines, told_causes
from grader.spec.grade_record import Points, ProblemResult, Verdict

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
    rows = ((line, _style_of(line)) for line in (*lines, *told, *closing))
    return styled(rows, width, color=color)


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


def _style_of(line: str) -> str:
    return next((style for lead, style in _LEADS.items() if line.startswith(lead)), "")


_NOT_BROKEN = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED)
# One that does not end would use up, before the others, the time that such calls may take in all.
_NOT_FIRST = (*_NOT_BROKEN, Verdict.TIMEOUT)


@dataclasses.dataclass(frozen=True)
class Changes:
    """Ids of checks that pass now, fail now, and failed before too; the points before."""

    passes: tuple[str, ...]
    fails: tuple[str, ...]
    still: tuple[str, ...]
    before: Points | None


def changes(before: ProblemResult | None, now: ProblemResult) -> Changes:
    """Compare two runs; a file that could not be run has no checks to compare."""
    earlier = {} if before is None else {c.id: c.verdict for c in before.checks}
    broken = [c.id for c in now.checks if c.verdict not in _NOT_BROKEN]
    passes = [
        c.id
        for c in now.checks
        if c.verdict is Verdict.PASS and earlier.get(c.id, Verdict.PASS) is not Verdict.PASS
    ]
    was_broken = {id for id, verdict in earlier.items() if verdict not in _NOT_BROKEN}
    return Changes(
        tuple(passes),
        tuple(id for id in broken if id not in was_broken),
        tuple(id for id in broken if id in was_broken),
        None if before is None else before.points,
    )


def first_checks(result: ProblemResult | None, dependent: frozenset[str]) -> tuple[str, ...]:
    """Return the checks that go first in the next run: those that failed in `result`.

    Not so the `dependent` ones, which are judged by what came of earlier calls (what compiles, what
    refuses arguments), and not those that did not end.
    """
    if result is None or result.message is not None:
        return ()
    failed = [c.id for c in result.checks if c.verdict not in _NOT_FIRST]
    return tuple(id for id in failed if id not in dependent)
