"""From findings to checks: worst case, share of the outputs, step, cause, and what was not run."""

import pytest

from grader.judge.check_results import check_results
from grader.judge.testrun import Findings
from grader.source.submission import Source
from grader.spec.findings import CauseFound, Finding
from grader.spec.grade_record import Diagnosis, Message, Verdict
from grader.spec.problem import load_problem, read_problem
from tests.harness import model_answer
from tests.test_manifest import TEXT, write

BACKWARD = TEXT.replace("gradients = []", 'gradients = ["dq", "dk", "dv"]')
PASS = Finding(verdict=Verdict.PASS, duration_s=0.25)


@pytest.fixture
def problem(tmp_path):
    return read_problem(write(tmp_path, BACKWARD))


def finding(verdict, headline="x", *, wrong=(), **fields):
    message = Message(headline=headline, first="dq[0]", **fields)
    return Finding(verdict=verdict, message=message, wrong_outputs=wrong, duration_s=1.5)


def cause(id, step, *places):
    diagnosis = Diagnosis(id=f"P04-{id}", title=id.lower(), note="n", help="h")
    return CauseFound(diagnosis=diagnosis, step=step, cases=places)


def results(problem, findings=(), causes=(), missing="not run: stopped"):
    """Results of all checks; a case that `findings` does not name passes, None is not run."""
    found = dict(findings)
    for check in problem.checks:
        for index in problem.cases(check, "5eed"):
            found.setdefault((check.id, index), PASS)
    found = {place: f for place, f in found.items() if f is not None}
    everything = Findings(found, list(causes), missing=missing)
    source = Source(problem.id, model_answer(problem.id).encode())
    checks = check_results(problem, everything, seed="5eed", source=source)
    return {check.id: check for check in checks}


def test_all_cases_pass(problem):
    found = results(problem)
    assert list(found) == [check.id for check in problem.checks]
    assert {c.verdict for c in found.values()} == {Verdict.PASS}
    assert {c.share for c in found.values()} == {1.0}
    half = found["half"]
    assert (half.cases_passed, half.cases_total, half.duration_s) == (3, 3, 0.75)
    assert (half.weight, half.message, half.diagnosis, half.step) == (2.5, None, None, None)


def test_a_check_has_the_verdict_and_the_message_of_its_worst_case(problem):
    wrong = finding(Verdict.FAIL, "out is wrong", wrong=("dq",))
    crash = finding(Verdict.CRASH, "died")
    plain = results(problem, {("plain", 0): wrong, ("plain", 1): crash})["plain"]
    assert (plain.verdict, plain.message.headline) == (Verdict.CRASH, "died")
    assert (plain.cases_passed, plain.cases_total, plain.duration_s) == (0, 2, 3.0)


@pytest.mark.parametrize(
    ("first", "second", "share"),
    [
        (("dq",), ("dq",), 2 / 3),
        (("dq",), ("dk",), 1 / 3),
        (("dq", "dk"), ("dv",), 0.0),
        (("dv",), None, 2 / 3),
        (("lse",), None, 1.0),  # judged by another check
        ((), None, 0.0),  # none named: all of them
    ],
)
def test_outputs_that_no_case_got_wrong_keep_their_share(problem, first, second, share):
    findings = {("plain", 0): finding(Verdict.FAIL, wrong=first)}
    if second is not None:
        findings[("plain", 1)] = finding(Verdict.FAIL, wrong=second)
    plain = results(problem, findings)["plain"]
    assert plain.share == pytest.approx(share)
    assert plain.verdict is Verdict.FAIL


@pytest.mark.parametrize(
    "verdict", [v for v in Verdict if v not in (Verdict.PASS, Verdict.FAIL, Verdict.NOT_MEASURED)]
)
def test_a_case_that_came_to_no_numbers_counts_against_all_outputs(problem, verdict):
    assert results(problem, {("plain", 1): finding(verdict, wrong=("dq",))})["plain"].share == 0


def test_a_case_that_was_not_run_says_why_and_leaves_nothing(problem):
    plain = results(problem, {("plain", 1): None}, missing="not run: interrupted")["plain"]
    assert (plain.verdict, plain.share) == (Verdict.SKIPPED, 0.0)
    assert plain.message.headline == "not run: interrupted"
    assert (plain.cases_passed, plain.cases_total) == (1, 2)


def test_a_failure_goes_before_what_was_not_run(problem):
    wrong = finding(Verdict.FAIL, "out is wrong", wrong=("dq",))
    plain = results(problem, {("plain", 0): wrong, ("plain", 1): None})["plain"]
    assert (plain.verdict, plain.message.headline) == (Verdict.FAIL, "out is wrong")
    assert plain.share == 0.0


def test_a_check_that_needs_another_counts_only_beside_it(problem):
    wrong = finding(Verdict.FAIL, wrong=("dq",))
    arguments = results(problem, {("plain", 0): wrong})["arguments"]
    assert (arguments.verdict, arguments.share) == (Verdict.SKIPPED, 0.0)
    assert arguments.message.headline == "not counted: plain does not pass"
    assert results(problem, {("half", 0): wrong})["arguments"].share == 1.0


def test_a_check_that_fails_by_itself_says_so_whatever_it_needs(problem):
    wrong = finding(Verdict.FAIL, wrong=("dq",))
    mute = finding(Verdict.FAIL, "no error was raised")
    found = results(problem, {("plain", 0): wrong, ("arguments", 0): mute})["arguments"]
    assert (found.verdict, found.message.headline) == (Verdict.FAIL, "no error was raised")


def test_a_known_cause_is_shown_before_a_case_without_one(problem):
    wrong = {("plain", i): finding(Verdict.FAIL, f"case {i}", wrong=("dq",)) for i in (0, 1)}
    plain = results(problem, wrong, [cause("SHIFTED", 2, ("plain", 1))])["plain"]
    assert plain.message.headline == "case 1"
    assert plain.diagnosis.id == "P04-SHIFTED" and plain.step == 2


def test_the_step_is_that_of_the_line_else_of_the_cause_else_none(problem):
    def step(line_step, *causes):
        line = None if line_step is None else 7
        wrong = finding(Verdict.FAIL, line=line, step=line_step, wrong=("dq",))
        return results(problem, {("plain", 0): wrong}, causes)["plain"].step

    shifted = cause("SHIFTED", 2, ("plain", 0))
    assert step(1, shifted) == 1
    assert step(None, shifted) == 2
    assert step(None, cause("SHIFTED", 2, ("half", 0))) is None
    assert step(None) is None


def test_the_line_of_a_cause_that_was_seen_is_shown(problem):
    wrong = {("plain", i): finding(Verdict.FAIL, step=1, wrong=("dq",)) for i in (0, 1)}
    seen = cause("SEEN", None, ("plain", 1)).model_copy(update={"line": 77})
    plain = results(problem, wrong, [seen])["plain"]
    assert (plain.message.line, plain.message.step, plain.step) == (77, None, None)
    plain = results(problem, wrong, [seen.model_copy(update={"step": 2})])["plain"]
    assert (plain.message.line, plain.message.step, plain.step) == (77, 2, 2)


def test_two_causes_of_one_case_are_none(problem):
    wrong = {("plain", 0): finding(Verdict.FAIL, wrong=("dq",))}
    causes = [cause("SHIFTED", 2, ("plain", 0)), cause("DIAGONAL", 1, ("plain", 0), ("half", 0))]
    plain = results(problem, wrong, causes)["plain"]
    assert plain.diagnosis is None and plain.step is None


def test_titles_are_the_docstrings_of_the_tests(problem):
    for check in results(load_problem("p02")).values():
        assert len(check.title.split()) > 3 and "test_" not in check.title
    assert results(problem)["ragged"].title  # p04 of this repository may have no such check


@pytest.mark.parametrize(
    ("wrong", "fields", "steps"),
    [
        (("dq",), {}, {"plain": 3, "half": 3, "dq": 3}),
        (("dq",), {"line": 7}, {"plain": None, "half": 3, "dq": None}),
        (("dq", "dk"), {}, {"plain": None, "half": None, "dq": None}),
    ],
)
def test_what_alone_is_wrong_tells_the_step_that_makes_it(wrong, fields, steps):
    places = {("plain", 0): wrong, ("half", 1): wrong, ("dq", 0): ("dq",)}
    found = {
        place: finding(Verdict.FAIL, wrong=names, **fields if place[0] != "half" else {})
        for place, names in places.items()
    }
    checks = results(load_problem("p08"), found)
    assert {name: checks[name].step for name in steps} == steps
    alone = results(load_problem("p08"), {("dq", 0): finding(Verdict.FAIL, wrong=("dq",))})
    assert alone["dq"].step is None
