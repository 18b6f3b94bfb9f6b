"""`python -m grader stability N`: what is counted, told and written; gradings are scripted."""

import json
import re

import pytest

from grader.commands import cli
from grader.commands.stability import command
from grader.commands.stability.spread import exit_code, spreads, to_json
from grader.commands.stability.view import render
from grader.judge import scoring, surroundings
from grader.spec.grade_record import (
    ComponentResult,
    GradeRecord,
    Points,
    ProblemResult,
    SpeedFigures,
    Verdict,
)
from tests.records import H200, SEED, graded

WRONG = {"p02": "def weighted_row_sum(x):\n    return x\n"}


def problem(id, earned, available, speedup=None, verdict=Verdict.PASS, seconds=2.0):
    possible = 10.0
    speed = ComponentResult(
        verdict=Verdict.PASS,
        points=Points(earned=earned, available=available, possible=possible),
        figures=SpeedFigures(speedup=speedup) if speedup else None,
    )
    return ProblemResult(
        id=id,
        title=f"Problem {id}",
        bonus=False,
        verdict=verdict,
        points=speed.points,
        components={"speed": speed},
        duration_s=seconds,
    )


def record(*problems, seconds=60.0, interrupted=False):
    totals, bonus = scoring.total(problems)
    return GradeRecord(
        mode="local",
        environment=H200,
        seed=SEED,
        submission="answers",
        problems=problems,
        totals=totals,
        bonus=bonus,
        interrupted=interrupted,
        duration_s=seconds,
    )


STEADY = [record(problem("p02", 9.5 + d, 10, 3.6 + d), seconds=50 + 10 * d) for d in (0, 0.5, 0.4)]
SHAKY = [record(problem("p02", e, 10, 2.0), problem("p03", 4, 10)) for e in (8.9, 10.0, 9.5)]
# In the second grading the machine was busy: speed was not measured and cost nobody points.
BUSY = [record(problem("p02", *points)) for points in ((10, 10, 3.6), (7, 7), (10, 10, 3.5))]


def test_points_and_speedups_of_all_runs_are_counted():
    (found,) = spreads(STEADY)
    assert (found.points, found.range, found.is_stable) == ((9.5, 10.0, 9.9), 0.5, True)
    assert found.speedups == (3.6, 4.1, 4.0) and found.seconds == (2.0, 2.0, 2.0)
    assert exit_code(STEADY, whole=True) == 0


def test_more_than_a_point_is_not_stable():
    found = spreads(SHAKY)
    assert [(row.id, row.range, row.is_stable) for row in found] == [
        ("p02", 1.1, False),
        ("p03", 0.0, True),
    ]
    assert exit_code(SHAKY, whole=True) == 1
    one = [record(problem("p02", earned, 10)) for earned in (8.7, 9.7)]
    assert exit_code(one, whole=True) == 0  # a point, but for the noise of binary fractions


def test_what_was_not_measured_in_a_run_is_no_change_of_points():
    (found,) = spreads(BUSY)
    assert (found.points, found.range) == ((10.0, 10.0), 0.0)
    assert exit_code(BUSY, whole=True) == 0
    assert re.search(r"^p02 +10 +10 +10 +10 +0 .* 2/3$", render(BUSY, 3), re.M)


def test_faults_and_interrupts_have_their_own_exit_codes():
    internal = [record(problem("p02", 0, 0, verdict=Verdict.INTERNAL)), *SHAKY]
    nothing = [record(problem("p02", 0, 0, verdict=Verdict.NOT_MEASURED))] * 2
    assert exit_code(internal, whole=True) == 3
    assert exit_code(nothing, whole=True) == 4
    assert exit_code(SHAKY, whole=False) == exit_code([], whole=False) == 130
    assert re.search(r"^p02 +0 +- +- +- +- +0/2$", render(nothing, 2), re.M)


def test_the_table_has_a_row_per_problem_and_fits():
    text = render(SHAKY, 3)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^p02 +10 +8.9 +9.5 +10 +1.1 +2x +2x +2x +3/3$", text, re.M)
    assert re.search(r"^p03 +10 +4 +4 +4 +0 +3/3$", text, re.M)
    assert text.endswith("points differ by more than 1 point: p02\n")
    assert "3 gradings of 50 to 55 s, median 54 s" in render(STEADY, 3)
    assert "points differ by no more than 1 point in any problem" in render(STEADY, 3)
    assert render([], 3) == "interrupted before one grading was done\n"
    assert "interrupted: 2 of 5 gradings were done" in render(STEADY[:2], 5)
    wide = record(problem("p02", 133.3, 150, 186.4), problem("p03\x1b[2J", 1, 1, 1e5))
    text = render([wide] * 2, 2)
    assert max(map(len, text.splitlines())) <= 80 and "\x1b" not in text
    assert "\x1b[31m" in render(SHAKY, 3, color=True)


def test_the_file_holds_table_and_records():
    data = json.loads(to_json(SHAKY, 5))
    assert (data["schema_version"], data["kind"], data["wanted"]) == (1, "stability", 5)
    p02, p03 = data["problems"]
    assert p02["points"] == [8.9, 10.0, 9.5] and (p02["median"], p02["range"]) == (9.5, 1.1)
    assert p02["stable"] is False and p03["stable"] is True and p02["seconds"] == [2.0] * 3
    records = [GradeRecord.model_validate(record) for record in data["records"]]
    assert records == SHAKY


# -- the command ----------------------------------------------------------------------------------


class Gradings:
    """In place of `Grader`: one scripted record after the other."""

    def __init__(self, script):
        self.script = list(script)
        self.requests = []

    def __call__(self, request, progress):
        self.requests.append(request)
        return self

    def run(self):
        found = self.script.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


@pytest.fixture
def run(monkeypatch, capfd):
    """Run `grader stability` with scripted gradings; return exit code, stdout and stderr."""
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(surroundings, "probe", lambda device: H200)

    def start(*options, script=()):
        start.gradings = Gradings(script)
        monkeypatch.setattr(command, "Grader", start.gradings)
        return cli.main(["stability", *map(str, options)]), *capfd.readouterr()

    return start


def test_every_grading_has_a_seed_of_its_own(run, tmp_path):
    path = tmp_path / "stability.json"
    options = ("3", "--only", "p02", "--json", path)
    code, out, err = run(*options, script=STEADY)
    assert code == 0 and re.search(r"^p02 .* 3/3$", out, re.M)
    seeds = [request.seed for request in run.gradings.requests]
    assert len(set(seeds)) == 3 and all(len(seed) == 16 for seed in seeds)
    assert {request.problems for request in run.gradings.requests} == {("p02",)}
    assert "grading 1 of 3\n" in err and "grading 3 of 3\n" in err
    assert len(json.loads(path.read_text())["records"]) == 3


@pytest.mark.parametrize("end", [KeyboardInterrupt(), record(interrupted=True)])
def test_an_interrupt_keeps_what_was_done(run, tmp_path, end):
    path = tmp_path / "stability.json"
    code, out, _ = run("5", "--json", path, script=[*STEADY[:2], end])
    assert code == 130 and "interrupted: 2 of 5 gradings were done" in out
    assert re.search(r"^p02 .* 2/2$", out, re.M)
    assert len(json.loads(path.read_text())["records"]) == 2
    code, out, _ = run("5", script=[end])
    assert (code, out) == (130, "interrupted before one grading was done\n")


def test_wrong_options_are_named(run, tmp_path):
    assert run("1") == (2, "", "grader: N: got 1, expected 2 or more gradings\n")
    assert "--only: got p99" in run("2", "--only", "p99")[2]
    assert "--submission: got /no/such, which is no" in run("2", "--submission", "/no/such")[2]
    assert "--json: got the folder" in run("2", "--json", tmp_path)[2]
    code, _, err = run("2", "--json", "/no/such/file.json")
    assert code == 2 and "--json: no such folder: /no/such" in err


def test_a_file_that_cannot_be_written_says_so(run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "write_whole", full)
    path = tmp_path / "stability.json"
    code, _, err = run("2", "--json", path, script=STEADY)
    assert code == 4 and f"--json: cannot write {path}: No space left on device" in err


def test_records_of_the_judge_are_stable_when_nothing_is_measured(tmp_path):
    records = [graded(tmp_path, WRONG) for _ in range(2)]
    (row,) = spreads(records)
    assert row.range == 0 and exit_code(records, whole=True) == 0
