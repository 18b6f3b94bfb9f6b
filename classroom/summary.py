"""What a class has come to, for those who run it: who is missing, what failed, what is left."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from classroom.collect import Kept
from classroom.grades import Grade, Status, people
from classroom.store import Store


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
