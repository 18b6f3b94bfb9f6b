"""`grader class diff` and `publish`: what has changed since grades were published, and why.

As DOMjudge does after a rejudging, what changes is shown before it counts: losses and grades that
are not decided are refused until someone asks for them.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from classroom.folder import locked, made, need, open_class
from classroom.grades import UNDECIDED, Grade, Standing, Status, read_policy, read_standing
from classroom.outputs import write_gradebooks
from classroom.records import CourseError, Publication, PublishedGrade, now
from grader.base import stdout
from grader.base.options import Command
from grader.base.text import clean, fit, plural, points, styled, wrap
from grader.report.message import ID_LIMIT


class Kind(enum.StrEnum):
    """What a change means for the student; those that need a look come first."""

    LOST = "lost"
    UNDECIDED = "undecided"
    GAINED = "gained"
    NEW = "new"


@dataclasses.dataclass(frozen=True)
class Change:
    """One student and problem whose points are not those that were published.

    `old` is None where nothing was published, `new` where nothing is decided, or where the student
    is in the class no more.
    """

    student: str
    name: str
    problem: str
    kind: Kind
    old: float | None
    new: float | None
    possible: float
    why: str


@dataclasses.dataclass(frozen=True)
class Changes:
    """All changes since publication `since`, 0 where there was none; `same` grades are the same."""

    since: int
    changes: tuple[Change, ...]
    same: int

    @property
    def is_any(self) -> bool:
        """Whether a new publication would say anything else than the last."""
        return any(change.kind is not Kind.UNDECIDED for change in self.changes)

    def of(self, kind: Kind) -> tuple[Change, ...]:
        """Return the changes of one kind."""
        return tuple(change for change in self.changes if change.kind is kind)


def published(grade: Grade) -> PublishedGrade:
    """Return a decided grade as it is published, with what it came from."""
    if grade.points is None:
        raise ValueError("a grade without points cannot be published")
    return PublishedGrade(
        student=grade.student,
        problem=grade.problem,
        points=grade.points,
        possible=grade.possible,
        status=str(grade.status),
        reason=grade.reason,
        days_late=grade.days_late,
        sha256=grade.key.sha256 if grade.key else None,
        version=grade.key.version if grade.key else None,
    )


def to_publish(standing: Standing, last: Publication | None) -> list[PublishedGrade]:
    """Return the grades of a new publication: those not decided stay as they were published."""
    known = _by_place(last)
    return [
        grade
        for (student, problem), present in standing.grades.items()
        if (
            grade := known.get((student, problem)) if present.points is None else published(present)
        )
    ]


def changes_since(last: Publication | None, standing: Standing) -> Changes:
    """Compare present grades with those published: losses first, in the order of the roster."""
    known = _by_place(last)
    names = {student.id: student.name for student in standing.students}
    found, same = [], 0
    for place, grade in standing.grades.items():
        change = _change(known.pop(place, None), grade, names[grade.student])
        same += change is None
        found += [change] if change else []
    found += [_gone(old, names.get(old.student)) for old in known.values()]
    order = list(Kind)
    return Changes(
        since=last.number if last else 0,
        changes=tuple(sorted(found, key=lambda change: order.index(change.kind))),
        same=same,
    )


def _by_place(last: Publication | None) -> dict[tuple[str, str], PublishedGrade]:
    return {(g.student, g.problem): g for g in last.grades} if last else {}


def _change(old: PublishedGrade | None, grade: Grade, name: str) -> Change | None:
    before = old.points if old else None
    if grade.status in UNDECIDED:
        why = f"{grade.status}: {grade.reason}" if grade.reason else str(grade.status)
        kind = Kind.UNDECIDED
    elif before is None:
        why = "" if grade.status is Status.GRADED else _with_reason(grade.status, grade.reason)
        kind = Kind.NEW
    elif before == grade.points:
        return None
    else:
        why = "; ".join(_reasons(old, published(grade)))
        kind = Kind.LOST if grade.points < before else Kind.GAINED
    given = grade.student, name, grade.problem, kind, before, grade.points, grade.possible
    return Change(*given, why)


def _gone(old: PublishedGrade, name: str | None) -> Change:
    why = "in the class no more" if name is None else f"{old.problem} is graded no more"
    given = old.student, name or "", old.problem, Kind.LOST, old.points, None, old.possible
    return Change(*given, why)


def _reasons(old: PublishedGrade, new: PublishedGrade) -> Sequence[str]:
    """Say what is not as it was; something is, or the points would be the same."""
    overridden = str(Status.OVERRIDDEN)
    if new.status == overridden:
        return [f"overridden by {new.reason}"]
    reasons = []
    if old.status == overridden:
        reasons.append("overridden before")
    if old.sha256 != new.sha256:
        reasons.append("another file" if new.sha256 and old.sha256 else _handed_in(new))
    if old.version != new.version and old.sha256 == new.sha256:
        reasons.append("graded anew, by another version")
    elif old.version != new.version and old.version and new.version:
        reasons.append("another version")
    if old.days_late != new.days_late:
        days = "day" if new.days_late == 1 else "days"
        reasons.append(f"{new.days_late} {days} late, not {old.days_late}")
    if old.status != new.status and new.status != str(Status.GRADED):
        reasons.append(_with_reason(new.status, new.reason))
    return reasons or [f"another policy for late days: {new.reason or 'no penalty'}"]


def _handed_in(new: PublishedGrade) -> str:
    return "a file is there now" if new.sha256 else "no file any more"


def _with_reason(status: str, reason: str) -> str:
    return f"{status}: {reason}" if reason else str(status)


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
        standing = read_standing(store, read_policy(options.course))
        changes = changes_since(store.last_publication(), standing)
    stdout.show(_render, changes)
    return int(bool(changes.of(Kind.LOST)))


def _publish(options: argparse.Namespace) -> int:
    """Show the changes, publish and write the gradebooks; return 0, or 1 where it was refused.

    Raises:
        CourseError: no author, or no grade to publish.
    """
    need(options, ("author",))
    written: Sequence[str] = ()
    with open_class(options.course) as store, locked(options.course):
        standing = read_standing(store, read_policy(options.course))
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
            paths = write_gradebooks(options.course, standing)
            written = [str(path) for path in paths]
    stdout.show(_render, changes, refused=refused, published=number, written=written)
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
    parts: list[Any] = []
    for kind in Kind:
        found = changes.of(kind)
        if kind is Kind.NEW and not changes.since:
            continue  # all of the class: the count below says it
        if found:
            head = f"{_HEADS[kind]}: {plural(len(found), 'grade')}"
            students = len({change.student for change in found})
            style = _STYLES.get(kind, "bold")
            parts += [(f"{head} of {plural(students, 'student')}", style), _table(found), ""]
    since = f"since publication {changes.since}" if changes.since else "nothing was published yet"
    count = plural(len(changes.changes), "change")
    lines = [f"{since}: {count}, {changes.same} the same"]
    for reason in refused:
        lines += wrap(clean(reason, _NAMES_LIMIT), width, "not published: ", "    ")
    if published is not None:
        lines.append(f"published as number {published}")
    lines += [f"written: {clean(path, 200)}" for path in written]
    return styled([*parts, *lines], width, color=color)


def _table(changes: Sequence[Change]) -> Table:
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
