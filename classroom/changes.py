"""What has changed since grades were published: who loses, who gains, what is new, and why."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence

from classroom.grades import UNDECIDED, Grade, Standing, Status
from classroom.records import Publication, PublishedGrade


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
