"""Decides the points of students, from results, decisions and late days; no other module does."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from classroom.lateness import Lateness, Policy, candidates, lateness
from classroom.records import Decision, FileResult, HandIn, Key, Part, Student
from classroom.store import Store
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem, problem_ids


class Status(enum.StrEnum):
    """How the points of one student and problem were decided."""

    GRADED = "graded"
    OVERRIDDEN = "overridden"  # a person decided
    REFUSED = "refused"  # the hand-in is unreadable, or the source policy forbids the file
    NOT_HANDED_IN = "not handed in"
    FAULT = "fault"  # of the infrastructure: the points are not decided
    PENDING = "not graded yet"


UNDECIDED = (Status.FAULT, Status.PENDING)


@dataclasses.dataclass(frozen=True)
class Grade:
    """The grade of one student for one problem; `points` is None while it is not decided.

    `possible` are the points that the grading machine can measure. `earned` are the judge's points
    before the penalty for `days_late`, None without a result. `key` identifies the result that
    counts or is to come, None without a file; `part` says how that file was handed in. `fault` says
    why there is no result of the present version: then the file's last result counts, if any.
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
    part: Part | None = None


@dataclasses.dataclass(frozen=True)
class Standing:
    """The state of a class; `grades` has an entry for every student and every one of `problems`.

    `files` has the status of every file that can count, by problem and SHA-256; `late_days` how
    many of the term's late days each student has spent. `extensions` are those in force, `asked`
    all requests and answers.
    """

    students: tuple[Student, ...]
    problems: tuple[str, ...]
    hand_ins: Mapping[str, HandIn]
    grades: Mapping[tuple[str, str], Grade]
    results: Mapping[Key, FileResult] = dataclasses.field(default_factory=dict)
    files: Mapping[tuple[str, str], Status] = dataclasses.field(default_factory=dict)
    policy: Policy = dataclasses.field(default_factory=Policy)
    late_days: Mapping[str, int] = dataclasses.field(default_factory=dict)
    extensions: Mapping[tuple[str, str], Decision] = dataclasses.field(default_factory=dict)
    asked: Sequence[Decision] = ()

    def result(self, student: str, problem: str) -> FileResult | None:
        """Return the result that counts for a student, None where there is none."""
        key = self.grades[student, problem].key
        return self.results.get(key) if key else None


def people(store: Store) -> tuple[Student, ...]:
    """Return the roster, or without one everybody who handed in."""
    return store.students() or tuple(Student(id=student) for student in store.hand_ins())


def _extensions(store: Store, problems: Sequence[str]) -> dict[tuple[str, str], Decision]:
    """Return the extensions in force, by student and problem: the last of each, unless it is 0."""
    found = {}
    for one in (one for one in store.decisions("extend") if one.days is not None):
        for problem in [one.problem] if one.problem else problems:
            found[one.student, problem] = one
    return {place: one for place, one in found.items() if one.days}


def _days(extension: Decision | None) -> float:
    return extension.days or 0.0 if extension else 0.0


def read_standing(
    store: Store, policy: Policy | None = None, problems: Sequence[str] = ()
) -> Standing:
    """Return the state of a class, with students in the order of the roster.

    `problems` are by default those that were graded, or all if none was. The results that count
    are those of the last grading, `store.versions()`.

    Raises:
        StoreError: the database cannot be read.
    """
    policy, versions = policy or Policy(), store.versions()
    problems = tuple(problems or filter(versions.__contains__, problem_ids())) or problem_ids()
    students, hand_ins = people(store), store.hand_ins()
    counting = files_that_count(store, policy, problems)
    known = {fault.key: fault.text for fault in store.faults()}
    judged: dict[Key, FileResult | None] = {}
    faults: dict[Key, str] = {}
    for key in {
        Key(problem=problem, sha256=part.sha256, version=versions.get(problem, ""))
        for (_, problem), parts in counting.items()
        for part in parts
    }:
        judged[key] = store.result(key)
        if key in known and judged[key] is None:
            faults[key] = known[key]
            judged[key] = store.last_result(key.problem, key.sha256)
    possible, extensions = _possible(store, judged, problems), _extensions(store, problems)
    overrides = {(one.student, one.problem): one for one in store.decisions("override")}
    class_ = _Class(policy, versions, judged, faults, possible, extensions, overrides)
    grades, spent = {}, {}
    for id in (student.id for student in students):
        parts = {problem: counting.get((id, problem), ()) for problem in problems}
        found, spent[id] = class_.grades_of(id, hand_ins.get(id), parts)
        grades |= {(id, problem): grade for problem, grade in found.items()}
    files = {
        (problem, part.sha256): class_.status_of(problem, part)
        for (id, problem), parts in counting.items()
        for part in parts
        if id in spent
    }
    return Standing(
        students,
        problems,
        hand_ins,
        grades,
        results={result.key: result for result in judged.values() if result},
        files=files,
        policy=policy,
        late_days=spent,
        extensions=extensions,
        asked=store.decisions("request", "answer"),
    )


def files_that_count(
    store: Store, policy: Policy, problems: Sequence[str]
) -> dict[tuple[str, str], tuple[Part, ...]]:
    """Return, by student and problem, the files that can count, and so are to be graded."""
    extensions, found = _extensions(store, problems), {}
    for id, hand_in in store.hand_ins().items():
        for problem in problems:
            days = _days(extensions.get((id, problem)))
            if parts := candidates(policy, problem, hand_in.parts_of(problem), days):
                found[id, problem] = parts
    return found


def _possible(
    store: Store, judged: Mapping[Key, FileResult | None], problems: Sequence[str]
) -> dict[str, float]:
    """Return, by problem, the points that can be measured on the machine that graded.

    Gradings before version 0.25 did not store them: then they follow from the device of any result,
    and without a result from the face value.
    """
    known = store.possible()
    results = [result for result in judged.values() if result is not None]
    device = next((result.environment.device for result in results), None)
    found = {}
    for problem in problems:
        of = load_problem(problem)
        available = (r.result.points.available for r in results if r.key.problem == problem)
        elsewhere = of.possible_on(device) if device else of.total_points
        found[problem] = max(available, default=known.get(problem, elsewhere))
    return found


_Option = tuple[Part, FileResult]


@dataclasses.dataclass(frozen=True)
class _Class:
    """The data that all students' grades depend on."""

    policy: Policy
    versions: Mapping[str, str]
    judged: Mapping[Key, FileResult | None]
    faults: Mapping[Key, str]
    possible: Mapping[str, float]
    extensions: Mapping[tuple[str, str], Decision]
    overrides: Mapping[tuple[str, str], Decision]

    def _key(self, problem: str, part: Part) -> Key:
        return Key(problem=problem, sha256=part.sha256, version=self.versions.get(problem, ""))

    def status_of(self, problem: str, part: Part) -> Status:
        key = self._key(problem, part)
        result = self.judged[key]
        if key in self.faults:
            return Status.FAULT
        if result is None:
            return Status.PENDING
        refused = result.result.verdict is Verdict.REJECTED
        return Status.REFUSED if refused else Status.GRADED

    def grades_of(
        self, id: str, hand_in: HandIn | None, parts: Mapping[str, tuple[Part, ...]]
    ) -> tuple[dict[str, Grade], int]:
        """Return a student's grades by problem, and how many late days the student has spent."""
        overrides = {p: self.overrides[id, p] for p in parts if (id, p) in self.overrides}
        moved = {problem: _days(self.extensions.get((id, problem))) for problem in parts}
        options: dict[str, list[_Option]] = {}
        for problem, those in parts.items():
            found = [(part, self.judged[self._key(problem, part)]) for part in those]
            if found and all(result is not None for _, result in found):
                options[problem] = found
        spent = self._spent({p: o for p, o in options.items() if p not in overrides}, moved)
        grades = {}
        for problem, those in parts.items():
            nothing = Grade(id, problem, 0.0, self.possible[problem], Status.NOT_HANDED_IN)
            if problem in options:
                grade = self._best(nothing, options[problem], moved[problem], spent)
            elif hand_in is not None:
                grade = self._undecided(nothing, hand_in, those)
            else:
                grade = nothing
            if override := overrides.get(problem):
                reason = f"{override.author}: {override.reason}"
                given = {"points": round(override.points, 1), "reason": reason, "fault": ""}
                grade = dataclasses.replace(grade, status=Status.OVERRIDDEN, **given)
            grades[problem] = grade
        return grades, sum(spent.values())

    def _spent(
        self, options: Mapping[str, Sequence[_Option]], moved: Mapping[str, float]
    ) -> dict[tuple[str, str], int]:
        """Return the late days spent on each submission, in the order of submission.

        A day pays for all problems of a submission. Each gets the fewest days that give it the most
        points. The days spent on it never depend on a later submission.
        """
        left, spent = self.policy.late_days, {}
        sent = {_sent(one) for those in options.values() for one in those if left}
        for submission in sorted(sent):
            of = {p: those for p, those in options.items() if submission in map(_sent, those)}
            earned = [
                sum(
                    max(
                        self._points(p, one, moved[p], {**spent, submission: days})
                        for one in those
                        if _sent(one) <= submission
                    )
                    for p, those in of.items()
                )
                for days in range(left + 1)
            ]
            spent[submission] = earned.index(max(earned))
            left -= spent[submission]
        return spent

    def _late(
        self, problem: str, part: Part, moved: float, spent: Mapping[tuple[str, str], int]
    ) -> Lateness:
        days = spent.get(_sent((part, None)), 0)
        return lateness(self.policy, part.submitted_at, moved, problem=problem, spent=days)

    def _points(
        self, problem: str, option: _Option, moved: float, spent: Mapping[tuple[str, str], int]
    ) -> float:
        part, result = option
        factor = self._late(problem, part, moved, spent).factor
        return round(result.result.points.earned * factor, 1)

    def _best(
        self,
        nothing: Grade,
        options: Sequence[_Option],
        moved: float,
        spent: Mapping[tuple[str, str], int],
    ) -> Grade:
        """Return the grade of the file that earns most, and of equal ones of the earliest."""
        problem = nothing.problem
        part, stored = max(options, key=lambda one: self._points(problem, one, moved, spent))
        late, result = self._late(problem, part, moved, spent), stored.result
        refused = result.verdict is Verdict.REJECTED
        reasons = [result.message.headline if refused and result.message else "", late.reason]
        if part is not options[-1][0]:
            reasons.append(f"the file of {options[-1][0].submitted_at} is late and earns no more")
        return dataclasses.replace(
            nothing,
            points=round(result.points.earned * late.factor, 1),
            status=Status.REFUSED if refused else Status.GRADED,
            reason="; ".join(filter(None, reasons)),
            earned=result.points.earned,
            days_late=late.days,
            key=stored.key,
            fault=self.faults.get(self._key(problem, part), ""),
            part=part,
        )

    def _undecided(self, nothing: Grade, hand_in: HandIn, parts: Sequence[Part]) -> Grade:
        """Return the grade where a file that can count has no result, or there is no file."""
        if not parts:
            if hand_in.error is not None:
                given = {"status": Status.REFUSED, "reason": hand_in.error}
                return dataclasses.replace(nothing, **given)
            return dataclasses.replace(nothing, reason=f"no file of {nothing.problem}")
        open_ = [part for part in parts if self.judged[self._key(nothing.problem, part)] is None]
        key = self._key(nothing.problem, open_[-1])
        fault = self.faults.get(key, "")
        status = Status.FAULT if fault else Status.PENDING
        why = {"status": status, "reason": fault, "fault": fault, "part": open_[-1]}
        return dataclasses.replace(nothing, points=None, key=key, **why)


def _sent(option: tuple[Part, object]) -> tuple[str, str]:
    """Return the identity of a student's submission, which sorts by time."""
    part, _ = option
    return part.submitted_at or "", part.code
