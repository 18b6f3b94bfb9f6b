"""The records of a class: students, hand-ins, results, faults, decisions, publications.

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
    """An option, file or folder of a class cannot be used; says where, got, expected and remedy."""


class EngineFault(EnvironmentFault):
    """The engine does not start, or has stopped working."""


def utc(text: str) -> str:
    """Return a time with a zone as UTC.

    Raises:
        ValueError: `text` is no ISO time, or has no zone.
    """
    time = datetime.datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError(f"got {text!r}, expected a time with its zone, as {now()}")
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """Return the present time in UTC."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


Time = Annotated[str, AfterValidator(utc)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]


MAX_REASON = 2000


class Student(Record):
    """One row of the roster; `id` is the student's id in the course's own system.

    `login` is a GitHub account, `number` the one that Moodle or Canvas puts into the names of
    submissions, if it differs from the id.
    """

    id: Name
    name: Text = ""
    email: Text = ""
    section: Text = ""
    login: Text = ""
    number: Text = ""


class Part(Record):
    """One problem's file, and the submission with which it was handed in.

    `submitted_at` is None if the source has no time. `code` is the receipt code of that
    submission's files, `version` the assignment's version if the receipt states it.
    """

    sha256: str
    source: Text = ""
    submitted_at: Time | None = None
    code: str = ""
    version: Text = ""


class HandIn(Record):
    """All that was collected of one student; `files` has the SHA-256 of each problem's last file.

    `parts` has all different files of a problem, the last one at the end. `source`,
    `submitted_at`, `notes` (what was left out) and `error` (why it cannot be graded) are those of
    the last submission.
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
        """The SHA-256 of every file of the hand-in that is stored."""
        parts = (part for parts in self.parts.values() for part in parts)
        return {*self.files.values(), *(part.sha256 for part in parts)}


class Key(Record):
    """The identity of a result: a problem, a file's SHA-256, and the version of what graded it."""

    problem: str
    sha256: str
    version: str


class FileResult(Record):
    """The result of grading one file as one problem."""

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
    """A decision about one student, or a student's request; `forget` alone deletes it.

    - override: `points` in place of the judge's, for `problem`.
    - extend: the deadline of `problem`, or of all problems for "", is `days` later.
    - comment: the report shows `reason` at `problem`.
    - request: the student asks for a regrade of `problem`; `author` is the student.
    - answer: `reason` answers the student's requests for `problem`.
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
    """The points of one problem that were published to one student, and their origin."""

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
    """A complete set of published grades; `number` counts from 1."""

    number: int
    author: Name
    at: Time
    grades: tuple[PublishedGrade, ...]
