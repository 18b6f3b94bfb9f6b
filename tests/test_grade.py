"""One run of the grader: what goes wrong with a problem, or between processes, stays there."""

import hashlib
import io
import json
from unittest import mock

import pytest
from rich.console import Console

from grader import api
from grader.api import Grader
from grader.commands.progress import Progress
from grader.judge import check_results
from grader.judge.request import Request
from grader.judge.scoring import exit_code
from grader.spec.findings import Alive, Evidence, Measured, MeasureRequest, Phase, write_event
from grader.spec.grade_record import (
    Amount,
    GradeRecord,
    MemoryFigures,
    Points,
    SpeedFigures,
    Verdict,
    WorkFigures,
)
from grader.spec.problem import load_problem
from tests.environments import H200
from tests.harness import model_answer
from tests.records import SEED, in_this_process, write_answers

PROBLEMS = ("p02", "p03", "p04")
SPEED = Evidence(figures=SpeedFigures(speedup=99.0, worst_error_over_allowed=0.5))
MEMORY = Evidence(figures=MemoryFigures(lengths=(1, 2), extra_bytes=(3, 4), allowed_bytes=(5, 6)))


class Measuring:
    """In place of `Children`: one measuring process after the other, as they are scripted."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.requests = []

    def events(self, module, arguments, request, deadline_s, ending):
        assert (module, arguments) == ("grader.judge.measure", [])
        assert self.scripts, "another measurement was started"
        lines, ended = self.scripts.pop(0)
        self.requests.append(MeasureRequest.model_validate_json(request))
        yield from (self.requests[-1].token.encode() + line for line in lines)
        for name, value in ended.items():
            setattr(ending, name, value)

    def stop(self, grace_s=None):
        pass

    def open_server(self, *, differentiate):
        pass

    close = stop


def phase(problem, *, submission=False):
    return write_event(Phase(problem=problem, text="speed", submission=submission))


def measured(problem, speed=SPEED, memory=MEMORY):
    return write_event(Measured(problem=problem, speed=speed, memory=memory))


def whole(*problems):
    return [line for p in problems for line in (phase(p), phase(p, submission=True), measured(p))]


@pytest.fixture
def run(tmp_path):
    """Grade three answers on a GPU that there is not; measurements are scripted."""

    def start(*scripts, answers=None, quick=False, progress=Progress, work=None, jailed=False):
        write_answers(tmp_path, answers or {p: model_answer(p) for p in PROBLEMS})
        request = Request(
            submission=tmp_path,
            shown_as="answers",
            problems=PROBLEMS,
            environment=H200,
            seed=SEED,
            jobs=1,
            quick=quick,
            jailed=jailed,
        )
        children = Measuring(*scripts)
        with in_this_process(work=work), mock.patch.object(api, "Children", lambda: children):
            grader = Grader(request, progress(Console(file=io.StringIO())))
            record = grader.run()
        assert not children.scripts, "a measurement was not started"
        assert GradeRecord.model_validate_json(record.to_json()) == record
        return {problem.id: problem for problem in record.problems}, children, record

    return start


DONE = {"exit_code": 0}
DIED = {"exit_code": -9}


def verdicts(problem):
    return problem.components["speed"].verdict, problem.components["memory"].verdict


def test_everything_is_measured_in_one_process(run):
    found, children, record = run((whole(*PROBLEMS), DONE))
    assert [file.problem for file in children.requests[0].sources] == list(PROBLEMS)
    assert [file.data.decode() for file in children.requests[0].sources] == [
        model_answer(p) for p in PROBLEMS
    ]
    assert {problem.verdict for problem in found.values()} == {Verdict.PASS}
    for problem in found.values():
        assert problem.points.earned == problem.points.available
    assert record.totals.earned == sum(problem.points.earned for problem in found.values())


@pytest.mark.parametrize(
    ("ending", "how"),
    [(DIED, "died"), ({"silent": True}, "was stopped"), ({"timed_out": True}, "was stopped")],
)
def test_a_measurement_that_ends_in_a_submission_costs_that_one_alone(run, ending, how):
    first = [*whole("p02"), phase("p03"), phase("p03", submission=True)]
    found, children, _ = run((first, ending), (whole("p04"), DONE))
    assert [file.problem for file in children.requests[1].sources] == ["p04"]
    assert verdicts(found["p03"]) == (Verdict.CRASH, Verdict.CRASH)
    told = f"the judge's measuring process {how} while your code ran"
    assert found["p03"].components["speed"].reason == told
    points = load_problem("p03").points
    assert found["p03"].points.earned == points.correctness + points.work
    for other in ("p02", "p04"):
        assert found[other].points.earned == found[other].points.available


def test_a_measurement_that_ends_in_a_jailed_submission_is_a_fault_of_the_judge(run):
    first = [*whole("p02"), phase("p03"), phase("p03", submission=True)]
    again = [phase("p03"), phase("p03", submission=True)]
    scripts = ((first, DIED), (whole("p04"), DONE), (again, DIED))
    found, children, _ = run(*scripts, jailed=True)
    assert verdicts(found["p03"]) == (Verdict.INTERNAL, Verdict.INTERNAL)
    assert found["p03"].points.earned == found["p03"].points.available
    assert {request.jailed for request in children.requests} == {True}
    found, *_ = run((first, DIED), (whole("p04"), DONE), (whole("p03"), DONE), jailed=True)
    assert {problem.verdict for problem in found.values()} == {Verdict.PASS}


def test_a_measurement_that_ends_by_itself_is_tried_once_more(run):
    first = [*whole("p02"), phase("p03")]
    found, children, _ = run((first, DIED), (whole("p03", "p04"), DONE))
    assert [file.problem for file in children.requests[1].sources] == ["p03", "p04"]
    assert {problem.verdict for problem in found.values()} == {Verdict.PASS}


def test_a_measurement_that_ends_twice_is_a_fault_of_the_judge(run):
    dead = DIED | {"output": "CUDA error: no device\n"}
    found, *_ = run((whole("p02"), DIED), ([phase("p03")], dead))
    assert found["p02"].verdict is Verdict.PASS
    for lost in ("p03", "p04"):
        assert verdicts(found[lost])[0] is Verdict.INTERNAL
        reason = found[lost].components["speed"].reason
        assert reason == "the measurement ended early: CUDA error: no device"
        assert found[lost].points.earned == found[lost].points.available


GARBAGE = [
    *(b"", b"[]", b"null", b"\xff\xfe", b"9" * 5000, b"{" * 10_000),
    write_event(Alive()),
    phase("p09", submission=True),  # nobody asked for it
    measured("p09"),
    b'{"event": "measured", "problem": "p03", "speed": {}, "memory": 7}',
]


def test_garbage_among_the_events_changes_nothing(run):
    lines = [line for event in whole(*PROBLEMS) for line in (*GARBAGE, event)]
    found, *_ = run((lines, DONE))
    assert {problem.verdict for problem in found.values()} == {Verdict.PASS}


def test_what_was_measured_twice_counts_as_it_was_first(run):
    slow = Evidence(figures=SpeedFigures(speedup=0.5, worst_error_over_allowed=0.5))
    lines = [*whole("p02"), measured("p02", slow), *whole("p03", "p04")]
    found, *_ = run((lines, DONE))
    assert found["p02"].components["speed"].figures.speedup == 99.0


@pytest.mark.parametrize("evidence", [Evidence(), MEMORY])
def test_evidence_without_the_figures_of_speed_earns_none(run, evidence):
    found, *_ = run(([*whole("p02", "p04"), measured("p03", evidence)], DONE))
    speed = found["p03"].components["speed"]
    assert speed.points.earned == 0 and speed.verdict is Verdict.INTERNAL


def test_only_what_is_correct_is_measured(run):
    answers = {p: model_answer(p) for p in PROBLEMS} | {"p03": "def attention():\n    return 1\n"}
    found, children, _ = run((whole("p02", "p04"), DONE), answers=answers)
    assert [file.problem for file in children.requests[0].sources] == ["p02", "p04"]
    speed = found["p03"].components["speed"]
    told = "not awarded: it rests on plain, lse, half, ragged, which do not pass"
    assert (speed.verdict, speed.reason) == (Verdict.SKIPPED, told)
    assert speed.points.available == load_problem("p03").points.speed


def test_an_answer_keeps_what_does_not_rest_on_the_checks_that_fail(run, monkeypatch):
    """Here all but the arguments pass; a TF32 dot, too, costs no more than its check."""

    def fails(problem, findings, **how):
        results = judged(problem, findings, **how)
        wrong = {"verdict": Verdict.FAIL, "share": 0.0}
        return [r.model_copy(update=wrong if r.id in failing else {}) for r in results]

    judged = check_results.check_results
    monkeypatch.setattr(check_results, "check_results", fails)
    points = load_problem("p03").points
    failing = {"arguments", "ieee"}
    found, children, _ = run((whole(*PROBLEMS), DONE))
    kept = {name: part.points.earned for name, part in found["p03"].components.items()}
    assert kept.pop("correctness") < points.correctness
    assert kept == {name: getattr(points, name) for name in kept}
    failing = {"half"}  # which what is timed and measured needs, and what is counted does not
    found, children, _ = run((whole("p02"), DONE))
    assert [file.problem for file in children.requests[0].sources] == ["p02"]
    kept = {name: part.points.earned for name, part in found["p03"].components.items()}
    assert kept["work"] == points.work and kept["speed"] == kept["memory"] == 0


def test_quick_measures_nothing(run):
    found, *_ = run(quick=True)
    assert {verdict for p in found.values() for verdict in verdicts(p)} == {Verdict.NOT_MEASURED}
    assert {problem.verdict for problem in found.values()} == {Verdict.PASS}


def counted(done):
    return Evidence(
        figures=WorkFigures(multiply_adds=Amount(done=done, needed=100, naive=200), full=1.1)
    )


def test_quick_still_counts_work(run):
    found, _, record = run(quick=True, work={"p03": counted(200), "p04": counted(100)})
    worth = {p: load_problem(p).points for p in PROBLEMS}
    assert {p: found[p].components["work"].points.earned for p in PROBLEMS} == {
        "p02": worth["p02"].work,
        "p03": 0,
        "p04": worth["p04"].work,
    }
    assert found["p03"].components["work"].figures.multiply_adds.ratio == 2.0
    assert found["p03"].verdict is Verdict.PASS
    available = sum(points.correctness + points.work for points in worth.values())
    assert record.totals.available == available
    assert record.totals.earned == available - worth["p03"].work
    assert exit_code(record) == 1


def test_work_that_is_not_counted_beside_complete_correctness_is_a_fault_of_the_judge(run):
    found, _, record = run(quick=True, work={"p03": None})
    work = found["p03"].components["work"]
    assert (work.verdict, work.reason) == (Verdict.INTERNAL, "the judge recorded no count of work")
    assert found["p03"].points.earned == found["p03"].points.available
    assert work.points == Points(possible=load_problem("p03").points.work)
    assert exit_code(record) == 3


def test_work_is_not_counted_beside_incomplete_correctness(run):
    answers = {p: model_answer(p) for p in PROBLEMS} | {"p03": "def attention():\n    return 1\n"}
    found, *_ = run(quick=True, answers=answers, work={"p03": counted(100)})
    work = found["p03"].components["work"]
    told = "not awarded: it rests on plain, which does not pass"
    assert (work.verdict, work.reason) == (Verdict.SKIPPED, told)
    assert work.points.earned == 0
    assert work.points.available == load_problem("p03").points.work


@pytest.mark.parametrize(
    ("evidence", "verdict", "available"),
    [
        (Evidence(verdict=Verdict.CRASH, reason="died"), "crash", 2),
        (Evidence(verdict=Verdict.FAIL, reason="kernels read 0 elements"), "fail", 2),
        (Evidence(verdict=Verdict.NOT_MEASURED, reason="no interpreter"), "not-measured", 0),
        (Evidence(verdict=Verdict.INTERNAL, reason="OSError"), "internal", 0),
        (Evidence(), "internal", 0),
        (SPEED, "internal", 0),
        (Evidence(figures=WorkFigures()), "internal", 0),
    ],
)
def test_work_without_figures_earns_nothing_and_costs_nothing_else(
    run, evidence, verdict, available
):
    found, *_ = run(quick=True, work={"p03": evidence})
    work = found["p03"].components["work"]
    assert (work.verdict, work.points.earned, work.points.available) == (verdict, 0, available)
    assert found["p03"].points.earned == load_problem("p03").points.correctness
    assert found["p03"].components["correctness"].verdict is Verdict.PASS


def test_a_fault_of_the_judge_stays_with_its_problem(run):
    answers = {p: model_answer(p) for p in PROBLEMS}
    answers["p03"] = "# fault\n" + answers["p03"]
    found, *_ = run((whole("p02", "p04"), DONE), answers=answers)
    assert {check.verdict for check in found["p03"].checks} == {Verdict.INTERNAL}
    assert found["p03"].points.available == 0
    for other in ("p02", "p04"):
        assert found[other].points.earned == found[other].points.available


def test_a_file_that_is_saved_or_deleted_meanwhile_changes_nothing(run, tmp_path):
    class Swapping(Progress):
        def phase(self, problem_id, text):
            super().phase(problem_id, text)
            path = tmp_path / "p02" / load_problem("p02").file
            if path.exists():
                path.unlink() if problem_id == "p03" else path.write_text("raise SystemExit\n")

    found, children, _ = run((whole(*PROBLEMS), DONE), progress=Swapping)
    source = model_answer("p02").encode()
    assert found["p02"].verdict is Verdict.PASS
    assert found["p02"].source_sha256 == hashlib.sha256(source).hexdigest()
    assert children.requests[0].sources[0].data == source


def test_the_record_of_a_run_that_was_stopped_has_every_problem(run, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(Grader, "_grade_correctness", interrupt)
    found, _, record = run()
    assert record.interrupted and list(found) == list(PROBLEMS)
    assert {problem.verdict for problem in found.values()} == {Verdict.SKIPPED}
    assert record.totals.earned == 0 and json.loads(record.to_json())["interrupted"] is True
