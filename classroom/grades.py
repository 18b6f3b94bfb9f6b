"""The only place where the points of a student are decided, and how a class stands by them."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from classroom.late import Policy, lateness, read_policy
from classroom.records import FileResult, HandIn, Key, Override, Student
from classroom.store import Store
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem, problem_ids


class Status(enum.StrEnum):
    """Where the points of one student and problem come from."""

    GRADED = "graded"
    OVERRIDDEN = "overridden"  # a person decided
    NOT_HANDED_IN = "not handed in"
    REFUSED = "refused"  # nothing of it could be graded, or the source policy forbids it
    FAULT = "fault"  # of the infrastructure: nothing is decided
    PENDING = "not graded yet"


UNDECIDED = (Status.FAULT, Status.PENDING)


@dataclasses.dataclass(frozen=True)
class Grade:
    """What one student has for one problem; `points` is None where that is not decided.

    `earned` is what the judge gave before `days_late` cost something; None without a result.
    `key` says which result counts, or would: None where there is no file. `fault` says why there is
    no result of the present version; the last one of the same file counts then, where there is one.
    """

    student: str
    problem: str
    points: float | None
    possible: float
    status: Status
    reason: str = ""
    earned: float | None = None
    days_late: int = 0
    key: Key | None = None
    fault: str = ""


def people(store: Store) -> tuple[Student, ...]:
    """Return the roster, or where there is none everyone who handed something in."""
    return store.students() or tuple(Student(id=student) for student in store.hand_ins())


def grades(
    store: Store,
    problems: Sequence[str],
    versions: Mapping[str, str],
    policy: Policy | None = None,
    results: dict[Key, FileResult] | None = None,
) -> list[Grade]:
    """Return the points of every student for each of `problems`, in the order of the roster.

    `versions` says by problem which results count: `store.versions()`, those of the last grading,
    is what commands other than `grade` use. `possible` is what could be measured where it was
    graded, the face value where nothing was. `results` takes up those that were read.
    """
    deciding = _Deciding(store, versions, policy or Policy(), {} if results is None else results)
    students, hand_ins = people(store), store.hand_ins()
    for problem in problems:
        files = (h.files.get(problem) for h in hand_ins.values())
        deciding.look_up(problem, (sha256 for sha256 in files if sha256))
    return [
        deciding.grade(student.id, problem, hand_ins.get(student.id))
        for student in students
        for problem in problems
    ]


class _Deciding:
    def __init__(
        self,
        store: Store,
        versions: Mapping[str, str],
        policy: Policy,
        results: dict[Key, FileResult],
    ) -> None:
        self._store = store
        self._versions = versions
        self._policy = policy
        self._extensions = store.extensions()
        self._faults = {fault.key: fault for fault in store.faults()}
        self._overrides: dict[tuple[str, str], Override] = {
            (override.student, override.problem): override for override in store.overrides()
        }
        self._results = results
        self._possible: dict[str, float] = {}

    def look_up(self, problem: str, hashes: Iterable[str]) -> None:
        """Read the results of a problem's files, each once."""
        if problem in self._versions:
            keys = {
                Key(problem=problem, sha256=sha256, version=self._versions[problem])
                for sha256 in hashes
            }
            found = {key: self._store.result(key) for key in keys}
            self._results |= {key: result for key, result in found.items() if result}
        of_problem = [r.result.points for k, r in self._results.items() if k.problem == problem]
        face_value = load_problem(problem).total_points
        self._possible[problem] = max((p.available for p in of_problem), default=face_value)

    def grade(self, student: str, problem: str, hand_in: HandIn | None) -> Grade:
        """Return the grade of one student and problem."""
        judged = self._judged(student, problem, hand_in)
        override = self._overrides.get((student, problem))
        if override is None:
            return judged
        reason = f"{override.author}: {override.reason}"
        points = round(override.points, 1)
        return dataclasses.replace(
            judged, points=points, status=Status.OVERRIDDEN, reason=reason, fault=""
        )

    def _judged(self, student: str, problem: str, hand_in: HandIn | None) -> Grade:
        nothing = Grade(student, problem, 0.0, self._possible[problem], Status.NOT_HANDED_IN)
        if hand_in is None:
            return nothing
        if hand_in.error is not None:
            return dataclasses.replace(nothing, status=Status.REFUSED, reason=hand_in.error)
        sha256 = hand_in.files.get(problem)
        if sha256 is None:
            return dataclasses.replace(nothing, reason=f"no file of {problem}")
        key = Key(problem=problem, sha256=sha256, version=self._versions.get(problem, ""))
        result, fault = self._results.get(key), ""
        if result is None and key in self._faults:
            fault = self._faults[key].text
            result = self._store.last_result(problem, sha256)
        if result is None:
            status = Status.FAULT if fault else Status.PENDING
            undecided = {"points": None, "status": status, "reason": fault, "fault": fault}
            return dataclasses.replace(nothing, **undecided, key=key)
        self._results[result.key] = result
        late = lateness(self._policy, hand_in.submitted_at, student, self._extensions)
        earned = result.result.points.earned
        refused = result.result.verdict is Verdict.REJECTED
        message = result.result.message
        reasons = [message.headline if refused and message else "", late.reason]
        return dataclasses.replace(
            nothing,
            points=round(earned * late.factor, 1),
            status=Status.REFUSED if refused else Status.GRADED,
            reason="; ".join(filter(None, reasons)),
            earned=earned,
            days_late=late.days,
            key=result.key,
            fault=fault,
        )


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
        CourseError: course.toml cannot be used.
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
