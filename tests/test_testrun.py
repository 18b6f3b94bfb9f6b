"""The tests of one problem in pytest processes that end in every way: what was earned is kept.

`Children` is replaced by a script: what each pytest would have written, and how it ended.
"""

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.base import scratch
from grader.isolate.processes import Ending
from grader.judge import testrun
from grader.judge.request import Request
from grader.judge.testrun import TestRun
from grader.spec.findings import (
    Alive,
    CaseBegins,
    CaseEnds,
    CauseFound,
    Finding,
    TestRequest,
    write_event,
)
from grader.spec.grade_record import Diagnosis, Message, Verdict
from grader.spec.problem import read_problem
from tests.environments import CPU
from tests.test_manifest import TEXT, write

PASS = Finding(verdict=Verdict.PASS)
FAIL = Finding(verdict=Verdict.FAIL, message=Message(headline="out is wrong"))
FAULT = Finding(verdict=Verdict.INTERNAL, message=Message(headline="the judge failed: OSError"))
PROVOKED = FAULT.model_copy(update={"after_calls": True})
SEED = "5eed0123456789ab"
PLACES = [
    *(("plain", 0), ("plain", 1), ("lse", 0), ("half", 0), ("half", 1), ("half", 2)),
    *(("ragged", 0), ("ragged", 1), ("arguments", 0)),
]


@dataclasses.dataclass
class Script:
    """One pytest: the lines it writes, how it ends, and its report file (None: it writes none).

    A line may be a function, which is called when its turn comes.
    """

    lines: list
    ending: Ending = dataclasses.field(default_factory=lambda: Ending(exit_code=0))
    report: str | bytes | None = '{"tests": []}'


class Forged(bytes):
    """A line that somebody else has written into the pipe."""


class Pytests:
    """In place of `Children`: plays one script after the other and remembers what was asked."""

    kernels = None

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.requests = []
        self.arguments = []
        self.testrun = None

    def events(self, module, arguments, request, deadline_s, ending):
        assert module == "pytest" and deadline_s > 100
        assert self.scripts, "another pytest was started"
        script = self.scripts.pop(0)
        self.arguments.append(arguments)
        self.requests.append(TestRequest.model_validate_json(request))
        for line in script.lines:
            told = line(self.testrun) if callable(line) else line
            yield told if isinstance(told, Forged) else self.requests[-1].token.encode() + told
        (path,) = (a.partition("=")[2] for a in arguments if a.startswith("--json-report-file="))
        if script.report is not None:
            report = script.report
            Path(path).write_bytes(report if isinstance(report, bytes) else report.encode())
        vars(ending).update(vars(script.ending))


def asked(problem, seed, **options):
    """What a grading of one problem on the CPU is asked for."""
    options |= {"environment": CPU, "seed": seed, "shown_as": "answers"}
    return Request(submission=Path("answers"), problems=(problem.id,), **options)


def begins(place):
    return write_event(CaseBegins(check=place[0], index=place[1]))


def ends(place, finding=PASS, **spent):
    return write_event(CaseEnds(check=place[0], index=place[1], finding=finding, **spent))


def case(place, finding=PASS, **spent):
    return [begins(place), ends(place, finding, **spent)]


def cases(places, finding=PASS):
    return [line for place in places for line in case(place, finding)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the scripts; return findings, the pytests that were asked for, and what was reported."""
    problem = read_problem(write(tmp_path, TEXT))
    monkeypatch.setattr(scratch, "folder", lambda: tmp_path)

    def start(*scripts, **options):
        told = []
        pytests = Pytests(*scripts)
        testrun = TestRun(
            problem,
            b"# answer\n",
            asked(problem, SEED, **options),
            pytests,
            on_case=lambda check, verdict: told.append((check, verdict)),
        )
        pytests.testrun = testrun
        found = testrun.run().cases
        assert not pytests.scripts, "a pytest was not started"
        return found, pytests, told

    return start


def verdicts(found):
    return {place: finding.verdict for place, finding in found.items()}


def all_pass(*but):
    return {place: Verdict.PASS for place in PLACES if place not in but}


def died(**how):
    return Ending(**({"exit_code": -9} | how))


def test_one_pytest_runs_all_cases(run):
    found, pytests, told = run(Script([write_event(Alive()), *cases(PLACES)]))
    assert verdicts(found) == all_pass()
    (request,) = pytests.requests
    assert request.policy
    assert request.source.data == b"# answer\n" and request.source.problem == "p04"
    assert (request.seed, request.device, request.done) == (SEED, "cpu", ())
    assert told == [(check, Verdict.PASS) for check, _ in PLACES]


def test_no_command_line_shows_the_seed_or_the_source(run):
    _, pytests, _ = run(Script(cases(PLACES)))
    assert not [a for a in pytests.arguments[0] if SEED in a or "answer" in a]
    assert "--noconftest" in pytests.arguments[0] and "-x" not in pytests.arguments[0]


def test_causes_are_kept(run):
    diagnosis = Diagnosis(id="P04-DIAGONAL", title="t", note="n", help="h")
    cause = CauseFound(diagnosis=diagnosis, step=2, cases=(("plain", 0), ("half", 2)))
    _, pytests, _ = run(Script([*cases(PLACES, FAIL), write_event(cause)]))
    findings = pytests.testrun.findings
    assert findings.causes == [cause]
    assert findings.cause_of([("half", 2)]) == cause
    assert findings.cause_of([("half", 0)]) is None


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        (died(), "died"),
        (died(exit_code=-11), "died"),
        (died(exit_code=0), "died"),  # os._exit(0) in a process that is not its own
        (died(exit_code=3), "died"),
        (died(silent=True), "was stopped"),
        (died(timed_out=True), "was stopped"),
    ],
)
def test_a_pytest_that_ends_in_a_case_costs_that_case(run, ending, how):
    first = [*cases(PLACES[:1]), begins(PLACES[1])]
    found, pytests, told = run(Script(first, ending, None), Script(cases(PLACES[2:])))
    crash = found.pop(("plain", 1))
    assert verdicts(found) == all_pass(("plain", 1))
    assert crash.verdict is Verdict.CRASH
    assert crash.message.headline == f"the judge's test process {how} while your code ran"
    assert crash.message.test == "test_plain" and crash.message.help
    assert set(pytests.requests[1].done) == {("plain", 0), ("plain", 1)}
    assert told.count(("plain", Verdict.CRASH)) == 1 and len(told) == len(PLACES)


@pytest.mark.parametrize("ending", [died(), died(silent=True), died(timed_out=True)])
def test_a_pytest_that_ends_in_a_case_of_a_jailed_submission_is_started_again(run, ending):
    first = [*cases(PLACES[:1]), begins(PLACES[1])]
    found, pytests, _ = run(Script(first, ending, None), Script(cases(PLACES[1:])), jailed=True)
    assert verdicts(found) == all_pass()
    assert [(r.jailed, r.lost_s) for r in pytests.requests] == [(True, 0.0)] * 2


def test_one_that_ends_twice_in_cases_of_it_is_a_fault_of_the_judge(run):
    first = [*cases(PLACES[:1]), begins(PLACES[1])]
    again = [*cases(PLACES[1:2]), begins(PLACES[2])]
    found, *_ = run(Script(first, died(), None), Script(again, died(), None), jailed=True)
    assert verdicts(found) == {
        place: Verdict.PASS if place in PLACES[:2] else Verdict.INTERNAL for place in PLACES
    }
    assert found[PLACES[2]].message.headline.startswith("the test run died: ")


def test_no_fault_of_the_judge_is_laid_to_a_jailed_submission(run):
    provoked = case(PLACES[-1], PROVOKED)
    found, *_ = run(Script(cases(PLACES[:-1]) + provoked), Script(provoked), jailed=True)
    assert found[PLACES[-1]].verdict is Verdict.INTERNAL
    died_between = [Script(cases(PLACES[:2]), died(), None), Script([], died(), None)]
    found, *_ = run(*died_between, jailed=True)
    assert found[PLACES[-1]].verdict is Verdict.INTERNAL


def test_every_case_may_end_its_pytest(run):
    found, pytests, _ = run(*(Script([begins(place)], died(), None) for place in PLACES))
    assert verdicts(found) == dict.fromkeys(PLACES, Verdict.CRASH)
    assert len(pytests.requests) == len(PLACES)


def test_the_next_pytest_goes_on_with_the_budget_of_the_last(run):
    first = [*case(PLACES[0], spent_s=12.5, lost_s=3.5), begins(PLACES[1])]
    _, pytests, _ = run(Script(first, died(), None), Script(cases(PLACES[2:])))
    assert pytests.requests[0].spent_s == pytests.requests[0].lost_s == 0
    assert pytests.requests[1].spent_s == 12.5
    assert 3.5 < pytests.requests[1].lost_s < 13.5  # and the time of the pytest that died


def test_what_a_pytest_takes_that_dies_is_lost_from_its_last_case_on(run, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(testrun, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def wait(seconds):
        def line(testrun):
            clock[0] += seconds
            return b""

        return line

    _, pytests, _ = run(
        Script([wait(5), begins(PLACES[0]), wait(1)], died(), None),  # all of it for nothing
        Script([wait(5), *case(PLACES[1], lost_s=6), begins(PLACES[2]), wait(30)], died(), None),
        Script(cases(PLACES[3:])),
    )
    assert [request.lost_s for request in pytests.requests] == [0, 6, 36]


def test_a_pytest_that_dies_once_between_two_cases_costs_nothing(run):
    found, pytests, _ = run(
        Script(cases(PLACES[:3]), died(), None), Script(cases(PLACES[3:]), died(exit_code=1))
    )
    assert verdicts(found) == all_pass()
    assert set(pytests.requests[1].done) == set(PLACES[:3])


def test_one_that_dies_twice_after_the_submission_ran_was_killed_by_it(run):
    found, *_ = run(
        Script(cases(PLACES[:3]), died(), None), Script(cases(PLACES[3:4]), died(), None)
    )
    assert {verdicts(found)[place] for place in PLACES[:4]} == {Verdict.PASS}
    rest = [found[place] for place in PLACES[4:]]
    assert {f.verdict for f in rest} == {Verdict.CRASH}
    headline = "not run: the test process died after your code had run in another"
    assert {f.message.headline for f in rest} == {headline}


@pytest.mark.parametrize("ending", [died(output="ImportError: torch\n"), died(exit_code=4)])
def test_one_that_dies_twice_before_anything_ran_is_a_fault_of_the_judge(run, ending):
    found, *_ = run(Script([], ending, None), Script([], ending, None))
    assert verdicts(found) == dict.fromkeys(PLACES, Verdict.INTERNAL)
    last = "ImportError: torch" if ending.output else "no output"
    assert found[("plain", 0)].message.headline == f"the test run died: {last}"


def test_cases_that_a_pytest_left_out_are_a_fault_of_the_judge(run):
    found, *_ = run(Script(cases(PLACES[:3]), Ending(exit_code=1, output="3 passed")))
    assert {found[place].verdict for place in PLACES[3:]} == {Verdict.INTERNAL}
    assert found[PLACES[3]].message.headline == "the test run died: 3 passed"


def test_results_that_pytest_has_and_the_judge_did_not_hear_of_were_taken_away(run):
    report = json.dumps({"tests": [{"outcome": "failed", "call": {}}] * len(PLACES)})
    found, *_ = run(Script(cases(PLACES[:3]), Ending(exit_code=1), report))
    assert {found[place].verdict for place in PLACES[:3]} == {Verdict.PASS}
    rest = [found[place] for place in PLACES[3:]]
    assert {f.verdict for f in rest} == {Verdict.CRASH}
    assert rest[0].message.headline.startswith("the result did not arrive: your code did")


def test_an_end_without_a_report_is_none(run):
    found, *_ = run(Script(cases(PLACES[:3]), report=None), Script(cases(PLACES[3:])))
    assert verdicts(found) == all_pass()


def test_a_fault_of_the_judge_is_tried_once_more(run):
    first = [*cases(PLACES[:3]), *case(PLACES[3], FAULT), *cases(PLACES[4:])]
    found, pytests, _ = run(Script(first), Script(case(PLACES[3], FAIL)))
    assert found.pop(PLACES[3]) == FAIL
    assert verdicts(found) == all_pass(PLACES[3])
    assert set(pytests.requests[1].done) == set(PLACES) - {PLACES[3]}


@pytest.mark.parametrize(("again", "verdict"), [(FAULT, "internal"), (PROVOKED, "crash")])
def test_a_fault_that_comes_back_is_the_judges_unless_calls_brought_it_about(run, again, verdict):
    scripts = [
        Script([*cases(PLACES[1:]), *case(PLACES[0], PROVOKED)]),
        Script(case(PLACES[0], again)),
    ]
    found, *_ = run(*scripts)
    assert found[PLACES[0]].verdict == verdict
    assert found[PLACES[0]].message.headline == "the judge failed: OSError"
    assert bool(found[PLACES[0]].message.help) == (verdict == "crash")
    assert verdicts(found) | {PLACES[0]: Verdict.PASS} == all_pass()


def test_the_first_failure_ends_the_run_when_that_is_asked(run):
    lines = [*cases(PLACES[:2]), *case(PLACES[2], FAIL)]
    found, pytests, _ = run(Script(lines, Ending(exit_code=1)), exit_first=True)
    assert list(found) == PLACES[:3]
    assert "-x" in pytests.arguments[0]
    assert pytests.testrun.findings.missing == "not run: stopped at the first failure"


def test_a_crash_is_a_first_failure_too(run):
    found, *_ = run(Script([begins(PLACES[0])], died(), None), exit_first=True)
    assert verdicts(found) == {PLACES[0]: Verdict.CRASH}


def test_an_interrupted_run_keeps_what_it_has_and_blames_nobody(run):
    def interrupt(testrun):
        testrun.interrupted = True
        return begins(PLACES[2])

    found, *_ = run(Script([*cases(PLACES[:2]), interrupt], died(exit_code=2), None))
    assert verdicts(found) == dict.fromkeys(PLACES[:2], Verdict.PASS)
