"""The command line: what it refuses and how, exit codes, seeds, and the files it writes."""

import json
import os
import re
import stat
from pathlib import Path

import pytest

from grader import cli
from grader.checks.inputs import case_seed, make_inputs
from grader.environment import probe
from grader.grade import Grader
from grader.manifest import ROOT, load_problem, problem_ids
from grader.model import Verdict

KNOWN = ", ".join(problem_ids())
FILE = "p02/weighted_row_sum.py"


@pytest.fixture(scope="module")
def environment():
    return probe("cpu")


@pytest.fixture
def grade(monkeypatch, environment, capfd):
    """Run `grader grade` here; return exit code, stdout and stderr."""
    monkeypatch.setattr(cli, "probe", lambda device: environment)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)

    def run(*options):
        try:
            code = cli.main(["grade", "--device", "cpu", *map(str, options)])
        except SystemExit as stop:
            code = stop.code
        return code, *capfd.readouterr()

    return run


@pytest.fixture
def wrong(tmp_path):
    """A submission of p02 that is refused without running anything, and costs all its points."""
    path = tmp_path / "wrong" / FILE
    path.parent.mkdir(parents=True)
    path.write_text("def weighted_row_sum(x):\n    return x\n")
    return path.parent.parent


USAGE = {
    "no such folder": (["--submission", "/no/such"], "--submission: got /no/such, which is not a"),
    "a file": (["--submission", __file__], "is not a folder; expected one with pNN/<file>.py"),
    "unknown problem": (["--only", "p99"], f"--only: got p99, expected some of {KNOWN}"),
    "unknown among known": (["--only", "p02,p2"], f"--only: got p2, expected some of {KNOWN}"),
    "no problem": (["--only", " , "], f"--only: got nothing, expected some of {KNOWN}"),
    "seed": (["--seed", "xyz"], "--seed: got 'xyz', expected up to 32 hexadecimal digits"),
    "empty seed": (["--seed", ""], "--seed: got '', expected"),
    "long seed": (["--seed", "0" * 33], "--seed: got '000"),
    "jobs": (["--jobs", "0"], "--jobs: got 0, expected 1 or more"),
    "jobs in words": (["--jobs", "two"], "--jobs: invalid int value: 'two'"),
    "device": (["--device", "tpu"], "--device: invalid choice: 'tpu'"),
    "folder of the record": (["--json", "/no/such/file.json"], "--json: "),
    "threshold": (["--fail-under", "many"], "--fail-under: invalid float value: 'many'"),
    "unknown option": (["--fast"], "unrecognized arguments: --fast"),
}


@pytest.mark.parametrize("name", USAGE)
def test_a_wrong_option_is_named_with_got_and_expected(grade, name):
    options, message = USAGE[name]
    code, out, err = grade(*options)
    assert code == 2
    assert message in err and out == ""
    assert "Traceback" not in err


def test_no_command_is_a_usage_error(capfd):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2
    assert "COMMAND" in capfd.readouterr().err


def test_official_refuses_to_run_without_a_sandbox(grade, tmp_path):
    path = tmp_path / "record.json"
    code, out, err = grade("--official", "--json", path)
    assert code == 4
    assert "--official" in err and "sandbox" in err and out == ""
    assert not path.exists()


def test_a_gpu_that_is_not_there_is_the_environments_fault(monkeypatch, capfd):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main(["grade", "--device", "cuda"]) == 4
    assert "--device cuda: got no usable CUDA GPU" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], 1),
        (["--exit-zero"], 0),
        (["--fail-under", "0"], 0),
        (["--fail-under", "0.5"], 1),
        (["--fail-under", "1", "--exit-zero"], 0),
    ],
)
def test_exit_code_when_points_are_lost(grade, wrong, options, expected):
    code, out, _ = grade("--submission", wrong, "--only", "p02", *options)
    assert code == expected
    assert "wrong signature of weighted_row_sum" in out
    assert f"{FILE} line 1" in out


def test_a_model_answer_gets_full_marks_and_the_record_says_the_same(grade, tmp_path):
    path = tmp_path / "record.json"
    options = ("--submission", ROOT / "solutions", "--only", "p02", "--json", path)
    code, out, _ = grade(*options, "--seed", "00FF", "--fail-under", "6")
    assert code == 0
    record = json.loads(path.read_text())
    (problem,) = record["problems"]
    earned, available = problem["points"]["earned"], problem["points"]["available"]
    assert earned == available == record["totals"]["earned"] == 6
    assert record["bonus"] == {"earned": 0, "available": 0, "possible": 0}
    assert record["seed"] == "00ff" and "seed 00ff" in out
    assert re.search(rf"^p02 .* pass .* {earned}/{available}$", out, re.M)
    assert f"required {earned} / {available} available here" in out
    assert {c["verdict"] for c in problem["checks"]} == {"pass"}
    assert record["mode"] == "local" and "not for credit" in out


def test_the_record_is_written_in_one_step_and_readable(grade, wrong, tmp_path, monkeypatch):
    path = tmp_path / "out" / "record.json"
    path.parent.mkdir()
    path.write_text("old")
    seen = []
    replace = os.replace

    def watch(source, target):
        seen.append((path.read_text(), json.loads(Path(source).read_text())["schema_version"]))
        replace(source, target)

    monkeypatch.setattr(cli.os, "replace", watch)
    grade("--submission", wrong, "--only", "p02", "--json", path)
    assert seen == [("old", 1)]
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [p.name for p in path.parent.iterdir()] == ["record.json"]


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError("the judge's own")])
def test_the_record_is_written_whatever_happens(grade, wrong, tmp_path, monkeypatch, fault):
    def fail(self):
        raise fault

    monkeypatch.setattr(Grader, "_grade_performance", fail)
    path = tmp_path / "record.json"
    try:
        code, out, _ = grade("--submission", wrong, "--only", "p02,p03", "--json", path)
        assert code == 130 and "interrupted" in out
    except RuntimeError:
        assert fault is not KeyboardInterrupt
    record = json.loads(path.read_text())
    assert [p["verdict"] for p in record["problems"]] == ["error", "error"]
    assert record["interrupted"] is (fault is KeyboardInterrupt)


def wrong_numbers(folder):
    file = load_problem("p02").file
    text = (
        (ROOT / "solutions" / "p02" / file)
        .read_text()
        .replace("acc += x_tile", "acc += 2 * x_tile")
    )
    path = folder / "p02" / file
    path.parent.mkdir()
    path.write_text(text)
    return folder


def test_a_seed_repeats_the_inputs(grade, tmp_path):
    folder = wrong_numbers(tmp_path)
    first = []
    for seed in ("5eed", "5EED"):
        path = tmp_path / "record.json"
        grade("--submission", folder, "--only", "p02", "--seed", seed, "--json", path)
        (problem,) = json.loads(path.read_text())["problems"]
        assert problem["verdict"] == Verdict.FAIL
        first.append([c["message"]["first"] for c in problem["checks"] if c["message"]])
    assert first[0] == first[1] and any(first[0])
    case = load_problem("p02").check("one_block").cases[0]
    inputs = [
        make_inputs(load_problem("p02"), case, case_seed(seed, "p02", "one_block", 0)).tensors["x"]
        for seed in ("5eed", "5eee")
    ]
    assert not inputs[0].equal(inputs[1])


def test_without_a_seed_every_run_has_its_own(grade, wrong, tmp_path):
    seeds = set()
    for _ in range(2):
        path = tmp_path / "record.json"
        grade("--submission", wrong, "--only", "p02", "--json", path)
        seeds.add(json.loads(path.read_text())["seed"])
    assert len(seeds) == 2
    assert all(re.fullmatch(r"[0-9a-f]{16}", seed) for seed in seeds)
