"""Classroom 50: whole points that add up, statuses, identity, hostile text."""

import datetime
import json
import re

import pytest

from grader.report import classroom50
from grader.report.classroom50 import rounded, wholes
from grader.report.score import is_counted
from grader.spec.grade_record import Points, Verdict
from tests.exports import NAMES, evil, record

NOW = datetime.datetime(2026, 11, 23, 8, 30, 1, tzinfo=datetime.UTC)
JOB = {
    "CLASSROOM": "attention",
    "ASSIGNMENT": "flash",
    "OWNER": "alice",
    "ASSIGNMENT_TYPE": "individual",
    "SUBMISSION_TAG": "submit/2026-11-23T08-29-00Z-a1b2c3d",
    "COMMIT_URL": "https://github.com/o/r/commit/1",
    "RELEASE_URL": "https://github.com/o/r/releases/tag/1",
    "REVIEW_URL": "https://github.com/o/r/compare/0...1",
}


def points(earned, available):
    return Points(earned=earned, available=available, possible=available)


def result50_of(text):
    """What Classroom 50's runner reads, after its rules, which no schema can all state."""
    found = json.loads(text)
    assert found["schema"] == "classroom50/result/v1"
    for name in classroom50.REQUIRED:
        assert isinstance(found[name], str) and found[name]
    assert found["assignment_type"] in ("individual", "group")
    assert found["submission"].startswith("submit/")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", found["datetime"])
    others = {"schema", "datetime", "score", "max-score", "tests"}
    assert set(found) == set(classroom50.REQUIRED) | others
    for part in (found, *found["tests"]):
        assert type(part["score"]) is int and type(part["max-score"]) is int
        assert 0 <= part["score"] <= part["max-score"]
    for test in found["tests"]:
        assert type(test["passed"]) is bool and test["test-name"]
    assert found["score"] == sum(test["score"] for test in found["tests"])
    assert found["max-score"] == sum(test["max-score"] for test in found["tests"])
    return found


@pytest.mark.parametrize("name", NAMES)
def test_scores_add_up_to_the_total_which_is_rounded_once(name):
    graded = record(name)
    both = graded.totals + graded.bonus
    found50 = result50_of(classroom50.render(graded, JOB, NOW))
    assert (found50["score"], found50["max-score"]) == (
        rounded(both.earned),
        rounded(both.available),
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_test_passes_where_all_available_points_were_earned(name):
    graded = record(name)
    problems = [problem for problem in graded.problems if is_counted(problem)]
    found50 = result50_of(classroom50.render(graded, JOB, NOW))
    for problem, test in zip(problems, found50["tests"], strict=True):
        full = problem.verdict is Verdict.PASS and problem.points.earned >= problem.points.available
        assert test["passed"] is full and test["verdict"] == problem.verdict
        assert test["test-name"].startswith(problem.id)


def test_a_half_point_counts_for_the_student_and_noise_does_not():
    assert [rounded(x) for x in (0, 0.4, 0.5, 62.5, 62.49, 2.5, 3.4999999999)] == [
        0, 0, 1, 63, 62, 3, 4,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        ([(7, 7), (14, 14)], [(7, 7), (14, 14)]),
        ([(0.5, 0.5)] * 4, [(1, 1), (1, 1), (0, 0), (0, 0)]),
        ([(0.2, 0.2), (0.2, 0.6), (0.2, 0.2)], [(0, 0), (1, 1), (0, 0)]),
        ([(6.9, 7.5), (7.5, 7.5)], [(7, 8), (7, 7)]),
        ([(0, 10), (0, 10)], [(0, 10), (0, 10)]),
        ([], []),
    ],
)
def test_parts_add_up_and_none_is_more_than_it_may_be(parts, expected):
    parts = [points(*part) for part in parts]
    found = wholes(parts)
    assert sum(e for e, _ in found) == rounded(sum(part.earned for part in parts))
    assert sum(a for _, a in found) == rounded(sum(part.available for part in parts))
    assert all(0 <= earned <= available for earned, available in found)
    assert found == expected


def test_any_points_of_one_decimal_can_be_spread():
    for number in range(2000):
        parts = []
        for i in range(number % 7 + 1):
            available = (number * 37 + i * 101) % 211 / 10
            parts.append(points(min((number * 53 + i * 71) % 199 / 10, available), available))
        found = wholes(parts)
        assert sum(e for e, _ in found) == rounded(sum(part.earned for part in parts))
        assert sum(a for _, a in found) == rounded(sum(part.available for part in parts))
        for (earned, available), part in zip(found, parts, strict=True):
            assert 0 <= earned <= available <= part.available + 1
            assert abs(earned - part.earned) < 2


def test_identity_is_what_the_job_says():
    found = result50_of(classroom50.render(record("a known mistake"), JOB, NOW))
    for field, name in classroom50.REQUIRED.items():
        assert found[field] == JOB[name]
    assert found["datetime"] == "2026-11-23T08:30:01Z"
    assert classroom50.missing(JOB) == []
    for name in JOB:
        assert classroom50.missing({**JOB, name: " "}) == [name]
    assert classroom50.missing({}) == list(classroom50.REQUIRED.values())


def test_hostile_text_stays_in_its_place():
    graded = evil()
    (test50,) = result50_of(classroom50.render(graded, JOB, NOW))["tests"]
    assert "\n" not in test50["test-name"]
