"""Gradescope's results.json: a golden, the documented fields, points, faults, hostile text."""

import json
import re
import unicodedata

import pytest

from grader.report.gradescope import render
from grader.spec.grade_record import Verdict
from tests.exports import NAMES, evil, record

FIELDS = {
    "score": float,
    "execution_time": float,
    "output": str,
    "output_format": str,
    "test_output_format": str,
    "test_name_format": str,
    "visibility": str,
    "stdout_visibility": str,
    "tests": list,
}
TEST_FIELDS = {
    "name": str,
    "number": str,
    "score": (int, float),
    "max_score": (int, float),
    "status": str,
    "output": str,
    "visibility": str,
}


def results(text):
    """The results, after their fields were compared with those that are documented."""
    found = json.loads(text)
    assert {k: isinstance(v, FIELDS[k]) for k, v in found.items()} == dict.fromkeys(FIELDS, True)
    for name in ("output_format", "test_output_format", "test_name_format"):
        assert found[name] == "text"
    assert (found["visibility"], found["stdout_visibility"]) == ("visible", "hidden")
    for test in found["tests"]:
        fits = {k: isinstance(v, TEST_FIELDS[k]) for k, v in test.items()}
        assert fits == dict.fromkeys(TEST_FIELDS, True)
        assert test["status"] in ("passed", "failed")
        assert 0 <= test["score"] <= test["max_score"]
        assert test["visibility"] in ("visible", "hidden")
        if test["visibility"] == "hidden":  # must not count
            assert test["score"] == test["max_score"] == 0
    return found


def test_the_file_is_as_it_was_read_and_approved(snapshot):
    text = re.sub(r'"execution_time": [\d.]+', '"execution_time": N', render(record("mixed")))
    assert text == snapshot


@pytest.mark.parametrize("name", NAMES)
def test_scores_add_up_to_the_totals(name):
    graded, found = record(name), results(render(record(name)))
    score = graded.totals.earned + graded.bonus.earned
    assert found["score"] == pytest.approx(score)
    assert sum(test["score"] for test in found["tests"]) == pytest.approx(score)
    available = graded.totals.available + graded.bonus.available
    assert sum(test["max_score"] for test in found["tests"]) == pytest.approx(available)


@pytest.mark.parametrize("name", NAMES)
def test_a_test_is_passed_where_all_available_points_were_earned(name):
    graded, found = record(name), results(render(record(name)))
    tests = {test["number"]: test for test in found["tests"] if test["visibility"] == "visible"}
    assert len(tests) == len(graded.problems)
    for problem in graded.problems:
        test = tests[problem.id.removeprefix("p0")]
        full = problem.points.earned >= problem.points.available
        passed = full and problem.verdict is Verdict.PASS
        assert test["status"] == ("passed" if passed else "failed")
        assert f"verdict {problem.verdict}" in test["output"]


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_of_the_judge_is_told_to_the_instructor(name):
    graded, found = record(name), results(render(record(name)))
    faults = [p.id for p in graded.problems if p.verdict is Verdict.INTERNAL]
    hidden = [test for test in found["tests"] if test["visibility"] == "hidden"]
    assert len(hidden) == bool(faults)
    for id in faults:
        assert f"{id} " in hidden[0]["output"] and "the judge failed" in hidden[0]["output"]
        assert re.search(rf"\b{id}\b.*fault of the judge.*grade again", found["output"])
    assert ("did not come to its end" in found["output"]) is graded.interrupted


def test_what_could_not_be_measured_is_neither_passed_nor_failed():
    whole = record("full marks on the CPU")
    nothing = {"earned": 0.0, "available": 0.0}
    points = whole.problems[0].points.model_copy(update=nothing)
    update = {"verdict": Verdict.NOT_MEASURED, "points": points}
    problem = whole.problems[0].model_copy(update=update)
    found = results(render(whole.model_copy(update={"problems": (problem,)})))
    assert found["tests"] == [] and "not measured: needs a CUDA GPU" in found["output"]


def test_hostile_text_is_plain_and_stays_in_its_place():
    found = results(render(evil()))
    (test,) = found["tests"]
    assert test["number"] == "1"
    for text in (found["output"], test["output"], test["name"]):
        kinds = {unicodedata.category(char) for char in text if char != "\n"}
        assert not kinds & {"Cc", "Cf", "Cs", "Cn"}
    assert "\n" not in test["name"]
    assert not [line for line in test["output"].splitlines() if line.startswith("::")]
    assert "<script>" in test["output"]  # Gradescope escapes what is text
