"""What a class is made of: students, what they handed in, results, decisions, publications.

Points are those of one problem. Times are UTC, as 2026-11-23T08:00:00Z.
"""

from __future__ import annotations

import datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import Environment, ProblemResult, Record, Text
from grader.spec.problem import ManifestError


class CourseError(ManifestError):
    """An option, file or folder of a class that cannot be used; where, got, expected, remedy."""


class EngineFault(EnvironmentFault):
    """The engine cannot run anything, or any more."""


def utc(text: str) -> str:
    """Return a time with a zone as UTC.

    Raises:
        ValueError: it is no ISO time, or has no zone.
    """
    time = datetime.datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"got {text!r}, expected a time with its zone, as {now()}")
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """Return the time of day in UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[str, AfterValidator(utc)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]


MAX_REASON = 2000


class Student(Record):
    """One row of the roster; `id` is what the course's own system calls this student.

    `login` is that of an account on GitHub, `number` what Moodle or Canvas puts into the names of
    submissions where that is not the id.
    """

    id: Name
    name: Text = ""
    email: Text = ""
    section: Text = ""
    login: Text = ""
    number: Text = ""


class Part(Record):
    """One problem's file as it was handed in, and with which submission.

    `submitted_at` is None where the source does not say when. `code` is the receipt code of that
    submission's files, `version` that of the assignment where its receipt says so.
    """

    sha256: str
    source: Text = ""
    submitted_at: Time | None = None
    code: str = ""
    version: Text = ""


class HandIn(Record):
    """What was collected of one student: `files` has the SHA-256 of each problem's last file.

    `parts` has all files of a problem that differ, the last one at the end. `source`,
    `submitted_at`, `notes` (what was left out) and `error` (why nothing of it can be graded) are
    those of the last submission.
    """

    student: Name
    source: Text
    files: dict[str, str] = Field(default_factory=dict)
    submitted_at: Time | None = None
    error: Text | None = None
    notes: tuple[Text, ...] = ()
    parts: dict[str, tuple[Part, ...]] = Field(default_factory=dict)

    def parts_of(self, problem: str) -> tuple[Part, ...]:
        """Return the files of a problem; before version 0.25 a hand-in had one of each."""
        if problem in self.parts or problem not in self.files:
            return self.parts.get(problem, ())
        origin = {"source": self.source, "submitted_at": self.submitted_at}
        return (Part(sha256=self.files[problem], **origin),)

    @property
    def all_files(self) -> set[str]:
        """The SHA-256 of every file that is stored."""
        parts = (part for parts in self.parts.values() for part in parts)
        return {*self.files.values(), *(part.sha256 for part in parts)}


class Key(Record):
    """What a result depends on: a problem, the SHA-256 of a file, the version of what graded it."""

    problem: str
    sha256: str
    version: str


class FileResult(Record):
    """What grading one file as one problem came to."""

    key: Key
    result: ProblemResult
    mode: Literal["local", "official"]
    seed: str
    environment: Environment
    graded_at: Time


class Fault(Record):
    """A grading that failed for a reason that is not the submission's."""

    key: Key
    text: Text
    at: Time


class Decision(Record):
    """What a person says about one student, or a student asks for: one row, never deleted.

    - override: `points` in place of the judge's, for `problem`.
    - extend: the deadline of `problem`, or of all ("") where there is none, is `days` later.
    - comment: `reason` is shown in the report, at `problem`.
    - request: the student asks to have `problem` looked at again; `author` is the student.
    - answer: what the student is answered on requests for `problem`.
    """

    kind: Literal["override", "extend", "comment", "request", "answer"]
    student: Name
    problem: str = ""
    points: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] | None = None
    days: Annotated[float, Field(ge=0, le=1000, allow_inf_nan=False)] | None = None
    author: Name
    reason: Annotated[Text, Field(min_length=1, max_length=MAX_REASON)]
    at: Time


class PublishedGrade(Record):
    """The points of one problem that were published to one student, and what they came from."""

    student: Name
    problem: str
    points: float
    possible: float
    status: str = ""
    reason: Text = ""
    days_late: int = 0
    sha256: str | None = None
    version: str | None = None


class Publication(Record):
    """Grades as they were handed out, whole; `number` counts from 1."""

    number: int
    author: Name
    at: Time
    grades: tuple[PublishedGrade, ...]
