"""A set of problems that somebody broke by hand: what is wrong is said before anything happens."""

import os
import shutil
import subprocess
import sys

import pytest

from grader.judge import set_check
from grader.spec import problem as manifest
from grader.spec.problem import ROOT, problem_ids, read_problem

TESTS, TOML = "problems/p04/test_p04.py", "problems/p04/problem.toml"
LAST = "def test_compiles(case):"


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A copy of the problems, which takes the place of this checkout's."""
    shutil.copytree(ROOT / "problems", tmp_path / "problems", symlinks=True)
    monkeypatch.setattr(manifest, "PROBLEMS", tmp_path / "problems")
    monkeypatch.setattr(set_check, "ROOT", tmp_path)

    def load(id):
        return read_problem(tmp_path / "problems" / id / "problem.toml")

    monkeypatch.setattr(set_check, "load_problem", load)
    return tmp_path


def change(path, old, new):
    text = path.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), "utf-8")


def test_the_set_of_this_checkout_is_whole():
    set_check.check_set(problem_ids())


@pytest.mark.parametrize(
    ("path", "old", "new", "words"),
    [
        (TESTS, LAST, "def test_compiles(case:", f"{TESTS}, line 89: SyntaxError: "),
        (TESTS, LAST, "def test_compile(case):", f"{TESTS}: got test_compile, expected test_compi"),
        (TESTS, LAST, "def compiles(case):", f"{TESTS}: got no test more, expected test_compiles"),
        (TESTS, "import reference", "import referenc", f"{TESTS}, line 6: ModuleNotFoundError: No"),
        (TESTS, "case.agrees_with", "case.agree_with", f"{TESTS}, line 11: AttributeError: "),
        (TESTS, "reference.causal_attention", "reference.causal", f"{TESTS}, line 11: Attribute"),
        (TESTS, "causal_attention)", "gqa_attention)", f"{TESTS}, line 11: AssertionError: got gq"),
        (TESTS, "case.compiles()", "case.is_refused()", f"{TESTS}, line 91: AssertionError"),
        (TOML, 'id = "arguments"', 'id = "args"', f"{TOML}: steps: 1: turns_green: got"),
        (TOML, 'given = ["arg', 'given = ["no", "arg', "problems/p04: ModuleNotFoundError: "),
    ],
)  # fmt: skip
def test_what_is_broken_is_said_with_its_place(checkout, capsys, path, old, new, words):
    change(checkout / path, old, new)
    assert set_check.main(["p02", "p04"]) == 1
    out = capsys.readouterr().out
    assert words in out and len(out.splitlines()) == 1


def test_a_file_that_is_not_there(checkout, capsys):
    (checkout / TESTS).unlink()
    assert set_check.main(["p04"]) == 1
    assert capsys.readouterr().out.startswith("problems/p04: FileNotFoundError: ")


def test_what_cannot_be_checked_is_not_the_sets_fault(monkeypatch):
    def fails(*_, **__):
        return subprocess.CompletedProcess([], 1, "", "Traceback\nModuleNotFoundError: torch\n")

    monkeypatch.setattr(set_check.subprocess, "run", fails)
    with pytest.raises(set_check.EnvironmentFault, match="cannot be checked: ModuleNotFoundError"):
        set_check.check_set(("p02",))


def test_a_broken_set_is_neither_released_nor_graded(tmp_path, monkeypatch, grader):
    root = tmp_path / "checkout"
    ignored = shutil.ignore_patterns(".git", ".venv", "tests", "benchmarks")
    shutil.copytree(ROOT, root, symlinks=True, ignore=ignored)
    change(root / TESTS, LAST, "def test_compiles(case:")
    done = subprocess.run(
        [sys.executable, "-m", "grader", "release", str(tmp_path / "students")],
        cwd=root,
        env=os.environ | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and done.stderr.startswith(f"grader: {TESTS}, line "), done
    assert done.stderr.endswith("mend or restore the file, then run again\n")
    assert len(done.stderr.splitlines()) == 1 and not (tmp_path / "students").exists()

    answer = tmp_path / "class" / "ada" / "p02" / "weighted_row_sum.py"
    answer.parent.mkdir(parents=True)
    answer.write_text("x = 1\n")
    broken = subprocess.CompletedProcess([], 1, f"{TESTS}, line 89: SyntaxError\n")
    monkeypatch.setattr(set_check.subprocess, "run", lambda *_, **__: broken)
    course = tmp_path / "course"
    code, _, err = grader("class", "grade", tmp_path / "class", "--course", course)
    mend = "mend or restore the file, then run again"
    assert (code, err) == (2, f"grader: {TESTS}, line 89: SyntaxError; {mend}\n")
    assert not (course / ".parsl").exists()
