"""Calibrations: what is made of several runs, what is refused, which machine has become slower."""

import dataclasses
import json
import re

import pytest

from grader.checks.performance import MAX_DRIFT_PERCENT
from grader.commands import cli
from grader.judge import surroundings
from grader.judge.request import Request
from grader.report import terminal
from grader.report.terminal import target_lines
from grader.spec.findings import Evidence
from grader.spec.grade_record import GradeRecord, SpeedFigures, Verdict
from grader.spec.problem import ROOT, load_problem
from grader.timing import calibration as calibration_file
from grader.timing.calibration import (
    SHARE,
    USUAL_PERCENT,
    CalibrationError,
    calibrated,
    changed_versions,
    default_path,
    find,
    of_environment,
    read,
    slower,
    write,
)
from grader.timing.choice import STATED, aimed
from tests.environments import CPU, H200
from tests.harness import model_answer
from tests.records import graded

P02, P03 = load_problem("p02"), load_problem("p03")
SHAPES = {p.id: str(p.benchmarks_on("cuda")[0]) for p in (P02, P03)}
AGAIN = "calibrate again with python -m grader calibrate"


def figures(problem_id, speedup, naive_ms=10.0, shape=None):
    shape = SHAPES[problem_id] if shape is None else shape
    return SpeedFigures(
        speedup=speedup, naive_ms=naive_ms, shape=shape, worst_error_over_allowed=0.5
    )


def runs(problem_id, *speedups, naive_ms=(10.0, 10.0, 10.4)):
    pairs = zip(speedups, naive_ms * len(speedups), strict=False)
    return [figures(problem_id, speedup, naive) for speedup, naive in pairs]


@pytest.fixture
def calibration():
    """A calibration of p02 and p03 on an H200."""
    problems = {
        "p02": calibrated(P02, "cuda", runs("p02", 3.6, 4.0, 4.1)),
        "p03": calibrated(P03, "cuda", runs("p03", 18.0, 18.5, 19.0)),
    }
    return of_environment(H200, "solutions", 3, problems)


def test_a_calibrated_problem_has_all_runs_and_their_spread():
    found = calibrated(P03, "cuda", runs("p03", 18.0, 20.0, 19.0))
    assert found.speedups == (18.0, 20.0, 19.0) and found.median == 19.0
    assert found.spread_percent == pytest.approx(11.11)
    assert (found.naive_median_ms, found.naive_spread_percent) == (10.0, 4.0)
    assert found.shape == SHAPES["p03"]
    assert (found.floor, found.full) == (1.0, 11.0)  # 0.6 of 19, two digits, rounded down
    assert found.share == pytest.approx(11 / 19, abs=1e-3)


@pytest.mark.parametrize("speedups", [(18, 19, 20), (10, 19, 20), (5, 19, 40), (0.2, 0.3, 0.31)])
def test_the_answer_earns_all_points_below_its_lowest_run_too(speedups):
    found = calibrated(P03, "cuda", runs("p03", *map(float, speedups)))
    spread = max(speedups) / min(speedups)
    assert found.full <= min(speedups) / spread
    assert found.full <= SHARE * found.median
    assert 0 < found.floor < found.full


def test_runs_of_several_shapes_are_no_calibration():
    other = str(P03.benchmarks_on("cuda")[1])
    with pytest.raises(ValueError, match="expected one: is the memory in use"):
        calibrated(P03, "cuda", [figures("p03", 2.0), figures("p03", 2.0, shape=other)])


def test_a_cpu_keeps_the_floor_that_is_stated_for_it():
    p01 = load_problem("p01")
    shape = str(p01.benchmarks_on("cpu")[0])
    found = calibrated(p01, "cpu", [figures("p01", s, shape=shape) for s in (4.0, 4.4, 4.6)])
    assert (found.floor, found.full) == (1.0, 2.6)


def test_a_calibration_is_read_as_it_was_written(calibration, tmp_path):
    path = tmp_path / "new folder" / "calibration.json"
    write(path, calibration)
    assert read(path) == calibration == find(path, H200)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    data = json.loads(path.read_text())
    assert data["schema_version"] == 1 and data["device_name"] == "NVIDIA H200"
    assert {"capability", "driver", "torch", "triton", "date", "runs"} <= set(data)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", data["date"])


def test_without_an_option_the_default_file_is_read_if_it_is_there(
    calibration, tmp_path, monkeypatch
):
    monkeypatch.setattr(calibration_file, "FOLDER", tmp_path)
    assert default_path(H200).name == "nvidia-h200.json"
    assert default_path(CPU).name == "cpu-x86-64.json"
    unnamed = CPU.model_copy(update={"device_name": "cpu"})
    assert default_path(unnamed).name == "cpu.json"
    assert find(None, H200) is None
    write(default_path(H200), calibration)
    assert find(None, H200) == calibration and find(None, CPU) is None


def test_git_ignores_the_default_folder():
    assert "/calibration/" in (ROOT / ".gitignore").read_text().splitlines()


def edited(**changes):
    return lambda data: data | changes


def of_p02(**changes):
    return lambda data: data | {"problems": {"p02": data["problems"]["p02"] | changes}}


REFUSED = {
    "another GPU": (
        edited(device_name="NVIDIA A100-SXM4-80GB"),
        "device_name: got 'NVIDIA A100-SXM4-80GB' (cuda), expected 'NVIDIA H200' (cuda)",
    ),
    "a newer schema": (
        edited(schema_version=2, problems=[]),
        "schema_version: got 2, expected 1: a newer grader wrote it; update this one",
    ),
    "no schema": (edited(schema_version="1"), "schema_version: got '1', expected"),
    "another kind": (edited(kind="benchmark"), "kind: got 'benchmark', expected"),
    "another shape": (
        of_p02(shape="rows=5 cols=5 fp32"),
        "problems.p02.shape: got 'rows=5 cols=5 fp32', expected 'rows=32768 cols=8192 fp32' or",
    ),
    "an unknown problem": (
        lambda data: data | {"problems": {"p99": data["problems"]["p02"]}},
        "problems.p99: got an unknown problem",
    ),
    "a missing key": (
        lambda data: {k: v for k, v in data.items() if k != "date"},
        "date: got nothing, expected a value",
    ),
    "an unknown key": (edited(more=1), "more: got 1, expected"),
    "no date": (edited(date="yesterday"), "date: "),
    "a target of 0": (of_p02(full=0), "problems.p02.full: got 0, expected"),
    "no number": (of_p02(full=float("nan")), "problems.p02.full: got "),
    "targets out of order": (
        of_p02(full=0.9),
        "problems.p02.full: got 0.9, expected more than floor, 1.0",
    ),
    "a list": (lambda data: [data], "got "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_calibration_that_cannot_be_used_is_named(calibration, tmp_path, name):
    change, told = REFUSED[name]
    path = tmp_path / "calibration.json"
    path.write_text(json.dumps(change(json.loads(calibration.model_dump_json()))))
    with pytest.raises(CalibrationError) as caught:
        find(path, H200)
    assert told in str(caught.value) and str(path) in str(caught.value)
    assert AGAIN in str(caught.value) or name == "an unknown problem"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"{", "not valid JSON: "),
        (b"\xff\xfe", "not valid JSON: "),
        (b" " * (2**20 + 1), "not valid JSON: more than 1 MiB"),
        (b"[" * 100_000, "not valid JSON: "),
        (None, "--calibration: got "),
    ],
)
def test_a_file_that_is_no_json_is_named(tmp_path, content, told):
    path = tmp_path / "calibration.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CalibrationError, match=re.escape(told)):
        find(path, H200)
    with pytest.raises(CalibrationError, match="cannot be read: Is a directory"):
        find(tmp_path, H200)


def test_grade_refuses_it_before_anything_runs(calibration, tmp_path, monkeypatch, capfd):
    path = tmp_path / "calibration.json"
    write(path, calibration)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(surroundings, "probe", lambda device: CPU)
    options = ["--submission", str(ROOT / "solutions"), "--calibration", str(path)]
    assert cli.main(["grade", *options]) == 2
    told = f"grader: {path}: device_name: got 'NVIDIA H200' (cuda), expected 'x86_64' (cpu)"
    out, err = capfd.readouterr()
    assert err.startswith(told) and out == ""


def test_a_calibration_counts_for_its_shape_alone(calibration):
    found = aimed(P03, figures("p03", 12.0), H200, calibration)
    assert (found.floor, found.full) == (1.0, calibration.problems["p03"].full)
    assert found.targets == f"calibrated on {calibration.day}"
    other = str(P03.benchmarks_on("cuda")[1])
    assert aimed(P03, figures("p03", 12.0, shape=other), H200, calibration).targets == STATED
    p04 = load_problem("p04")
    shape = str(p04.benchmarks_on("cuda")[0])
    assert aimed(p04, figures("p04", 12.0, shape=shape), H200, calibration).targets == STATED


@pytest.mark.parametrize(
    ("naive_ms", "spread", "is_slower"),
    [
        *((10.9, 1.0, False), (11.1, 1.0, True), (11.1, 8.0, False), (11.7, 8.0, True)),
        *((5.0, 1, False), (None, 1, False), (float("nan"), 1, False)),
    ],
)
def test_the_canary_knows_what_is_usual(calibration, naive_ms, spread, is_slower):
    known = calibration.problems["p03"].model_copy(update={"naive_spread_percent": spread})
    told = slower(known, naive_ms)
    assert (told is not None) == is_slower
    if told:
        text = f"naive took {naive_ms} ms, 10 ms when it was calibrated"
        assert told == f"this machine has become slower: {text}"


def test_two_baselines_of_one_measurement_are_usual():
    assert USUAL_PERCENT == MAX_DRIFT_PERCENT


def test_versions_that_changed_since_are_told(calibration):
    assert changed_versions(calibration, H200) == ()
    newer = H200.model_copy(update={"triton": "3.9.0"})
    told = "calibrated with triton 3.7.1, this is triton 3.9.0: calibrate again"
    assert changed_versions(calibration, newer) == (told,)


def test_record_and_report_say_which_targets_and_that_the_machine_is_slower(
    calibration, tmp_path, monkeypatch
):
    memory = Evidence(verdict=Verdict.NOT_MEASURED, reason="elsewhere")
    slow = figures("p02", 2.0, naive_ms=13.0)
    speed = {"p02": (Evidence(figures=slow), memory)}
    monkeypatch.setattr(
        "tests.records.Request",
        lambda **options: dataclasses.replace(Request(**options), calibration=calibration),
    )
    answers = {"p02": model_answer("p02")}
    record = graded(tmp_path, answers, environment=H200, measured=speed)
    found = record.problems[0].components["speed"]
    assert found.verdict is Verdict.PASS and 0 < found.points.earned < 3  # it is a ratio
    assert found.figures.full == calibration.problems["p02"].full
    assert GradeRecord.model_validate_json(record.to_json()) == record
    text = " ".join(terminal.render(record).split())
    assert f"speed targets: calibrated on {calibration.day} (p02)" in text
    slower = "this machine has become slower: naive took 13 ms, 10 ms when it was calibrated"
    assert f"note: p02: {slower}" in text


def test_problems_with_the_same_targets_are_told_together(tmp_path):
    memory = Evidence(verdict=Verdict.NOT_MEASURED, reason="elsewhere")
    answers = {id: model_answer(id) for id in ("p02", "p03", "p04")}
    speed = {id: (Evidence(figures=SpeedFigures(speedup=99.0)), memory) for id in answers}
    record = graded(tmp_path, answers, environment=H200, measured=speed)
    assert target_lines(record, 80) == ["speed targets: problem.toml (p02-p04)"]

    def noted(problem):
        speed = problem.components["speed"]
        figures = speed.figures.model_copy(update={"note": "\x1b[2Jslower", "targets": "other"})
        parts = problem.components | {"speed": speed.model_copy(update={"figures": figures})}
        return problem.model_copy(update={"components": parts})

    problems = (record.problems[0], *map(noted, record.problems[1:] * 2))
    lines = target_lines(record.model_copy(update={"problems": problems}), 80)
    assert lines[0] == "speed targets: problem.toml (p02); other (p03-p04, p03-p04)"
    assert lines[1:3] == ["note: p03: slower", "note: p04: slower"]
    assert lines[4] == "note: and of 1 more problem, see JSON=file" and len(lines) == 5
