"""What handing in late costs: the policy in a course's course.toml."""

from __future__ import annotations

import dataclasses
import datetime
import math
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from classroom.records import CourseError, Extension, Time
from grader.spec.grade_record import Record
from grader.spec.problem import explained

FILE = "course.toml"
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
    path = course / FILE
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


def lateness(
    policy: Policy, submitted_at: str | None, student: str, extensions: Iterable[Extension]
) -> Lateness:
    """Return how late a student was and what it costs; the last extension of a student counts."""
    if policy.deadline is None:
        return Lateness()
    if submitted_at is None:
        return Lateness(reason="the time of submission is not known: taken as in time")
    extended = [extension.days for extension in extensions if extension.student == student]
    deadline = datetime.datetime.fromisoformat(policy.deadline)
    deadline += datetime.timedelta(days=extended[-1] if extended else 0)
    late_s = (datetime.datetime.fromisoformat(submitted_at) - deadline).total_seconds()
    days = max(0, math.ceil(late_s / _DAY_S))
    if policy.last_day is not None and days > policy.last_day:
        reason = f"{_days(days)} late: nothing counts after {_days(policy.last_day)}"
        return Lateness(days, 0.0, reason)
    percent = min(100.0, policy.percent_per_day * max(0, days - policy.free_late_days))
    if days and not percent:
        return Lateness(days, reason=f"{_days(days)} late, without a penalty")
    reason = f"{_days(days)} late: {percent:g} % less" if days else ""
    return Lateness(days, 1 - percent / 100, reason)


def _days(count: int) -> str:
    return f"{count} day{'s' * (count != 1)}"
