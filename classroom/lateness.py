"""The cost of being late: deadlines, late days of the term, extensions, and which file counts."""

from __future__ import annotations

import dataclasses
import datetime
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from classroom.records import CourseError, Part, Time
from grader.base.text import plural
from grader.spec.grade_record import Record
from grader.spec.problem import explained, problem_ids

POLICY = "course.toml"
_DAY_S = 86_400.0
_Days = Annotated[int, Field(ge=0, le=1000)]


class Policy(Record):
    """The deadlines, and the cost of each day after them in percent of the earned points.

    `deadlines` has those of single problems, `deadline` that of all others. A day that has begun
    counts whole. The first `free_late_days` of each submission are free, and each student may spend
    `late_days` in all. After `last_day` days a file earns nothing. Extensions move the deadline.
    """

    deadline: Time | None = None
    deadlines: dict[str, Time] = Field(default_factory=dict)
    late_days: _Days = 0
    free_late_days: _Days = 0
    percent_per_day: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = 0.0
    last_day: _Days | None = None

    def deadline_of(self, problem: str, extension: float = 0.0) -> str | None:
        """Return the deadline of a problem, moved by `extension` days; None if it has none."""
        text = self.deadlines.get(problem, self.deadline)
        if text is None:
            return None
        moment = datetime.datetime.fromisoformat(text) + datetime.timedelta(days=extension)
        return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclasses.dataclass(frozen=True)
class Lateness:
    """How late a file is: `days` after the extended deadline leave `factor` of its points."""

    days: int = 0
    factor: float = 1.0
    reason: str = ""


def read_policy(course: Path) -> Policy:
    """Return the policy of the course in this folder; without a course.toml nothing is late.

    Raises:
        CourseError: course.toml is not valid, or has an unknown key.
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
    try:
        policy = Policy.model_validate(_plain(data))
    except ValidationError as error:
        raise CourseError(f"{path}: {explained(error)}") from None
    if policy.deadline is None and not policy.deadlines and data:
        given = ", ".join(data)
        raise CourseError(f"{path}: deadline: got none, expected one, for there is {given}")
    if unknown := sorted(policy.deadlines.keys() - set(problem_ids())):
        some = ", ".join(problem_ids())
        raise CourseError(f"{path}: deadlines: got {unknown[0]}, expected one of {some}")
    if policy.late_days and not policy.percent_per_day:
        raise CourseError(
            f"{path}: late_days: got {policy.late_days} without percent_per_day, so that no day"
            " costs anything; expected percent_per_day too, 100 where what is late beyond these"
            " days earns nothing"
        )
    return policy


def _plain(data: Any) -> Any:
    """Return TOML's dates and times as text, so that an error message can show them."""
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    return data.isoformat() if isinstance(data, datetime.date) else data


def lateness(
    policy: Policy,
    submitted_at: str | None,
    extension: float = 0.0,
    *,
    problem: str = "",
    spent: int = 0,
) -> Lateness:
    """Return how late a problem is after its deadline and `extension` days, and the cost.

    `spent` late days of the term pay for as many days, but do not move the last day.
    """
    deadline = policy.deadline_of(problem, extension)
    if deadline is None:
        return Lateness()
    if submitted_at is None:
        return Lateness(reason="the time of submission is not known: it counts as in time")
    moments = map(datetime.datetime.fromisoformat, (submitted_at, deadline))
    days = max(0, math.ceil((next(moments) - next(moments)).total_seconds() / _DAY_S))
    if policy.last_day is not None and days > policy.last_day:
        reason = (
            f"{plural(days, 'day')} late: nothing counts after {plural(policy.last_day, 'day')}"
        )
        return Lateness(days, 0.0, reason)
    paid = min(spent, max(0, days - policy.free_late_days))
    percent = min(100.0, policy.percent_per_day * max(0, days - policy.free_late_days - paid))
    if not days:
        return Lateness()
    late = f"{plural(days, 'day')} late"
    late += f", {paid} paid with late days" if paid else ""
    if not percent:
        return Lateness(days, reason=late if paid else f"{late}, without a penalty")
    return Lateness(days, 1 - percent / 100, f"{late}: {percent:g} % less")


def candidates(
    policy: Policy, problem: str, parts: Sequence[Part], extension: float
) -> tuple[Part, ...]:
    """Return the files that can count: the last, or the last without a penalty and the last late.

    A late file never costs points: an earlier file without a penalty is graded too, and the one
    that earns more counts. A file too late to earn points replaces no other.
    """
    if not parts:
        return ()

    def factor(part: Part, spent: int) -> float:
        return lateness(policy, part.submitted_at, extension, problem=problem, spent=spent).factor

    whole = [part for part in parts if factor(part, 0) == 1.0]
    usable = [part for part in parts if factor(part, policy.late_days) > 0.0]
    last = usable[-1] if usable else parts[-1]
    if not whole or whole[-1] is last:
        return (last,)
    return (whole[-1], last)
