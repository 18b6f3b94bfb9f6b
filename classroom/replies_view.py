"""What `grader class override`, `extend`, `forget` and `report` print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from classroom.records import Extension, Override
from grader.base.text import clean, plural, points, wrap
from grader.report.message import ID_LIMIT


def render_overrides(overrides: Sequence[Override], *, width: int = 80, color: bool = False) -> str:
    """Return a paragraph per override, the oldest first."""
    rows = [
        f"{clean(o.student, 60)}  {clean(o.problem, ID_LIMIT)}  {points(o.points)} points"
        f"  {_decided(o)}"
        for o in overrides
    ]
    return _paragraphs(rows or ["no overrides"], width)


def render_extensions(
    extensions: Sequence[Extension], *, width: int = 80, color: bool = False
) -> str:
    """Return a paragraph per extension, the oldest first."""
    rows = [
        f"{clean(e.student, 60)}  {e.days:g} day{'s' * (e.days != 1)}  {_decided(e)}"
        for e in extensions
    ]
    return _paragraphs(rows or ["no extensions"], width)


def _decided(decision: Override | Extension) -> str:
    return f"{decision.at}  {clean(decision.author, 60)}: {clean(decision.reason)}"


def render_forgotten(
    student: str,
    rows: int | None,
    files: Sequence[str],
    source: str | None,
    *,
    width: int = 80,
    color: bool = False,
) -> str:
    """Return what was deleted of a student, and what was not; `rows` is None before --yes."""
    id = clean(student, 60)
    if rows is None:
        lines = [f"{id}: nothing is deleted yet; --yes deletes, for good:"]
        lines += ["  all that the database has of this student"]
    else:
        lines = [f"{id}: deleted, for good:", f"  {plural(rows, 'row')} of the database"]
    lines += [f"  {clean(file, 200)}" for file in files]
    kept = ["gradebooks and reports that were sent or uploaded, and copies of this folder"]
    if source:
        kept.insert(0, f"what was collected: {clean(source, 200)}")
    lines += ["not deleted:", *(f"  {text}" for text in kept)]
    return _paragraphs(lines, width)


def render_written(
    course: Path,
    written: Sequence[str],
    differing: int | None,
    *,
    width: int = 80,
    color: bool = False,
) -> str:
    """Return what was written into the folder of a course, and whether its grades are published.

    `differing` grades are not those of the last publication; None says that there was none.
    """
    rows = [f"written to {clean(course, 200)}:", *(f"  {clean(text)}" for text in written)]
    if differing is None:
        rows.append("note: these grades are not published; grader class publish does it")
    elif differing:
        are = "is not as it was" if differing == 1 else "are not as they were"
        rows.append(f"note: {plural(differing, 'grade')} {are} published; see grader class diff")
    return _paragraphs(rows, width)


def _paragraphs(rows: Iterable[str], width: int) -> str:
    lines = (line for row in rows for line in wrap(row, width, "", "    "))
    return "".join(f"{line.rstrip()}\n" for line in lines)
