"""`grader class diff` and `publish`: shows what has changed since the last publication, and why.

As in DOMjudge's rejudgings, changes are shown before they count. `publish` refuses lost points and
undecided grades unless an option accepts them.
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
from classroom.grades import UNDECIDED, Grade, Standing, Status, read_standing
from classroom.lateness import read_policy
from classroom.outputs import write_gradebooks
from classroom.records import CourseError, Publication, PublishedGrade, now
from grader.base import stdout
from grader.base.options import Command
from grader.base.text import clean, fit, plural, points, styled, wrap
from grader.report.message import ID_LIMIT


class Kind(enum.StrEnum):
    """What a change means for the student; kinds that need attention come first."""

    LOST = "lost"
    UNDECIDED = "not decided"
    GAINED = "gained"
    NEW = "new"


@dataclasses.dataclass(frozen=True)
class Change:
    """A difference between a student's present points for a problem and the published ones.

    `old` is None if nothing was published, `new` if nothing is decided or the student has left the
    class.
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
    """The changes since publication `since`, 0 for none; `same` is the number of equal grades."""

    since: int
    changes: tuple[Change, ...]
    same: int

    def of(self, kind: Kind) -> tuple[Change, ...]:
        """Return the changes of one kind."""
        return tuple(change for change in self.changes if change.kind is kind)


def _published(grade: Grade) -> PublishedGrade:
    """Return a decided grade in the form to publish, with its origin."""
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
    """Return the grades of a new publication; undecided ones stay as they were published."""
    known = _by_place(last)
    decided = {p: _published(g) for p, g in standing.grades.items() if g.points is not None}
    found = ((decided if place in decided else known).get(place) for place in standing.grades)
    return [grade for grade in found if grade is not None]


def changes_since(last: Publication | None, standing: Standing) -> Changes:
    """Compare present grades with those published: losses first, in the order of the roster."""
    known, present = _by_place(last), standing.grades
    names = {student.id: student.name for student in standing.students}
    found: dict[Kind, list[Change]] = {kind: [] for kind in Kind}
    places = list(present | known)
    for student, problem in places:
        old, grade = known.get((student, problem)), present.get((student, problem))
        if change := _change(old, grade, is_here=student in names):
            kind, why = change
            before, now = old and old.points, grade and grade.points
            possible = (grade or old).possible
            name = names.get(student, "")
            found[kind].append(Change(student, name, problem, kind, before, now, possible, why))
    changes = tuple(change for those in found.values() for change in those)
    return Changes(last.number if last else 0, changes, same=len(places) - len(changes))


def _by_place(last: Publication | None) -> dict[tuple[str, str], PublishedGrade]:
    return {(g.student, g.problem): g for g in last.grades} if last else {}


def _change(
    old: PublishedGrade | None, grade: Grade | None, *, is_here: bool
) -> tuple[Kind, str] | None:
    """Return the kind of a change and its reason; None where nothing has changed."""
    if grade is None:
        return Kind.LOST, f"{old.problem} is graded no more" if is_here else "in the class no more"
    if grade.status in UNDECIDED:
        return Kind.UNDECIDED, _described(grade)
    if old is None:
        return Kind.NEW, "" if grade.status is Status.GRADED else _described(grade)
    if old.points == grade.points:
        return None
    kind = Kind.LOST if grade.points < old.points else Kind.GAINED
    return kind, "; ".join(_reasons(old, _published(grade)))


def _reasons(old: PublishedGrade, new: PublishedGrade) -> Sequence[str]:
    """Return the reasons why points changed; without another one, it is the late policy."""
    overridden = str(Status.OVERRIDDEN)
    if new.status == overridden:
        return [f"overridden by {new.reason}"]
    reasons = []
    if old.status == overridden:
        reasons.append("overridden before")
    if old.sha256 != new.sha256:
        now = "a file is there now" if new.sha256 else "no file any more"
        reasons.append("another file" if new.sha256 and old.sha256 else now)
    if old.version != new.version and old.sha256 == new.sha256:
        reasons.append("graded anew, by another version")
    elif old.version != new.version and old.version and new.version:
        reasons.append("another version")
    if old.days_late != new.days_late:
        reasons.append(f"{plural(new.days_late, 'day')} late, not {old.days_late}")
    if old.status != new.status and new.status != str(Status.GRADED):
        reasons.append(_described(new))
    return reasons or [f"another policy for late days: {new.reason or 'no penalty'}"]


def _described(grade: Grade | PublishedGrade) -> str:
    return f"{grade.status}: {grade.reason}" if grade.reason else str(grade.status)


_ID_WIDTH = 24
_NAMES_LIMIT = 2000
_STYLES = {Kind.LOST: "bold red", Kind.UNDECIDED: "yellow"}


def _diff(options: argparse.Namespace) -> int:
    """Show the changes; return 1 if somebody loses points, else 0."""
    with open_class(options.course) as store:
        standing = read_standing(store, read_policy(options.course))
        changes = changes_since(store.last_publication(), standing)
    stdout.show(_render, changes)
    return int(bool(changes.of(Kind.LOST)))


def _publish(options: argparse.Namespace) -> int:
    """Show the changes, publish and write the gradebooks; return 0, or 1 where it was refused."""
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
        if not refused:
            if last is None or len(changes.of(Kind.UNDECIDED)) < len(changes.changes):
                number = store.publish(new.author, new.at, new.grades)
            written = [str(path) for path in write_gradebooks(options.course, standing)]
    stdout.show(_render, changes, refused=refused, published=number, written=written)
    return int(bool(refused))


def _refusals(changes: Changes, options: argparse.Namespace) -> tuple[str, ...]:
    """Return why nothing is published, each reason with the option that accepts it."""
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
    """Return the changes by kind, losses first, then the outcome of the publication."""
    parts: list[Any] = []
    for kind in Kind:
        found = changes.of(kind)
        if kind is Kind.NEW and not changes.since:
            continue  # every grade is new: the count below suffices
        if found:
            head = f"{kind}: {plural(len(found), 'grade')}"
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
    table = Table.grid(padding=(0, 2, 0, 0))
    ids = [clean(change.student) for change in changes]
    id_width = min(max(map(len, ids)), _ID_WIDTH)
    table.add_column(width=id_width, no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(ratio=1, overflow="fold")
    for id, change in zip(ids, changes, strict=True):
        name = clean(change.name, 40)
        remark = "; ".join(filter(None, (name if name != id else "", clean(change.why))))
        old, new = ("-" if n is None else points(n) for n in (change.old, change.new))
        step = f"{old} -> {new} of {points(change.possible)}"
        row = fit(id, id_width), clean(change.problem, ID_LIMIT), step, remark
        table.add_row(*map(Text, row))
    return table


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
