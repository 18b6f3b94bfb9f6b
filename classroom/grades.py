"""The only place where the points of a student are decided: results, overrides, late days."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import itertools
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from classroom.records import CourseError, FileResult, HandIn, Key, Student, Time
from classroom.store import Store
from grader.base.text import plural
from grader.spec.grade_record import Record, Verdict
from grader.spec.problem import explained, load_problem, problem_ids

POLICY = "course.toml"
_DAY_S = 86_400.0


class Policy(Record):
    """The deadline and what each day after it costs, in percent of the points that were earned.

    A day that has begun counts as a day. `free_late_days` cost nothing; after `last_day` days
    nothing is earned. Extensions move the deadline.
    """

    deadline: Time | None = None
    free_late_days: Annotated[int, Field(ge=0, le=1000)] = 0
    percent_per_day: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.0
    last_day: Annotated[int, Field(ge=0, le=1000)] | None = None


@dataclasses.dataclass(frozen=True)
class Lateness:
    """`days` after the deadline, extensions counted; `factor` of the points is left."""

    days: int = 0
    factor: float = 1.0
    reason: str = ""


def read_policy(course: Path) -> Policy:
    """Return the policy of the course in this folder; without a course.toml nothing is late.

    Raises:
        CourseError: course.toml is not valid, or has a key that it should not have.
    """
    path = course / POLICY
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Policy()
    except OSError as error:
        raise CourseError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CourseError(f"{path}: not valid TOML: {error}") from None
    if isinstance(data.get("deadline"), datetime.date):  # a type of TOML's own, as datetime is
        data["deadline"] = data["deadline"].isoformat()
    try:
        policy = Policy.model_validate(data)
    except ValidationError as error:
        raise CourseError(f"{path}: {explained(error)}") from None
    if policy.deadline is None and data:
        given = ", ".join(data)
        raise CourseError(f"{path}: deadline: got none, expected one, for there is {given}")
    return policy


def lateness(policy: Policy, submitted_at: str | None, extension: float = 0.0) -> Lateness:
    """Return how late it is, for a deadline that is `extension` days later, and what it costs."""
    if policy.deadline is None:
        return Lateness()
    if submitted_at is None:
        return Lateness(reason="the time of submission is not known: taken as in time")
    deadline = datetime.datetime.fromisoformat(policy.deadline)
    deadline += datetime.timedelta(days=extension)
    late_s = (datetime.datetime.fromisoformat(submitted_at) - deadline).total_seconds()
    days = max(0, math.ceil(late_s / _DAY_S))
    if policy.last_day is not None and days > policy.last_day:
        reason = (
            f"{plural(days, 'day')} late: nothing counts after {plural(policy.last_day, 'day')}"
        )
        return Lateness(days, 0.0, reason)
    percent = min(100.0, policy.percent_per_day * max(0, days - policy.free_late_days))
    if days and not percent:
        return Lateness(days, reason=f"{plural(days, 'day')} late, without a penalty")
    reason = f"{plural(days, 'day')} late: {percent:g} % less" if days else ""
    return Lateness(days, 1 - percent / 100, reason)


class Status(enum.StrEnum):
    """Where the points of one student and problem come from."""

    GRADED = "graded"
    OVERRIDDEN = "overridden"  # a person decided
    REFUSED = "refused"  # nothing of it could be graded, or the source policy forbids it
    NOT_HANDED_IN = "not handed in"
    FAULT = "fault"  # of the infrastructure: nothing is decided
    PENDING = "not graded yet"


UNDECIDED = (Status.FAULT, Status.PENDING)


@dataclasses.dataclass(frozen=True)
class Grade:
    """What one student has for one problem; `points` is None where that is not decided.

    `possible` is what could be measured where the problem was graded, the face value where nothing
    was. `earned` is what the judge gave before `days_late` cost something; None without a result.
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


@dataclasses.dataclass(frozen=True)
class Standing:
    """A class as it is stored; `grades` has every student with every one of `problems`."""

    students: tuple[Student, ...]
    problems: tuple[str, ...]
    hand_ins: Mapping[str, HandIn]
    grades: Mapping[tuple[str, str], Grade]
    results: Mapping[Key, FileResult] = dataclasses.field(default_factory=dict)

    def result(self, student: str, problem: str) -> FileResult | None:
        """Return the result that counts for a student, None where there is none."""
        key = self.grades[student, problem].key
        return self.results.get(key) if key else None


def people(store: Store) -> tuple[Student, ...]:
    """Return the roster, or where there is none everyone who handed something in."""
    return store.students() or tuple(Student(id=student) for student in store.hand_ins())


def read_standing(
    store: Store, policy: Policy | None = None, problems: Sequence[str] = ()
) -> Standing:
    """Return how a class stands: the points of every student, in the order of the roster.

    `problems` are by default those that were graded, or where none was, all. The results that count
    are those of the last grading, `store.versions()`.

    Raises:
        StoreError: the database cannot be read.
    """
    policy, versions = policy or Policy(), store.versions()
    problems = tuple(problems or filter(versions.__contains__, problem_ids())) or problem_ids()
    students, hand_ins = people(store), store.hand_ins()
    days = {extension.student: extension.days for extension in store.extensions()}
    faults = {fault.key: fault.text for fault in store.faults()}
    overrides = {(override.student, override.problem): override for override in store.overrides()}
    results: dict[Key, FileResult] = {}
    grades: dict[tuple[str, str], Grade] = {}
    for problem in problems:
        keys = {
            student: Key(problem=problem, sha256=sha256, version=versions.get(problem, ""))
            for student, hand_in in hand_ins.items()
            if (sha256 := hand_in.files.get(problem))
        }
        found = {key: result for key in set(keys.values()) if (result := store.result(key))}
        available = (result.result.points.available for result in found.values())
        possible = max(available, default=load_problem(problem).total_points)
        for student in (student.id for student in students):
            nothing = Grade(student, problem, 0.0, possible, Status.NOT_HANDED_IN)
            hand_in, key = hand_ins.get(student), keys.get(student)
            result, fault = found.get(key), ""
            if key in faults and result is None:
                result, fault = store.last_result(problem, key.sha256), faults[key]
            if result is not None:
                found[result.key] = result
                late = lateness(policy, hand_in.submitted_at, days.get(student, 0.0))
                grade = _judged(nothing, result, late, fault)
            elif hand_in is not None:
                grade = _undecided(nothing, hand_in, key, fault)
            else:
                grade = nothing
            if override := overrides.get((student, problem)):
                reason = f"{override.author}: {override.reason}"
                given = {"points": round(override.points, 1), "reason": reason, "fault": ""}
                grade = dataclasses.replace(grade, status=Status.OVERRIDDEN, **given)
            grades[student, problem] = grade
        results |= found
    places = itertools.product((student.id for student in students), problems)
    return Standing(students, problems, hand_ins, {p: grades[p] for p in places}, results)


def _undecided(nothing: Grade, hand_in: HandIn, key: Key | None, fault: str) -> Grade:
    """Return the grade of what was handed in and has no result."""
    if hand_in.error is not None:
        return dataclasses.replace(nothing, status=Status.REFUSED, reason=hand_in.error)
    if key is None:
        return dataclasses.replace(nothing, reason=f"no file of {nothing.problem}")
    status = Status.FAULT if fault else Status.PENDING
    why = {"status": status, "reason": fault, "fault": fault}
    return dataclasses.replace(nothing, points=None, key=key, **why)


def _judged(nothing: Grade, stored: FileResult, late: Lateness, fault: str) -> Grade:
    """Return the grade of a result."""
    result = stored.result
    refused = result.verdict is Verdict.REJECTED
    reasons = [result.message.headline if refused and result.message else "", late.reason]
    return dataclasses.replace(
        nothing,
        points=round(result.points.earned * late.factor, 1),
        status=Status.REFUSED if refused else Status.GRADED,
        reason="; ".join(filter(None, reasons)),
        earned=result.points.earned,
        days_late=late.days,
        key=stored.key,
        fault=fault,
    )
