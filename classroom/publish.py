"""`grader class diff` and `publish`: what has changed since students were told their grades.

As DOMjudge does after a rejudging, what changes is shown before it counts: losses and grades that
are not decided are refused until someone asks for them.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from classroom import gradebook
from classroom.changes import Change, Changes, Kind, changes_since, to_publish
from classroom.folder import locked, made, need, open_class
from classroom.grades import read_standing
from classroom.records import CourseError, Publication, now
from grader.base import stdout
from grader.base.options import Command
from grader.base.text import clean, fit, plural, points, text_console, without_blanks, wrap
from grader.report.message import ID_LIMIT

_ID_WIDTH = 24
_NAMES_LIMIT = 2000
_HEADS = {
    Kind.LOST: "lost",
    Kind.UNDECIDED: "not decided",
    Kind.GAINED: "gained",
    Kind.NEW: "new",
}
_STYLES = {Kind.LOST: "bold red", Kind.UNDECIDED: "yellow"}


def _diff(options: argparse.Namespace) -> int:
    """Show the changes; return 1 if somebody loses points, else 0."""
    with open_class(options.course) as store:
        standing = read_standing(store, options.course)
        changes = changes_since(store.last_publication(), standing)
    stdout.show(functools.partial(_render, changes))
    return int(bool(changes.of(Kind.LOST)))


def _publish(options: argparse.Namespace) -> int:
    """Show the changes, publish and write the gradebooks; return 0, or 1 where it was refused.

    Raises:
        CourseError: no author, or no grade to publish.
    """
    need(options, ("author",))
    written: Sequence[str] = ()
    with open_class(options.course) as store, locked(options.course):
        standing = read_standing(store, options.course)
        last = store.last_publication()
        changes = changes_since(last, standing)
        grades = to_publish(standing, last)
        if not grades:
            raise CourseError("publish: got a class without a decided grade, expected one or more")
        new = made(Publication, number=1, author=options.author, at=now(), grades=tuple(grades))
        refused = _refusals(changes, options)
        number = None
        if not refused and (changes.is_any or last is None):
            number = store.publish(new.author, new.at, new.grades)
        if not refused:
            paths = gradebook.write(options.course, store, list(standing.grades.values()))
            written = [str(path) for path in paths]
    stdout.show(
        functools.partial(_render, changes, refused=refused, published=number, written=written)
    )
    return int(bool(refused))


def _refusals(changes: Changes, options: argparse.Namespace) -> tuple[str, ...]:
    """Return why nothing is published, and the option that changes it."""
    found = []
    for kind, given, what, option in (
        (Kind.LOST, options.accept_losses, "points are lost by", "--accept-losses"),
        (Kind.UNDECIDED, options.partial, "nothing is decided for", "--partial"),
    ):
        students = list(dict.fromkeys(change.student for change in changes.of(kind)))
        if students and not given:
            found.append(f"{what} {', '.join(students)}; {option} publishes all the same")
    return tuple(found)


def _render(
    changes: Changes,
    *,
    refused: Sequence[str] = (),
    published: int | None = None,
    written: Sequence[str] = (),
    width: int = 80,
    color: bool = False,
) -> str:
    """Return the changes by kind, losses first, then what became of the publication."""
    console = text_console(width, color=color)
    for kind in Kind:
        found = changes.of(kind)
        if kind is Kind.NEW and not changes.since:
            continue  # all of the class: the count below says it
        if found:
            head = f"{_HEADS[kind]}: {plural(len(found), 'grade')}"
            students = len({change.student for change in found})
            style = _STYLES.get(kind, "bold")
            console.print(Text(f"{head} of {plural(students, 'student')}", style=style))
            console.print(_table(found, width))
            console.print()
    since = f"since publication {changes.since}" if changes.since else "nothing was published yet"
    count = plural(len(changes.changes), "change")
    lines = [f"{since}: {count}, {changes.same} the same"]
    for reason in refused:
        lines += wrap(clean(reason, _NAMES_LIMIT), width, "not published: ", "    ")
    if published is not None:
        lines.append(f"published as number {published}")
    lines += [f"written: {clean(path, 200)}" for path in written]
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return without_blanks(console.file.getvalue())


def _table(changes: Sequence[Change], width: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    ids = [clean(change.student) for change in changes]
    id_width = min(max(map(len, ids)), _ID_WIDTH)
    table.add_column(width=id_width, no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for id, change in zip(ids, changes, strict=True):
        name = clean(change.name, 40)
        remark = "; ".join(filter(None, (name if name != id else "", clean(change.why))))
        table.add_row(
            Text(fit(id, id_width)),
            Text(clean(change.problem, ID_LIMIT)),
            Text(_step(change)),
            Text(remark),
        )
    return table


def _step(change: Change) -> str:
    old = "-" if change.old is None else points(change.old)
    new = "-" if change.new is None else points(change.new)
    return f"{old} -> {new} of {points(change.possible)}"


DIFF = Command("compare present grades with the last publication; losses first", _diff)
PUBLISH = Command(
    "publish present grades, after showing what changes",
    _publish,
    {
        "--author NAME": "who publishes",
        "--accept-losses": "publish though students lose points",
        "--partial": "publish though some grades are not decided; those stay as they were"
        " published",
    },
)
