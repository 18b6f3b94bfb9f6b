"""Events and reports of a pytest: work that was counted, garbage, and what others wrote."""

import os

import pytest

from grader.spec.findings import CaseEnds, Evidence, WorkCounted, write_event
from grader.spec.grade_record import Amount, Verdict, WorkFigures
from grader.spec.problem_tables import WORK
from tests import test_testrun
from tests.test_testrun import (
    FAIL,
    FAULT,
    PASS,
    PLACES,
    Forged,
    Script,
    all_pass,
    begins,
    case,
    cases,
    died,
    ends,
    verdicts,
)

run = test_testrun.run


WORK_BEGINS = begins((WORK, 0))
COUNTED = Evidence(
    figures=WorkFigures(elements_read=Amount(done=3, needed=2, naive=4), shape="seqlen=512")
)


def work_of(pytests):
    return pytests.testrun.findings.work


def test_the_work_that_was_counted_is_kept(run):
    lines = [*cases(PLACES), WORK_BEGINS, write_event(WorkCounted(evidence=COUNTED))]
    found, pytests, told = run(Script(lines))
    assert work_of(pytests) == COUNTED
    assert verdicts(found) == all_pass() and len(told) == len(PLACES)


@pytest.mark.parametrize(
    ("ending", "how"),
    [(died(), "died"), (died(exit_code=0), "died"), (died(silent=True), "was stopped")],
)
def test_a_pytest_that_ends_while_work_is_counted_costs_the_work_alone(run, ending, how):
    found, pytests, told = run(Script([*cases(PLACES), WORK_BEGINS], ending, None))
    assert verdicts(found) == all_pass() and len(told) == len(PLACES)
    work = work_of(pytests)
    assert work.verdict is Verdict.CRASH and work.figures is None
    assert work.reason == f"the judge's test process {how} while your code ran"


def test_a_pytest_that_ends_after_work_was_counted_costs_nothing(run):
    lines = [*cases(PLACES), WORK_BEGINS, write_event(WorkCounted(evidence=COUNTED))]
    found, pytests, _ = run(Script(lines, died(), None))
    assert verdicts(found) == all_pass() and work_of(pytests) == COUNTED


def test_a_run_that_is_interrupted_while_work_is_counted_blames_nobody(run):
    def interrupt(testrun):
        testrun.interrupted = True
        return WORK_BEGINS

    found, pytests, _ = run(Script([*cases(PLACES), interrupt], died(exit_code=2), None))
    assert verdicts(found) == all_pass() and work_of(pytests) is None


def test_work_is_counted_by_the_pytest_that_comes_after_a_fault_of_the_judge(run):
    first = [*cases(PLACES[1:]), *case(PLACES[0], FAULT)]
    again = [*case(PLACES[0]), WORK_BEGINS, write_event(WorkCounted(evidence=COUNTED))]
    found, pytests, _ = run(Script(first), Script(again))
    assert verdicts(found) == all_pass() and work_of(pytests) == COUNTED


def test_work_that_nobody_counted_is_not_made_up(run):
    _, pytests, _ = run(Script(cases(PLACES)))
    assert work_of(pytests) is None


GARBAGE = [
    *(b"", b"null", b"[]", b"9" * 5000, b"\xff\xfe", b"{" * 50_000, b"x" * 400_000),
    b'{"event": "end", "check": "plain", "index": 0, "finding": {"verdict": "perfect"}}',
    ends(("no_such_check", 0), FAIL),
    ends(("plain", 99), FAULT),
    ends(("plain", -1), FAULT),
    ends((WORK, 0), FAULT),
    *(b'{"event": "work"}', b'{"event": "work", "evidence": null}'),
    b'{"event": "work", "evidence": {"figures": {"kind": "work", "launches": "many"}}}',
]


def test_garbage_among_the_events_changes_nothing(run):
    counted = write_event(WorkCounted(evidence=COUNTED))
    lines = [line for line in (*cases(PLACES), counted) for line in (*GARBAGE, line)]
    found, pytests, told = run(Script([*lines, *GARBAGE]))
    assert verdicts(found) == all_pass() and work_of(pytests) == COUNTED
    assert len(told) == len(PLACES)


def test_a_case_that_ends_twice_counts_as_it_ended_first(run):
    lines = [*case(PLACES[0], FAIL), *case(PLACES[0], PASS), *cases(PLACES[1:])]
    found, _, told = run(Script(lines))
    assert found[PLACES[0]] == FAIL and len(told) == len(PLACES)


REPORTS = {
    "missing": None,
    "empty": "",
    "half a report": '{"tests": [{"outcome": "err',
    "nested": "[" * 100_000,
    "a test is null": '{"tests": [null]}',
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("name", REPORTS)
def test_a_report_that_is_none_changes_nothing(run, name):
    found, *_ = run(Script(cases(PLACES), report=REPORTS[name]))
    assert verdicts(found) == all_pass()


def test_the_report_is_a_file_without_a_name(run):
    _, pytests, _ = run(Script(cases(PLACES)))
    (option,) = (a for a in pytests.arguments[0] if a.startswith("--json-report-file="))
    assert option.startswith(f"--json-report-file=/proc/{os.getpid()}/fd/")


def test_lines_that_the_judges_process_did_not_write_are_no_events(run):
    check, index = PLACES[0]
    forged = Forged(write_event(CaseEnds(check=check, index=index, finding=FAIL)))
    found, _, _ = run(Script([forged, *cases(PLACES)]))
    assert verdicts(found) == all_pass()
