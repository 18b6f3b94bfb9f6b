"""Commands forgive: spellings of P=, make in a problem's folder, pytest outside of the environment.

Each either works or says what to type, in the words that were typed.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from grader.commands import cli
from grader.commands.cli import in_words_of_make
from grader.spec.problem import PROBLEMS, ROOT, problem_ids
from tests.shares import drawn

needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


@pytest.fixture
def make(tmp_path):
    """Run a target somewhere; return exit code, stdout and stderr."""

    def run(*words, folder=ROOT):
        state = {"XDG_STATE_HOME": str(tmp_path), "MAKEFLAGS": ""}
        done = subprocess.run(
            ["make", "-s", f"PY={sys.executable}", *words],
            cwd=folder,
            env=os.environ | state,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    return run


@needs_make
@pytest.mark.parametrize("word", ["P=4", "p=4"])
def test_the_problem_goes_from_make_to_the_grader(make, word):
    for target in ("grade", "hint", "explain", "lint"):
        assert '--only "4"' in make("-n", target, word)[1]
    assert make("explain", word)[1].startswith("p04, Causal attention\n")


@pytest.mark.parametrize("word", ["4", "p04", "P04", "p4", "04", " p04,"])
def test_any_spelling_of_a_problem_will_do(grader, word):
    assert grader("explain", "--only", word)[1].startswith("p04, Causal attention\n")


@pytest.mark.parametrize("word", ["p01 p02", "1,2", "p02 P01", "p01, p02"])
def test_several_problems_may_be_apart_by_blanks_or_commas(grader, word):
    out = grader("explain", "--only", word)[1]
    assert "p01, Flash" in out and "p02, Weighted" in out and "p03, " not in out


OFFICIAL = ["grade", "--official"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["grade", "--only", "x7"], "--only (P= of make): got x7, expected some of p01"),
        (["hint", "--only", "1,2"], "--only (P= of make): got p01, p02, expected one problem"),
        (["grade", "--seed", "xyz"], "--seed (SEED= of make): got 'xyz'"),
        (["grade", "--device", "gpu"], "argument --device (DEVICE= of make): invalid choice"),
        (
            ["grade", "--chips", "9"],
            "--chips (CHIPS= of make): got '9', expected all, or some of 7.5",
        ),
        (["grade", "--json", "/no/such/x"], "--json (JSON= of make): no such folder"),
        ([*OFFICIAL, "--quick"], "--quick (QUICK= of make): got it with --official"),
        ([*OFFICIAL, "--exitfirst"], "--exitfirst (X= of make): got it with --official"),
        (["grade", "--submission", "/no"], "--submission (SUBMISSION= of make): got /no, which"),
        (["lint", "/no"], "DIR (SUBMISSION= of make): got /no, which is not a folder"),
        (["quiz", "--level", "9"], "argument --level (LEVEL= of make): invalid choice: '9'"),
        (["quiz", "--topic", "x"], "--topic (TOPIC= of make): got 'x'"),
        (["explain", "SCALE"], "ID: got 'SCALE', expected one that `make explain` lists"),
    ],
)
def test_a_usage_error_speaks_of_what_was_typed(grader, words, told):
    code, out, err = grader(*words)
    assert (code, out) == (2, "") and told in err


@needs_make
def test_without_any_python_make_doctor_says_so(make):
    code, _, err = make("doctor", "PY=no-python", "PYTHON=no-python")
    assert code == 2 and "got no no-python, expected Python 3.11" in err


def test_words_of_make():
    told = "--device cuda (DEVICE=cuda of make): got x"
    assert in_words_of_make("--device cuda: got x", "grade") == told
    for same in ("--jobs: got 0", told, "see --json: it", "ID: got 'x'"):
        assert in_words_of_make(same, "grade") == same
    for command in ("calibrate", "class", "package", ""):
        assert in_words_of_make("--device cuda: got x", command) == "--device cuda: got x"


def test_targets_are_those_of_the_makefile():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(re.findall(r"-m grader (\w+)", makefile)) == {*cli.COMMANDS} - {*cli._NOT_OF_MAKE}


@needs_make
@pytest.mark.parametrize("problem", problem_ids())
def test_make_in_a_problems_folder_is_about_that_problem(make, problem):
    _, out, _ = make("-n", "grade", "SEED=1f", folder=PROBLEMS / problem)
    assert f'--only "{problem}"' in out and '--seed "1f"' in out


@needs_make
def test_make_in_a_folder_grades_that_problem_and_writes_the_record_there(make, tmp_path):
    folder = PROBLEMS / "p04"
    code, out, _ = make("grade", "QUICK=1", "DEVICE=cpu", f"JSON={tmp_path}/r.json", folder=folder)
    assert code == 0 and "p04 step 1" in out
    record = json.loads((tmp_path / "r.json").read_text())
    assert [problem["id"] for problem in record["problems"]] == ["p04"]
    code, out, _ = make("-n", "grade", "JSON=r.json", folder=folder)
    assert f'JSON="{folder}/r.json"' in out
    assert '--only "p02"' in make("-n", "grade", "P=p02", folder=folder)[1]
    _, out, _ = make(folder=folder)
    assert "make grade" in out and "make hint" in out


def test_pytest_in_a_problems_folder():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"],
        cwd=PROBLEMS / "p04",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "p04 step 1" in done.stdout


@pytest.mark.parametrize("missing", drawn(["torch", "triton", "pydantic", "numpy", "rich"], 5))
def test_pytest_outside_of_the_environment_says_what_to_type(missing):
    code = f"import runpy, sys; sys.modules[{missing!r}] = None;"
    done = subprocess.run(
        [sys.executable, "-c", f"{code} runpy.run_path({str(ROOT / 'conftest.py')!r})"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert done.stderr.startswith(f"{missing} is not installed for {sys.executable}; ")
    assert f"make -C '{ROOT}' setup && '{ROOT}/.venv/bin/pytest'" in done.stderr
    assert f"make -C '{ROOT}' doctor" in done.stderr


def test_the_command_line_knows_all_that_the_makefile_calls():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("grade", "hint", "explain", "doctor", "lint", "quiz"):
        assert f"-m grader {command}" in text
        with pytest.raises(SystemExit) as ended:
            cli.main([command, "--help"])
        assert ended.value.code == 0
