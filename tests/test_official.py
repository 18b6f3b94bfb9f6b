"""Official runs: what they refuse, what they say of themselves, and processes that are killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from grader.commands import cli
from grader.isolate import jail, usage, worker
from grader.spec.grade_record import GradeRecord
from grader.spec.problem import ROOT
from tests import needs
from tests.shares import drawn


@pytest.mark.parametrize("option", ["--quick", "--exitfirst", "--no-policy"])
def test_an_official_run_grades_everything(capsys, option):
    assert cli.main(["grade", "--official", option]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"grader: {option}") and "got it with --official" in err


def test_an_official_record_says_so(tmp_path):
    needs.a_jail()
    path = tmp_path / "record.json"
    command = [sys.executable, "-m", "grader", "grade", "--official", "--submission", "problems"]
    options = ["--only", "p02", "--device", "cpu", "--json", str(path)]
    run = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True)
    record = GradeRecord.model_validate_json(path.read_bytes())
    assert (run.returncode, record.mode) == (1, "official")
    assert "mode official   seed" in run.stdout and "not for credit" not in run.stdout


@pytest.mark.parametrize("often", drawn([False, True], 2))
def test_a_judge_whose_processes_are_killed_blames_no_jailed_submission(tmp_path, often):
    needs.a_jail()
    path = tmp_path / "record.json"
    command = [sys.executable, "-m", "grader", "grade", "--jail", "--submission", "solutions"]
    options = ["--only", "p02", "--device", "cpu", "--quick", "--json", str(path)]
    run = subprocess.Popen([*command, *options], cwd=ROOT, stdout=subprocess.DEVNULL)
    killed = set()
    while run.poll() is None:
        # What makes jails is a test process: its children are bubblewrap's.
        for pid in usage.descendants(run.pid):
            jails = [child for child in usage.children(pid) if command_of(child) == "bwrap"]
            if jails and command_of(pid) != "bwrap" and (often or not killed) and pid not in killed:
                time.sleep(2.0)  # until a case runs
                os.kill(pid, signal.SIGKILL)
                killed.add(pid)
        time.sleep(0.02)
    (problem,) = GradeRecord.model_validate_json(path.read_bytes()).problems
    verdicts = {check.verdict for check in problem.checks}
    if often:
        assert run.returncode == 3 and len(killed) > 1
        assert "internal" in verdicts and verdicts <= {"internal", "pass", "not-measured"}
    else:
        assert run.returncode == 0 and verdicts <= {"pass", "not-measured"}
    assert problem.points.earned == problem.points.available


def command_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return None


def test_a_jail_shows_all_that_its_workers_import():
    """What is missing there fails at the start of a worker, and in an official run alone."""
    modules = sorted({module for module, _ in worker._ROLES.values()})
    script = (
        f"import importlib, sys\nfor name in {modules}:\n    importlib.import_module(name)\n"
        "print(*(m.__file__ for m in list(sys.modules.values()) if getattr(m, '__file__', None)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    ours = [path for path in run.stdout.split() if path.startswith(f"{ROOT}/grader/")]
    shown = [str(ROOT / name) for name in jail._OWN]
    hidden = [p for p in ours if not any(p == s or p.startswith(f"{s}/") for s in shown)]
    assert ours and hidden == []
