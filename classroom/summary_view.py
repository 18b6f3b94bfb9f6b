"""The summary of a class on a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from classroom.summary import Summary
from grader.base.text import clean, plural, wrap

_LISTED = 20
_LABEL = 14


def render(summary: Summary, *, width: int, color: bool) -> str:
    """Return the summary as lines of at most `width` cells."""
    lines = []

    def row(label: str, text: str) -> None:
        lines.extend(wrap(clean(text, 4000), width, f"{label:<{_LABEL}}"))

    if summary.running:
        row("at work", summary.running)
    row("students", f"{summary.students}, {summary.handed_in} have handed in")
    if summary.missing:
        row("not handed in", _some(summary.missing))
    if summary.unknown:
        row("not on roster", f"{_some(summary.unknown)}: not graded")
    if kept := summary.kept:
        words = {"new": kept.new, "changed": kept.changed, "as before": kept.same}
        parts = [f"{len(ids)} {word}" for word, ids in words.items() if ids]
        parts += [f"{len(kept.refused)} cannot be read"] * bool(kept.refused)
        row("collected", ", ".join(parts) or "nothing")
    if summary.graded or summary.cached:
        row("graded now", f"{plural(summary.graded, 'file')}, {summary.cached} from before")
    if counts := ", ".join(f"{count} {status}" for status, count in summary.counts.items()):
        row("files", counts)
    for label, rows in (("refused", summary.refused), ("fault", summary.faults)):
        for student, problem, why in rows[:_LISTED]:
            row(label, f"{clean(student, 60)}{' ' * bool(problem)}{problem}: {why}")
        if len(rows) > _LISTED:
            row("", f"and {len(rows) - _LISTED} more")
    for student, note in summary.notes[:_LISTED]:
        row("note", f"{clean(student, 60)}: {note}")
    if len(summary.notes) > _LISTED:
        row("", f"and {len(summary.notes) - _LISTED} more")
    for text in summary.left_out:
        row("left out", text)
    for path in summary.written:
        row("written", str(path))
    if summary.faults:
        row("", "faults decide no points; --retry-faults grades these files again")
    if summary.interrupted:
        row("interrupted", "everything that was finished is kept; the same command goes on")
    return "\n".join(lines) + "\n"


def _some(names: Iterable[str]) -> str:
    """Name the first, and say how many more there are."""
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names)}: {', '.join(clean(name, 60) for name in names[:_LISTED])}{more}"
