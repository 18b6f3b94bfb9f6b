"""`package`: what is in the zip, how an upload is graded as on Gradescope, and what is refused."""

import compileall
import io
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import zipfile

import pytest

from grader.commands import cli
from grader.commands.package import command, upload
from grader.spec.problem import ROOT, load_problem, problem_ids
from tests import once
from tests.harness import model_answer
from tests.shares import drawn
from tests.test_render_gradescope import results

FILES = {id: load_problem(id).file for id in problem_ids()}
WRONG = "def weighted_row_sum(x):\n    return x\n"


def package(*options):
    return cli.main(["package", *map(str, options)])


@pytest.fixture(scope="module")
def zipped(tmp_path_factory):
    path = tmp_path_factory.mktemp("zip") / "autograder.zip"
    assert package("gradescope", "--only", "p02", "--output", path) == 0
    return path.read_bytes()


@pytest.fixture(scope="module")
def unpacked(zipped):
    """What is in the zip, compiled once for all tests: each starts several Pythons."""

    def make(folder):
        with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
            archive.extractall(folder)
        assert compileall.compile_dir(folder, quiet=2)

    return once.folder("unpacked", make)


@pytest.fixture
def root(unpacked, tmp_path):
    """Gradescope's folders, with the autograder unpacked and this Python in the place of its own.

    Source: "File hierarchy" of Gradescope's autograder specifications.
    """
    root = tmp_path / "autograder"
    for name in ("submission", "results"):
        (root / name).mkdir(parents=True)
    shutil.copytree(unpacked, root / "source", copy_function=os.link)  # nothing writes to them
    shutil.copy(root / "source" / "run_autograder", root)
    (root / "run_autograder").chmod(0o755)
    python = root / "source" / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return root


def grade(root, **options):
    """Run the autograder; return what Gradescope would show, and its standard output."""
    done = subprocess.run(
        [str(root / "run_autograder"), str(root)],
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=100,
        **options,
    )
    assert done.returncode == 0, done.stdout
    assert os.listdir(root / "results") == ["results.json"]
    return (root / "results" / "results.json").read_text(), done.stdout


def put(root, name, text=WRONG):
    path = root / "submission" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def in_place_of_grade(root, script):
    """Have `grade` run a script of the shell instead."""
    python = root / "source" / ".venv" / "bin" / "python"
    text = python.read_text().replace("#!/bin/sh\n", "")
    python.write_text(f'#!/bin/sh\nif [ "$3" = grade ]; then {script}; fi\n{text}')


def test_the_zip_has_the_judge_and_nothing_that_tells_answers(zipped):
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
        names = archive.namelist()
        modes = {entry.filename: entry.external_attr >> 16 for entry in archive.infolist()}
    single = {"setup.sh", "run_autograder", "LICENSE", "requirements.txt", "requirements.lock"}
    assert single <= set(names)
    assert len(names) == len(set(names))
    for name in names:
        executable = name in ("setup.sh", "run_autograder")
        assert modes[name] == (stat.S_IFREG | (0o755 if executable else 0o644))
        assert not re.match(r"solutions|tests|docs|benchmarks|\.|/", name)
        assert ".." not in name and "__pycache__" not in name
        assert not name.endswith((".md", "solution.py")) and os.path.basename(name) not in set(
            FILES.values()
        )
    assert {f"problems/{id}/problem.toml" for id in FILES} <= set(names)


def test_no_line_of_an_answer_is_in_the_zip(zipped):
    """But for what students are given."""
    with zipfile.ZipFile(io.BytesIO(zipped)) as archive:
        names = [name for name in archive.namelist() if not name.startswith("problems/given/")]
        text = b"\n".join(map(archive.read, names)).decode()
    lines = {line.strip() for id in FILES for line in model_answer(id).splitlines()}
    kernels = [line for line in lines if line.startswith("def _") and "kernel" in line]
    assert len(kernels) >= 8 and not [line for line in kernels if line in text]


def test_the_same_files_make_the_same_zip(zipped, tmp_path):
    package("gradescope", "--only", "2", "--output", tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == zipped


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ([], ["minutes=10", "options=()"]),
        (["--only", "p02,p04"], ["minutes=10", "options=(--only p02,p04)"]),
        (
            ["--official", "--minutes", "40", "--only", "3"],
            ["minutes=40", "options=(--official --only p03)"],
        ),
    ],
)
def test_options_are_written_into_run_autograder(tmp_path, options, lines):
    assert package("gradescope", *options, "--output", tmp_path / "a.zip") == 0
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        script = archive.read("run_autograder").decode().splitlines()
    assert [line for line in script if line.startswith(("minutes=", "options="))] == lines


@pytest.mark.parametrize("name", ["setup.sh", "run_autograder"])
def test_scripts_are_bash(name):
    path = command.TEMPLATES / name
    assert path.read_text().startswith("#!/usr/bin/env bash\n")
    subprocess.run(["bash", "-n", path], check=True)
    assert "root=${1:-/autograder}\n" in path.read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--only", "p99"], "--only: got p99, expected some of p01"),
        (["--minutes", "1"], "--minutes: got 1, expected 2 to 40"),
        (["--minutes", "41"], "--minutes: got 41, expected 2 to 40"),
        (["--minutes", "x"], "--minutes: invalid int value: 'x'"),
        (["--output", "/no/such/a.zip"], "--output: no such folder: /no/such"),
        (["--output", "/usr"], "--output: got the folder /usr, expected a file's name"),
    ],
)
def test_what_cannot_be_packaged_is_refused(capfd, options, message):
    try:
        code = package("gradescope", *options)
    except SystemExit as stop:
        code = stop.code
    assert code == 2 and message in capfd.readouterr().err


def test_a_release_for_students_packages_nothing(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(command, "TEMPLATES", tmp_path / "templates")
    assert package("gradescope", "--output", tmp_path / "a.zip") == 2
    assert "got the students' release, expected the course's checkout" in capfd.readouterr().err


def test_a_zip_that_cannot_be_written_is_said(tmp_path, capfd, monkeypatch):
    def full(self, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    assert package("gradescope", "--output", tmp_path / "a.zip") == 4
    assert "a.zip: No space left on device" in capfd.readouterr().err


def test_an_upload_is_graded(root):
    put(root, "weighted_row_sum.py")
    text, output = grade(root)
    found = results(text)
    (test,) = found["tests"]
    assert test["name"] == "p02 Weighted row sum" and test["max_score"] == 7 and not test["score"]
    assert "wrong signature" in test["output"]
    assert "graded without a jail" in found["output"]
    assert output.startswith("p02/weighted_row_sum.py\n")  # for instructors


def test_an_answer_earns_its_points_with_the_files_of_the_zip_alone(root):
    put(root, "answers/p02/weighted_row_sum.py", model_answer("p02"))
    found = results(grade(root)[0])
    assert [test["status"] for test in found["tests"]] == ["passed"]
    assert found["score"] == found["tests"][0]["max_score"] > 0


@pytest.mark.parametrize(
    "name", drawn([None, "notes.txt", "p02/other.py", "weighted_row_sum.py/x"], 4)
)
def test_an_upload_without_a_file_of_the_assignment(root, name):
    if name:
        put(root, name)
    text, _ = grade(root)
    found = json.loads(text)
    assert found["score"] == 0 and "tests" not in found
    assert found["output"].startswith("nothing was graded: submission")
    assert "p02/weighted_row_sum.py" in found["output"] or name == "weighted_row_sum.py/x"
    assert found["stdout_visibility"] == "hidden"


def test_a_setup_that_failed_is_said(root):
    put(root, "weighted_row_sum.py")
    shutil.rmtree(root / "source" / ".venv")
    found = json.loads(grade(root)[0])
    assert found["score"] == 0 and "The autograder is not set up" in found["output"]
    assert "says nothing about the submission" in found["output"]


@pytest.mark.parametrize(
    ("script", "told"),
    drawn([
        ("exit 4", "cannot grade on this machine, or not in a jail"),
        ("exit 3", "failed before a problem was graded"),
        ("exit 1", "failed before a problem was graded"),
        ("kill -9 $$", "The time was over before a problem was graded"),
    ], 2),
)  # fmt: skip
def test_a_judge_that_ends_before_the_first_problem_is_said(root, script, told):
    put(root, "weighted_row_sum.py")
    in_place_of_grade(root, script)
    found = json.loads(grade(root)[0])
    assert found["score"] == 0 and told in found["output"]


def test_what_was_graded_stands_when_the_judge_dies(root):
    put(root, "weighted_row_sum.py")
    done = '{"score": 5, "output": "one problem"}'
    in_place_of_grade(root, f"echo '{done}' > {root}/results/results.json; kill -9 $$")
    assert json.loads(grade(root)[0])["score"] == 5


# In place of the program: its time is over as soon as the submission runs, however long that takes.
TIMEOUT = """
import os, signal, subprocess, sys, time
from grader.isolate.usage import descendants

assert sys.argv[1:5] == ["--foreground", "--signal=TERM", "--kill-after=30", "540"], sys.argv
judge = subprocess.Popen(sys.argv[5:])
while len(descendants(judge.pid)) < 3 and judge.poll() is None:
    time.sleep(0.05)
judge.terminate()
judge.wait()
sys.exit(124)
"""


def test_the_judge_is_told_to_stop_a_minute_before_the_time_is_over(root):
    put(root, "weighted_row_sum.py", "while True:\n    pass\n" + model_answer("p02"))
    timeout = root / "bin" / "timeout"
    timeout.parent.mkdir()
    timeout.write_text(f"#!{sys.executable}\n{TIMEOUT}")
    timeout.chmod(0o755)
    path = f"{timeout.parent}{os.pathsep}{os.environ['PATH']}"
    found = results(grade(root, env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)})[0])
    assert "this grading did not come to its end" in found["output"]


def test_results_are_there_before_anything_runs(root):
    put(root, "weighted_row_sum.py")
    in_place_of_grade(root, "sleep 600")
    with subprocess.Popen(
        [root / "run_autograder", root], cwd=root, stdout=subprocess.DEVNULL, start_new_session=True
    ) as running:
        path = root / "results" / "results.json"
        while not path.exists():
            time.sleep(0.01)
        os.killpg(running.pid, signal.SIGKILL)
    found = json.loads(path.read_text())
    assert found["score"] == 0 and "did not come to its first result" in found["output"]


@pytest.fixture
def lay_out(tmp_path, capsys):
    """Lay out what is in `in`; return the exit code, the answers, what was printed and told."""
    for name in ("in", "out"):
        (tmp_path / name).mkdir()

    def start():
        results = tmp_path / "results.json"
        code = upload.main([str(tmp_path / "in"), str(tmp_path / "out"), str(results)])
        found = {str(p.relative_to(tmp_path / "out")): p for p in (tmp_path / "out").rglob("*.py")}
        told = json.loads(results.read_text())["output"] if results.exists() else ""
        return code, found, capsys.readouterr().out, told

    return start


@pytest.mark.parametrize("prefix", ["", "p04/", "a/b/p04/"])
def test_files_are_found_however_they_lie(tmp_path, lay_out, prefix):
    path = tmp_path / "in" / f"{prefix}causal_attention.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x = 1\n")
    code, found, out, told = lay_out()
    assert (code, list(found), told) == (0, ["p04/causal_attention.py"], "")
    assert found["p04/causal_attention.py"].read_text() == "x = 1\n"
    assert out.startswith("p04/causal_attention.py\n")


def test_one_archive_is_looked_into(tmp_path, lay_out):
    with zipfile.ZipFile(tmp_path / "in" / "Answers.ZIP", "w") as archive:
        archive.writestr("mine/p02/weighted_row_sum.py", WRONG)
    assert list(lay_out()[1]) == ["p02/weighted_row_sum.py"]


def test_an_archive_that_is_none_is_said(tmp_path, lay_out):
    (tmp_path / "in" / "answers.zip").write_text("not a zip")
    code, found, _, told = lay_out()
    assert code == 1 and not found
    assert told.startswith("nothing was graded: answers.zip")


def test_links_and_pipes_are_not_followed(tmp_path, lay_out):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "in" / "causal_attention.py").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "in" / "gqa_attention.py")
    (tmp_path / "in" / "weighted_row_sum.py").write_text(WRONG)
    code, found, _, _ = lay_out()
    assert code == 0 and list(found) == ["p02/weighted_row_sum.py"]


def test_names_are_harmless_where_they_are_printed(tmp_path, lay_out):
    (tmp_path / "in" / "\x1b[31m\n::error::x.txt").write_text("x")
    (tmp_path / "in" / "causal_attention.py").write_text("x")
    out = lay_out()[2]
    assert "\x1b" not in out and not [li for li in out.splitlines() if li.startswith("::")]
