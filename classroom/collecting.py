"""`grader class collect` and `status`: reads submissions and a roster; says what there is."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable, Sequence
from pathlib import Path

from classroom.collect import Collected, Kept, collect, keep
from classroom.folder import DATABASE, holder, locked, open_class
from classroom.grades import Standing, Status, read_policy, read_standing
from classroom.records import CourseError
from classroom.roster import read_roster, read_times
from classroom.store import Store
from grader.base import stdout
from grader.base.options import Command
from grader.base.text import clean, plural, wrap
from grader.spec.problem import problem_ids

_LISTED = 20
_LABEL = 14


def render(
    standing: Standing,
    *,
    width: int,
    color: bool,
    kept: Kept | None = None,
    left_out: Sequence[str] = (),
    graded: int = 0,
    cached: int = 0,
    written: Sequence[Path] = (),
    interrupted: bool = False,
    running: str | None = None,
) -> str:
    """Return what a class has come to as lines of at most `width` cells.

    Who is missing, what failed, what is left; then what a run alone knows: what became of what it
    collected, and how many files it graded.
    """
    lines: list[str] = []

    def row(label: str, text: str) -> None:
        lines.extend(wrap(clean(text, 4000), width, f"{label:<{_LABEL}}"))

    def rows(label: str, texts: Sequence[str]) -> None:
        for text in texts[:_LISTED]:
            row(label, text)
        if len(texts) > _LISTED:
            row("", f"and {len(texts) - _LISTED} more")

    ids, hand_ins = (
        {student.id: clean(student.id, 60) for student in standing.students},
        standing.hand_ins,
    )
    grades = [grade for grade in standing.grades.values() if grade.key is not None]
    if running:
        row("at work", running)
    row("students", f"{len(ids)}, {len(ids.keys() & hand_ins.keys())} have handed in")
    if missing := [id for id in ids if id not in hand_ins]:
        row("not handed in", _some(missing))
    if unknown := sorted(hand_ins.keys() - ids.keys()):
        row("not on roster", f"{_some(unknown)}: not graded")
    if kept:
        words = {"same": "as before", "refused": "cannot be read"}
        parts = [f"{len(those)} {words.get(name, name)}" for name, those in kept.items() if those]
        row("collected", ", ".join(parts) or "nothing")
    if graded or cached:
        row("graded now", f"{plural(graded, 'file')}, {cached} from before")
    counts = collections.Counter(str(grade.status) for grade in grades)
    if counts:
        row("files", ", ".join(f"{count} {status}" for status, count in counts.items()))
    refused = [
        f"{ids[h.student]}: {h.error}" for h in hand_ins.values() if h.error and h.student in ids
    ]
    refused += [
        f"{ids[g.student]} {g.problem}: {g.reason}" for g in grades if g.status is Status.REFUSED
    ]
    faults = [f"{ids[g.student]} {g.problem}: {g.fault}" for g in grades if g.fault]
    rows("refused", refused)
    rows("fault", faults)
    rows("note", [f"{clean(h.student, 60)}: {note}" for h in hand_ins.values() for note in h.notes])
    for text in left_out:
        row("left out", text)
    for path in written:
        row("written", str(path))
    if faults:
        row("", "faults decide no points; --retry-faults grades these files again")
    if interrupted:
        row("interrupted", "everything that was finished is kept; the same command goes on")
    return "\n".join(lines) + "\n"


def _some(names: Iterable[str]) -> str:
    """Name the first, and say how many more there are."""
    names = list(names)
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"{len(names)}: {', '.join(clean(name, 60) for name in names[:_LISTED])}{more}"


LISTS = {  # who is in the class, and when each handed in
    "--roster CSV": "who is in the class",
    "--assignment NAME": "what stands before -<login> in the names of clones (default: what all"
    " begin with)",
    "--choose NAME...": "the submission that counts where several accounts handed in for one"
    " student",
    "--times CSV": "when each handed in: id,submitted_at",
}


def _collect(options: argparse.Namespace) -> int:
    """Collect, show what there is now; return 0."""
    with locked(options.course), Store(options.course / DATABASE) as store:
        collected, kept = into(store, options)
        standing = read_standing(store, problems=problem_ids())
    stdout.show(render, standing, kept=kept, left_out=collected.notes)
    return 0


def _status(options: argparse.Namespace) -> int:
    """Show the summary; return 0.

    Raises:
        CourseError: there is no class in the folder.
    """
    with open_class(options.course) as store:
        standing = read_standing(store, read_policy(options.course), problem_ids())
        running = holder(options.course)
    stdout.show(render, standing, running=running)
    return 0


def into(store: Store, options: argparse.Namespace) -> tuple[Collected, Kept | None]:
    """Put a roster and submissions into the database; all is read before anything is stored.

    Raises:
        CourseError: the roster, the times or the submissions cannot be used.
    """
    source, roster = options.source, options.roster
    for option in ("times", "assignment", "choose"):
        if getattr(options, option) and not source:
            raise CourseError(f"--{option}: got it without SOURCE, expected the submissions too")
    students = read_roster(roster) if roster else store.students()
    times = read_times(options.times) if options.times else {}
    collected = Collected(())
    if source:
        given = {"assignment": options.assignment, "choose": options.choose}
        collected = collect(source, students, times, **given)
    if roster:
        store.set_students(students)
    return collected, keep(store, collected) if source else None


COLLECT = Command(
    "read submissions and a roster; grades nothing",
    _collect,
    {
        "SOURCE": "folder or archive of submissions: Gradescope, Canvas, Moodle, GitHub, one per"
        " student",
        **LISTS,
    },
)
STATUS = Command("say who handed in, what is graded, what failed and what is left", _status)
