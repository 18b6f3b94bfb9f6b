"""What a class has come to, as its commands say it: who is missing, what failed, what is left."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from classroom.collect import Kept
from classroom.grades import Grade, Status, people
from classroom.store import Store
from grader.base.text import clean, plural, wrap

_LISTED = 20
_LABEL = 14


@dataclasses.dataclass(frozen=True)
class Summary:
    """Counts of students and of their files by status, and the lists that somebody must look at.

    `unknown` handed in and are not on the roster; `refused` and `faults` are (student, problem or
    "", why). What was collected in this run is in `kept` and `left_out`.
    """

    students: int
    handed_in: int
    counts: Mapping[str, int] = dataclasses.field(default_factory=dict)
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    refused: tuple[tuple[str, str, str], ...] = ()
    faults: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[tuple[str, str], ...] = ()
    kept: Kept | None = None
    left_out: tuple[str, ...] = ()
    graded: int = 0
    cached: int = 0
    written: tuple[Path, ...] = ()
    interrupted: bool = False
    running: str | None = None

    @property
    def pending(self) -> int:
        """How many files have no result and no fault."""
        return self.counts.get(Status.PENDING, 0)


def summed_up(store: Store, grades: Sequence[Grade], **more: object) -> Summary:
    """Return the summary of a class; `more` are fields that only a run knows."""
    students, hand_ins = people(store), store.hand_ins()
    ids = {student.id for student in students}
    counts = collections.Counter(str(grade.status) for grade in grades if grade.key is not None)
    refused = [(h.student, "", h.error) for h in hand_ins.values() if h.error and h.student in ids]
    refused += [
        (g.student, g.problem, g.reason) for g in grades if g.status is Status.REFUSED and g.key
    ]
    return Summary(
        students=len(students),
        handed_in=len(ids & hand_ins.keys()),
        counts=counts,
        missing=tuple(s.id for s in students if s.id not in hand_ins),
        unknown=tuple(sorted(hand_ins.keys() - ids)),
        refused=tuple(refused),
        faults=tuple((g.student, g.problem, g.fault) for g in grades if g.fault),
        notes=tuple((h.student, note) for h in hand_ins.values() for note in h.notes),
        **more,
    )


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
        words = {"same": "as before", "refused": "cannot be read"}
        parts = [f"{len(ids)} {words.get(name, name)}" for name, ids in kept.items() if ids]
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
