"""The command line: what it refuses and how, exit codes, seeds, and what it shows."""

import io
import json
import re
import subprocess
import sys

import pytest

from grader import api
from grader.commands import cli
from grader.commands.grade import command
from grader.isolate import capacity
from grader.judge import surroundings
from grader.spec.findings import Evidence
from grader.spec.grade_record import GradeRecord, SpeedFigures, Verdict
from grader.spec.problem import ROOT, ManifestError, load_problem, problem_ids
from tests.environments import CPU, H200
from tests.harness import model_answer
from tests.records import in_this_process, write_answers

KNOWN = ", ".join(problem_ids())
FILE = "p02/weighted_row_sum.py"
SLOW = Evidence(figures=SpeedFigures(speedup=1.8, worst_error_over_allowed=0.5))
NONE = Evidence(verdict=Verdict.NOT_MEASURED, reason="not measured on this device")


@pytest.fixture
def run(grader, monkeypatch):
    """Run `grader grade` here; return exit code, stdout and stderr."""

    def start(*options, environment=CPU):
        monkeypatch.setattr(surroundings, "probe", lambda device: environment)
        return grader("grade", "--device", "cpu", *options)

    return start


@pytest.fixture
def wrong(tmp_path):
    """A submission of p02 that is refused without running anything, and costs all its points."""
    folder = tmp_path / "wrong"
    write_answers(folder, {"p02": "def weighted_row_sum(x):\n    return x\n"})
    return folder


@pytest.fixture
def right(tmp_path):
    folder = tmp_path / "right"
    write_answers(folder, {"p02": model_answer("p02")})
    return folder


USAGE = {
    "a result for Classroom 50 of no job": (
        ["--classroom50", "result.json"],
        "--classroom50: got no CLASSROOM, ASSIGNMENT, OWNER, ASSIGNMENT_TYPE, SUBMISSION_TAG,"
        " COMMIT_URL, RELEASE_URL, REVIEW_URL in the environment",
    ),
    "no such folder": (["--submission", "/no/such"], "got /no/such, which is not a folder"),
    "a file": (["--submission", __file__], "is not a folder; expected one with pNN/<file>.py"),
    "unknown problem": (["--only", "p99"], f"got p99, expected some of {KNOWN}"),
    "unknown among known": (["--only", "p02,q2"], f"got q2, expected some of {KNOWN}"),
    "no problem": (["--only", " , "], f"got nothing, expected some of {KNOWN}"),
    "seed": (["--seed", "xyz"], "got 'xyz', expected up to 32 hexadecimal digits"),
    "empty seed": (["--seed", ""], "got '', expected"),
    "long seed": (["--seed", "0" * 33], "got '000"),
    "jobs": (["--jobs", "0"], "--jobs: got 0, expected 1 or more"),
    "jobs in words": (["--jobs", "two"], "--jobs: invalid int value: 'two'"),
    "device": (["--device", "tpu"], "--device (DEVICE= of make): invalid choice: 'tpu'"),
    "folder of the record": (
        ["--json", "/no/such/file.json"],
        "--json (JSON= of make): no such folder: /no/such",
    ),
    "record that is a folder": (
        ["--json", str(ROOT)],
        f"--json (JSON= of make): got the folder {ROOT}, expected",
    ),
    "folder of a summary": (
        ["--markdown", "/no/such/a.md"],
        "--markdown: no such folder: /no/such",
    ),
    "summary that is a folder": (["--markdown", str(ROOT)], f"--markdown: got the folder {ROOT}"),
    "one file for two": (
        ["--markdown", "tests/../a", "--json", "a"],
        "--markdown: got tests/../a, the file of --json; expected another",
    ),
    "threshold": (["--fail-under", "many"], "--fail-under: invalid float value: 'many'"),
    "negative threshold": (["--fail-under", "-1"], "--fail-under: got -1.0, expected 0 to 150"),
    "no threshold": (["--fail-under", "nan"], "--fail-under: got nan, expected 0 to 150 points"),
    "unknown option": (["--fast"], "unrecognized arguments: --fast"),
}


@pytest.mark.parametrize("name", USAGE)
def test_a_wrong_option_is_named_with_got_and_expected(run, name):
    options, message = USAGE[name]
    code, out, err = run(*options)
    assert code == 2
    assert options[0] in err or name == "unknown option"
    assert message in err and out == ""
    assert "Traceback" not in err


def test_no_command_is_a_usage_error(capfd):
    with pytest.raises(SystemExit) as stop:
        cli.main([])
    assert stop.value.code == 2
    assert "COMMAND" in capfd.readouterr().err


@pytest.mark.parametrize("only", ["p02", "P02", "2", "p2", "02", " p02 , "])
def test_a_problem_may_be_named_as_people_name_it(run, wrong, only):
    code, out, _ = run("--submission", wrong, "--only", only)
    assert code == 1 and out.splitlines()[-1].startswith("1 problem: ")


def test_problems_are_graded_in_order_and_once(run, wrong):
    _, out, _ = run("--submission", wrong, "--only", "p03, p02 p02")
    assert [line[:3] for line in out.splitlines() if re.match(r"p\d\d ", line)] == ["p02", "p03"]


def test_a_gpu_that_is_not_there_is_the_environments_fault(monkeypatch, capfd):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    assert cli.main(["grade", "--device", "cuda"]) == 4
    assert "--device cuda (DEVICE=cuda of make): got no usable CUDA GPU" in capfd.readouterr().err


def test_a_problem_toml_that_cannot_be_used_is_a_usage_error(run, wrong, monkeypatch):
    def broken(problem_id):
        raise ManifestError("problem.toml: points: got nothing, expected a value")

    monkeypatch.setattr(command, "load_problem", broken)
    code, _, err = run("--submission", wrong, "--only", "p02")
    assert (code, err) == (2, "grader: problem.toml: points: got nothing, expected a value\n")


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
def test_exit_code_when_points_are_lost(run, wrong, options, expected):
    code, out, _ = run("--submission", wrong, "--only", "p02", *options)
    assert code == expected
    assert "wrong signature of weighted_row_sum" in out
    assert f"{FILE} line 1" in out


def test_full_marks_and_the_record_says_the_same(run, right, tmp_path):
    path = tmp_path / "record.json"
    options = ("--submission", right, "--only", "p02", "--json", path, "--seed", "00FF")
    with in_this_process():
        code, out, err = run(*options, "--fail-under", "7")
    assert code == 0
    record = GradeRecord.model_validate_json(path.read_text())
    (problem,) = record.problems
    assert problem.points.earned == problem.points.available == record.totals.earned == 7
    assert record.seed == "00ff" and "seed 00ff" in out
    assert re.search(r"^p02 .* pass .* 6/6 +1/1 .* 7/7$", out, re.M)
    assert re.search(r"^p02  pass  \d+/\d+ cases  7/7 points  ", err, re.M)
    assert record.mode == "local" and "not for credit" in out
    assert record.submission == str(right)


def test_some_speed_missing_is_a_pass_that_lost_points(run, right, tmp_path):
    path = tmp_path / "record.json"
    options = ("--submission", right, "--only", "p02", "--json", path)
    with in_this_process({"p02": (SLOW, NONE)}):
        code, out, _ = run(*options, environment=H200)
    (problem,) = GradeRecord.model_validate_json(path.read_text()).problems
    speed = problem.components["speed"]
    assert problem.verdict is speed.verdict is Verdict.PASS
    assert code == 1 and 0 < speed.points.earned < speed.points.available
    assert "p02 speed: 1.9 of 3: 1.8x naive; no points at 1x" in out


def test_quick_leaves_speed_and_memory_out(run, right, tmp_path):
    path = tmp_path / "record.json"
    options = ("--submission", right, "--only", "p02", "--json", path, "--quick")
    with in_this_process({"p02": (SLOW, NONE)}):
        code, out, _ = run(*options, environment=H200)
    (problem,) = GradeRecord.model_validate_json(path.read_text()).problems
    assert problem.components["speed"].verdict is Verdict.NOT_MEASURED
    assert code == 0 and "not measured: QUICK=1" in out


def test_work_that_is_too_much_costs_points_and_the_exit_code_says_so(run, tmp_path):
    old = "end_key = tl.minimum(query_start + BLOCK_M, seqlen)"
    source = model_answer("p04").replace("if key_start >= full_end", "if key_start >= 0")
    folder, path = tmp_path / "wasteful", tmp_path / "record.json"
    write_answers(folder, {"p04": source.replace(old, "end_key = seqlen")})
    with in_this_process():
        code, out, _ = run("--submission", folder, "--only", "p04", "--json", path, "--map")
    (problem,) = GradeRecord.model_validate_json(path.read_text()).problems
    assert problem.verdict is Verdict.PASS and code == 1
    points = problem.components["work"].points
    assert points.earned == 0 and points.available == load_problem("p04").points.work
    assert "p04 work: 0 of 2: 1.50x the multiply-adds that are needed" in out
    assert "o loaded, not needed" in out


@pytest.mark.parametrize("option", ["--map", None])
def test_the_map_is_shown_when_it_is_asked_for(run, wrong, monkeypatch, option):
    asked = []
    monkeypatch.setattr(command.terminal, "render", lambda *_, maps, **__: asked.append(maps) or "")
    run("--submission", wrong, "--only", "p02", *([option] if option else []))
    assert asked == [option is not None]


@pytest.mark.parametrize("option", ["-x", "--exitfirst", None])
def test_x_ends_a_problem_at_its_first_failure(run, right, monkeypatch, option):
    given = []

    class Asked:
        def __init__(self, problem, source, request, *_, **__):
            given.append(request.exit_first)
            raise OSError("far enough")

    monkeypatch.setattr(api, "TestRun", Asked)
    with pytest.raises(OSError, match="far enough"):
        run("--submission", right, "--only", "p02", *([option] if option else []))
    assert given == [option is not None]


def test_a_seed_repeats_the_inputs(run, tmp_path):
    text = model_answer("p02").replace("acc += products", "acc += 2 * products")
    write_answers(tmp_path / "answers", {"p02": text})
    first = []
    for seed in ("5eed", "5EED", "5eee"):
        path = tmp_path / "record.json"
        with in_this_process():
            run("--submission", tmp_path / "answers", "--only", "2", "--seed", seed, "--json", path)
        (problem,) = GradeRecord.model_validate_json(path.read_text()).problems
        assert problem.verdict is Verdict.FAIL
        first.append(next(c.message.first for c in problem.checks if c.message))
    assert first[0] == first[1] != first[2]


def test_without_a_seed_every_run_has_its_own(run, wrong, tmp_path):
    seeds = set()
    for _ in range(2):
        path = tmp_path / "record.json"
        run("--submission", wrong, "--only", "p02", "--json", path)
        seeds.add(json.loads(path.read_text())["seed"])
    assert len(seeds) == 2
    assert all(re.fullmatch(r"[0-9a-f]{16}", seed) for seed in seeds)


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("variables", "colour"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, False), ({"TERM": "dumb"}, False)],
)
def test_colour_is_for_terminals_that_want_it(run, wrong, monkeypatch, variables, colour):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    run("--submission", wrong, "--only", "p02")
    assert ("\x1b[" in stream.getvalue()) is colour
    assert "wrong signature" in stream.getvalue()


@pytest.mark.parametrize("options", [[], ["--jail"]])
def test_a_machine_without_the_memory_for_one_problem_is_refused(run, wrong, monkeypatch, options):
    least = surroundings._LEAST_BYTES[bool(options)]
    monkeypatch.setattr(surroundings.inspection, "inspect", lambda gpu: None)
    for free, codes in ((least - 1, {4}), (least, {1})):
        monkeypatch.setattr(capacity, "free_bytes", lambda free=free: free)
        code, _, err = run("--submission", wrong, "--only", "p02", *options)
        assert code in codes
        assert (f"got {free >> 20} MiB of free memory, expected" in err) is (code == 4)


def test_commands_import_no_torch_to_begin_with():
    """It takes two seconds: the processes that compute import it, while the command goes on."""
    names = [f"grader.commands.{name}.command" for name in cli.COMMANDS if name != "class"]
    names.append("classroom.command")
    code = f"import importlib, sys; [importlib.import_module(name) for name in {names}]"
    code += "; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
