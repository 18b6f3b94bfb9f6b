"""How a class stands at present: who is in it, what they handed in, points and results."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from classroom.grades import Grade, grades, people
from classroom.late import read_policy
from classroom.records import FileResult, HandIn, Key, Student
from classroom.store import Store
from grader.spec.problem import problem_ids


@dataclasses.dataclass(frozen=True)
class Standing:
    """A class as it is stored; `grades` has every student with every one of `problems`."""

    students: tuple[Student, ...]
    problems: tuple[str, ...]
    hand_ins: Mapping[str, HandIn]
    grades: Mapping[tuple[str, str], Grade]
    results: Mapping[Key, FileResult]

    def result(self, student: str, problem: str) -> FileResult | None:
        """Return the result that counts for a student, None where there is none."""
        key = self.grades[student, problem].key
        return self.results.get(key) if key else None


def read_standing(store: Store, course: Path) -> Standing:
    """Return how the class in the folder `course` stands, late days counted.

    Its problems are those that were graded, or where none was, all.

    Raises:
        StoreError: the database cannot be read.
        CourseFileError: course.toml cannot be used.
    """
    versions = store.versions()
    problems = tuple(p for p in problem_ids() if p in versions) or problem_ids()
    results: dict[Key, FileResult] = {}
    found = grades(store, problems, versions, read_policy(course), results)
    return Standing(
        students=people(store),
        problems=problems,
        hand_ins=store.hand_ins(),
        grades={(g.student, g.problem): g for g in found},
        results=results,
    )
