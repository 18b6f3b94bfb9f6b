"""`python -m grader calibrate`: what it measures, prints and writes; measurements are scripted."""

import io
import os
import re

import pytest
from rich.console import Console
from rich.status import Status

from grader.commands import cli
from grader.commands.calibrate import command
from grader.commands.calibrate.command import render
from grader.spec.findings import (
    Alive,
    Evidence,
    Measured,
    MeasureRequest,
    Phase,
    SourceFile,
    write_event,
)
from grader.spec.grade_record import SpeedFigures, Verdict
from grader.spec.problem import ROOT, load_problem, problem_ids
from grader.timing.calibration import read
from tests.environments import CPU, H200
from tests.records import write_answers

NONE = Evidence(verdict=Verdict.NOT_MEASURED, reason="elsewhere")
BUSY = Evidence(verdict=Verdict.NOT_MEASURED, reason="not measured: the machine is busy")
IDS = problem_ids()


def speed(problem_id, speedup, device="cuda", naive_ms=10.0):
    shape = str(load_problem(problem_id).benchmarks_on(device)[0])
    figures = SpeedFigures(
        speedup=speedup, naive_ms=naive_ms, shape=shape, worst_error_over_allowed=0.5
    )
    return Evidence(figures=figures)


class Measuring:
    """In place of `Children`: each process says what the next script holds, by problem."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.requests = []
        self.stopped = False

    def events(self, module, arguments, request, deadline_s, ending):
        assert (module, arguments) == ("grader.judge.measure", [])
        self.requests.append(MeasureRequest.model_validate_json(request))
        token = self.requests[-1].token
        script = self.scripts.pop(0)
        yield write_event(Alive(), token)
        for problem, evidence in script.items():
            yield write_event(Phase(problem=problem, text="speed of naive PyTorch"), token)
            if isinstance(evidence, BaseException):
                raise evidence
            yield write_event(Measured(problem=problem, speed=evidence, memory=NONE), token)
        yield write_event(Measured(problem="p02", speed=BUSY, memory=NONE), "another token")
        ending.output = "Killed"

    def stop(self):
        self.stopped = True

    def open_server(self):
        pass

    close = open_server


@pytest.fixture
def run(grader, monkeypatch, tmp_path):
    """Run `grader calibrate` with scripted measurements; return exit code, stdout and stderr."""

    def start(*options, scripts=(), environment=H200):
        monkeypatch.setattr(command, "probe", lambda device: environment)
        children = Measuring(*scripts)
        monkeypatch.setattr(command, "Children", lambda: children)
        output = tmp_path / "calibration.json"
        given = () if "--output" in options else ("--output", output)
        start.children, start.output = children, output
        return grader("calibrate", *options, *given)

    return start


def whole(factor=1.0, **others):
    values = {id: speed(id, factor * 10.0 * number) for number, id in enumerate(IDS, start=1)}
    return values | others


def test_every_problem_is_measured_so_many_times_and_written(run):
    scripts = [whole(factor) for factor in (1.0, 1.05, 0.98, 1.02, 1.0)]
    code, out, err = run(scripts=scripts)
    assert code == 0
    assert [[file.problem for file in r.sources] for r in run.children.requests] == [list(IDS)] * 5
    assert len({request.token for request in run.children.requests}) == 5
    found = read(run.output)
    assert (found.runs, found.device_name, set(found.problems)) == (5, "NVIDIA H200", set(IDS))
    assert found.problems["p03"].speedups == (30.0, 31.5, 29.4, 30.6, 30.0)
    assert found.problems["p03"].full == 18.0 and found.problems["p03"].share == 0.6
    assert re.search(r"^p03 +30x +29.4x +7.1 % +10 ms +0 % +1x +18x +0.60$", out, re.M)
    assert f"written to {os.path.relpath(run.output)}" in out
    assert max(len(line) for line in out.splitlines() if "written" not in line) <= 80
    assert re.search(r"^run 5 of 5: p01 10x  p02 20x  .*  p09 90x  .*0 s$", err, re.M)


def test_on_the_cpu_there_is_p01(run):
    scripts = [{"p01": speed("p01", value, "cpu")} for value in (4.5, 4.6, 4.3)]
    code, out, _ = run("--runs", 3, "--device", "cpu", scripts=scripts, environment=CPU)
    assert code == 0 and set(read(run.output).problems) == {"p01"}
    (file,) = run.children.requests[0].sources
    assert file.data == (ROOT / "solutions" / "p01" / "flash_attention.py").read_bytes()
    assert "x86_64   3 runs" in out


def test_a_problem_that_could_not_be_measured_has_no_targets(run):
    wrong = Evidence(verdict=Verdict.FAIL, reason="a timed output is wrong (3 x the allowed error)")
    scripts = [
        whole(p04=BUSY, p05=wrong, p06=wrong),
        whole(p05=wrong, p06=wrong),
        whole(p05=wrong),
        whole(p05=wrong),
    ]
    for script in scripts:
        del script["p09"]  # the process ends before it comes to it
    code, out, err = run("--runs", 4, scripts=scripts)
    assert code == 1
    assert set(read(run.output).problems) == set(IDS) - {"p05", "p06", "p09"}
    text = " ".join(out.split())
    told = "p05 not calibrated: measured in 0 of 4 runs, expected 3 or more; a timed output is"
    assert told in text
    assert "p06 not calibrated: measured in 2 of 4 runs, expected 3 or more" in text
    assert "p09 not calibrated: " in text and "ended early: Killed" in text
    assert "p04 -" in err and len(read(run.output).problems["p04"].speedups) == 3


def test_nothing_measured_is_the_environments_fault_and_writes_nothing(run):
    code, out, _ = run("--runs", 3, scripts=[dict.fromkeys(IDS, BUSY)] * 3)
    assert code == 4 and not run.output.exists()
    assert "p01 not calibrated: " in out and "written" not in out


def test_an_interrupt_shows_what_was_done_and_writes_nothing(run):
    scripts = [*[whole()] * 3, {"p01": KeyboardInterrupt()}]
    code, out, _ = run(scripts=scripts)
    assert code == 130 and not run.output.exists() and run.children.stopped
    assert re.search(r"^p02 +20x ", out, re.M)
    assert "interrupted after 3 of 5 runs: nothing is written" in out
    code, out, _ = run(scripts=[{"p01": KeyboardInterrupt()}])
    assert code == 130 and "interrupted after 0 of 5 runs" in out


def test_without_an_option_it_is_written_where_grade_looks(run, monkeypatch, tmp_path):
    path = tmp_path / "of this GPU.json"
    monkeypatch.setattr(command, "default_path", lambda environment: path)
    monkeypatch.setattr(command, "probe", lambda device: H200)
    monkeypatch.setattr(command, "Children", lambda: Measuring(*[whole()] * 3))
    assert cli.main(["calibrate", "--runs", "3"]) == 0
    assert read(path).runs == 3


def test_wrong_options_are_named_before_anything_runs(run, tmp_path, monkeypatch):
    code, out, err = run("--runs", 2)
    assert (code, out, err) == (2, "", "grader: --runs: got 2, expected 3 or more\n")
    code, _, err = run("--submission", "/no/such")
    assert code == 2 and "--submission: got /no/such, which is not a folder" in err
    code, _, err = run("--output", tmp_path)
    assert code == 2 and f"--output: got the folder {tmp_path}, expected a file's name" in err
    code, _, err = run("--output", "/no/such/file.json")
    assert code == 2 and "--output: no such folder: /no/such" in err
    write_answers(tmp_path / "wrong", {"p01": "import os\n"})
    code, _, err = run("--submission", tmp_path / "wrong", environment=CPU)
    assert code == 2 and "grader: --submission: p01/flash_attention.py: got " in err
    assert "expected the model answer" in err


def test_a_file_that_cannot_be_written_does_not_cost_the_table(run, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "write", full)
    code, out, err = run("--runs", 3, scripts=[whole()] * 3)
    assert code == 4 and re.search(r"^p02 +20x ", out, re.M)
    assert f"--output: cannot write {run.output}: No space left on device" in err


def test_phases_are_shown_on_a_terminal(monkeypatch):
    children = Measuring(*[{"p02": speed("p02", 4.0)}] * 3)
    monkeypatch.setattr(command, "Children", lambda: children)
    machine = H200.model_copy(update={"device_uuid": "of-the-gpu"})
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    shown = []
    monkeypatch.setattr(Status, "update", lambda self, text: shown.append(text))
    runs = command.repeat((SourceFile.of("p02", b""),), machine, 3, console)
    assert shown == [f"run {n} of 3: p02: speed of naive PyTorch" for n in (1, 2, 3)]
    assert console.file.getvalue().count("p02 4x  0 s") == 3
    assert runs.is_whole and runs.problems["p02"].median == 4.0
    # With it nobody else measures on that GPU meanwhile.
    assert {request.device_uuid for request in children.requests} == {"of-the-gpu"}


def test_hostile_text_of_a_run_does_no_harm():
    evidence = Evidence(verdict=Verdict.CRASH, reason="\x1b[2J[bold]" + "W" * 5000)
    runs = [command.TimedRun({"p02": evidence}, 1.0)] * 3
    outcome = command.summed_up(["p02"], "cuda", runs, 3)
    text = render(outcome, None)
    assert "\x1b" not in text and max(map(len, text.splitlines())) <= 80
    assert "p02 not calibrated: measured in 0 of 3 runs" in text
