"""docs/instructors.md on grading a class: its commands, engine files and figures are true."""

import os
import re
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from parsl.providers.kubernetes import kube

from classroom import grade_class, roster
from classroom.engine import BYTES_PER_WORKER, read_config
from classroom.plan import MAX_ATTEMPTS
from grader.commands import cli
from grader.spec.problem import ROOT, load_problem
from tests.environments import CPU
from tests.fake_engine import FakeEngine, fake_grade
from tests.test_class_killed import GRADE as RUN
from tests.test_collect import LAYOUTS, packed

PAGE = (ROOT / "docs" / "instructors.md").read_text(encoding="utf-8")


def section(title):
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


GRADE, RESUME = section("Grade a class"), section("Resume, retry, faults")
TEXT = " ".join((GRADE + RESUME).split())


def commands(text):
    found = re.findall(r"^python -m grader (.+)$", text, re.MULTILINE)
    return [shlex.split(line) for line in found]


def block(language):
    return re.search(rf"^```{language}\n(.*?)^```", GRADE, re.MULTILINE | re.DOTALL)[1]


def test_the_commands_do_what_the_page_says(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(grade_class.grading, "look", lambda settings: CPU)
    monkeypatch.setattr(grade_class.grading, "grade", fake_official)
    monkeypatch.setattr(grade_class, "check_set", lambda problems: None)
    engines = []

    def make_engine(options):
        engines.append(FakeEngine())
        return engines[-1]

    monkeypatch.setattr(grade_class, "make_engine", make_engine)
    file = f"p02/{load_problem('p02').file}"
    data = packed({f"ada/{file}": "7", f"bob/{file}": "killed"})
    (tmp_path / "submissions.zip").write_bytes(data)
    (tmp_path / "roster.csv").write_text("id\nada\nbob\nzoe\n")
    (tmp_path / "slurm.toml").write_text(block("toml"))
    grade, status, choose, slurm = commands(GRADE)
    assert cli.main(grade) == 3
    assert len(engines[0].submitted) == 1 + MAX_ATTEMPTS
    out = capsys.readouterr().out
    assert "not handed in 1: zoe" in out and "bob p02: the grading was killed" in out
    assert cli.main(status) == cli.main(choose) == 0
    assert cli.main(slurm) == 3 and len(engines[1].submitted) == 1  # what machine it is
    (again,) = commands(RESUME)
    assert cli.main(again) == 3 and len(engines[2].submitted) == MAX_ATTEMPTS
    rows = (tmp_path / "fall" / "gradebook-moodle.csv").read_text().splitlines()
    of_p02 = [(row.split(",")[0], row.split(",")[4]) for row in rows]
    assert of_p02 == [
        ("Identifier", "p02 Weighted row sum"),
        ("ada", "7.0"),
        ("bob", ""),
        ("zoe", "0.0"),
    ]
    assert (tmp_path / "fall").stat().st_mode & 0o077 == 0


def fake_official(task):
    """What `fake_grade` does, said to be official."""
    done = fake_grade(task)
    record = done.record and done.record.replace('"mode": "local"', '"mode": "official"')
    return type(done)(done.exit_code, record, done.last_words, done.seconds)


def test_the_other_file_is_a_configuration_for_kubernetes(monkeypatch, tmp_path):
    """With a stand-in for the package `kubernetes`, which asks a cluster when it is imported."""
    nothing = SimpleNamespace(load_kube_config=lambda: None, CoreV1Api=lambda: None)
    monkeypatch.setattr(kube, "_kubernetes_enabled", True)
    monkeypatch.setattr(kube, "config", nothing, raising=False)
    monkeypatch.setattr(kube, "client", nothing, raising=False)
    path = tmp_path / "kubernetes.toml"
    path.write_text(re.findall(r"^```toml\n(.*?)^```", GRADE, re.MULTILINE | re.DOTALL)[1])
    (executor,) = read_config(path).executors
    assert executor.address == "10.0.0.5"
    assert executor.provider.image == "registry.example.org/judge:1"
    assert executor.provider.extra_limits == {"nvidia.com/gpu": "1"}


SBATCH = """#!/bin/sh
for last; do :; done
setsid bash "$last" >/dev/null 2>&1 &
echo $! > "$FAKE/pid"
echo Submitted batch job 17
"""
SQUEUE = """#!/bin/sh
echo 17 R
"""
SCANCEL = """#!/bin/sh
kill -- -$(cat "$FAKE/pid")
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Stand-ins for Slurm's commands, which run a job here."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE), ("scancel", SCANCEL)):
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("FAKE", str(folder))
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def test_the_same_command_grades_on_slurm(slurm, tmp_path):
    """A file that is no Python, for real, on a node that is this machine."""
    path = tmp_path / "class" / "ada" / "p02" / load_problem("p02").file
    path.parent.mkdir(parents=True)
    path.write_text("def (\n")
    init = f"export PATH={Path(sys.executable).parent}:$PATH PYTHONPATH={ROOT}"
    text = block("toml").replace(
        "cd /srv/judge; . .venv/bin/activate; export PYTHONPATH=$PWD", init
    )
    text = text.replace("available_accelerators = 4\n", "").replace('cpu_affinity = "block"\n', "")
    text = text.replace("_per_node = 4", "_per_node = 1")
    (tmp_path / "slurm.toml").write_text(text)
    command = [sys.executable, "-c", RUN, tmp_path / "class"]
    command += ["--course", tmp_path / "course", "--engine", tmp_path / "slurm.toml"]
    command += ["--only", "p02", "--device", "cpu", "--quick"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert ": 1 graded" in done.stdout
    job = int((slurm / "pid").read_text())
    assert not Path(f"/proc/{job}").exists() and not (tmp_path / "course" / ".parsl").exists()


def test_layouts_columns_and_figures_are_those_of_the_code():
    assert len(re.findall(r"^\| .*<|^\| anything else", GRADE, re.MULTILINE)) == 5
    assert set(LAYOUTS) >= {"Gradescope", "Canvas", "Moodle", "clones of GitHub Classroom"}
    assert "Moodle, not in folders" in LAYOUTS
    assert "the columns id, name, email, section, login and number, of" in TEXT
    assert list(roster._COLUMNS) == ["id", "name", "email", "section", "login", "number"]
    assert f"as long as there are {BYTES_PER_WORKER >> 30} GiB" in TEXT
    assert MAX_ATTEMPTS == 3 and "After three attempts they are left blank" in TEXT
