"""The record as result.json of Classroom 50, schema classroom50/result/v1: a test per problem.

Source: "The result.json contract" on https://github.com/foundation50/classroom50/wiki/
Advanced-Autograding, and schemas/result-v1.schema.json of that repository. Its runner sets `owner`,
`assignment_type` and `datetime` anew, and checks the rest.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping, Sequence

from grader.base.text import clean
from grader.report.message import ID_LIMIT
from grader.report.score import is_counted, is_full
from grader.spec.grade_record import GradeRecord, Points, ProblemResult

# By field of the result, the environment variable in which the runner passes its value.
REQUIRED = {
    "classroom": "CLASSROOM",
    "assignment": "ASSIGNMENT",
    "owner": "OWNER",
    "assignment_type": "ASSIGNMENT_TYPE",
    "submission": "SUBMISSION_TAG",
    "commit": "COMMIT_URL",
    "release": "RELEASE_URL",
    "review": "REVIEW_URL",
}


def missing(variables: Mapping[str, str]) -> list[str]:
    """Return the required variables that are not set."""
    return [name for name in REQUIRED.values() if not variables.get(name, "").strip()]


def render(record: GradeRecord, variables: Mapping[str, str], now: datetime.datetime) -> str:
    """Return the record as JSON, points as whole numbers; `variables` are those of the job."""
    problems = [problem for problem in record.problems if is_counted(problem)]
    points = wholes([problem.points for problem in problems])
    identity = {field: variables[name].strip() for field, name in REQUIRED.items()}
    result = {
        "schema": "classroom50/result/v1",
        **identity,
        "datetime": now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "score": sum(earned for earned, _ in points),
        "max-score": sum(available for _, available in points),
        "tests": [_test(p, *both) for p, both in zip(problems, points, strict=True)],
    }
    return json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _test(problem: ProblemResult, score: int, max_score: int) -> dict[str, object]:
    bonus = " (bonus)" if problem.bonus else ""
    return {
        "test-name": f"{clean(problem.id, ID_LIMIT)} {clean(problem.title, 60)}{bonus}",
        "passed": is_full(problem),
        "score": score,
        "max-score": max_score,
        "verdict": str(problem.verdict),
    }


def rounded(points: float) -> int:
    """Return `points` as a whole number; a half is rounded up."""
    return math.floor(round(points, 6) + 0.5)


def wholes(parts: Sequence[Points]) -> list[tuple[int, int]]:
    """Return whole earned and available points of each part that add up to the rounded totals.

    No part earns more than is available in it. Points lost by rounding down go first to parts that
    earned everything, then to those that lost most.
    """
    possible = [part.available for part in parts]
    ceilings = [math.ceil(round(points, 6)) for points in possible]
    available = _spread(possible, ceilings, [False] * len(parts))
    complete = [part.earned >= part.available for part in parts]
    earned = _spread([part.earned for part in parts], available, complete)
    return list(zip(earned, available, strict=True))


def _spread(shares: Sequence[float], limits: Sequence[int], first: Sequence[bool]) -> list[int]:
    exact = [round(share, 6) for share in shares]
    whole = [min(math.floor(x), limit) for x, limit in zip(exact, limits, strict=True)]
    order = sorted(range(len(whole)), key=lambda i: (not first[i], whole[i] - exact[i], i))
    missing = rounded(sum(exact)) - sum(whole)
    while missing > 0:
        for i in order:
            if missing > 0 and whole[i] < limits[i]:
                whole[i] += 1
                missing -= 1
    return whole
