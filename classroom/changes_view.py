"""What `grader class diff` and `grader class publish` print."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from classroom.changes import Change, Changes, Kind
from grader.base.text import clean, fit, plural, points, text_console, wrap
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


def render(
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
    return "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())


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
