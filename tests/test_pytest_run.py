"""What a test process shares with others: the GPU, on which a measurement wants to be alone."""

import dataclasses
import os
from types import SimpleNamespace

from grader.judge import pytest_run, sessions
from grader.judge.case import CheckCase
from grader.spec.findings import SourceFile, TestRequest
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from grader.timing import device_lock
from tests.harness import model_answer

UUID = "uuid-of-a-test-process"


class Compiling:
    """Stands for workers that compile."""

    def __init__(self, did):
        self._did = did
        did.append("compiling")

    def wait(self, seconds=None):
        self._did.append("compiled")


class Started:
    """Stands for a session, whose worker has no context on the GPU before its first call."""

    def __init__(self, device, did):
        self._device, self._did = device, did

    def start(self):
        self._did.append(f"{self._device} started")

    def close(self):
        pass


def had_alone():
    with device_lock.held(UUID, alone=True, wait_s=0.0) as had:
        return had


def test_while_a_gpu_is_measured_a_test_process_compiles_and_has_nothing_there(monkeypatch):
    source = SourceFile.of("p04", model_answer("p04").encode())
    request = TestRequest(source=source, device="cuda", seed="5eed", device_uuid=UUID)
    monkeypatch.setattr(pytest_run, "read_request", lambda fd: request.model_dump_json().encode())
    events = os.open(os.devnull, os.O_WRONLY)
    options = {"--request-fd": 0, "--events-fd": events}
    config = SimpleNamespace(getoption=lambda name: options.get(name, "."))
    did = []
    monkeypatch.setattr(sessions, "Compilers", lambda *_: Compiling(did))
    monkeypatch.setattr(sessions, "Session", lambda *_, **how: Started(how["device"], did))
    problem = load_problem("p04")
    check = problem.check("plain")
    case = dataclasses.replace(problem.cases(check, "5eed")[0], gpu=True)
    run = pytest_run.PytestRun(config)
    with device_lock.held(UUID, alone=True):
        run.begin([CheckCase(problem, check, 0, case)])
        assert did == ["compiling", "cuda started"] and not run.have_gpu(0.0)
    run.run(problem).sessions.of(CheckCase(problem, check, 0, case))
    assert did[2:] == ["compiled"] and not had_alone()
    run.close()
    assert had_alone()


def test_a_free_gpu_is_had_at_once(monkeypatch):
    request = TestRequest(
        source=SourceFile.of("p04", b""), device="cuda", seed="5eed", device_uuid=UUID
    )
    monkeypatch.setattr(pytest_run, "read_request", lambda fd: request.model_dump_json().encode())
    options = {"--request-fd": 0, "--events-fd": os.open(os.devnull, os.O_WRONLY)}
    run = pytest_run.PytestRun(SimpleNamespace(getoption=lambda name: options.get(name, ".")))
    assert run.have_gpu(0.0) and not had_alone()
    run.close()
    assert had_alone()


def test_what_keeps_a_problem_from_running_is_a_fault_of_the_judge_and_takes_no_time():
    """An error before the first call; one after it may be the submission's doing."""
    options = {"--device": "cpu", "--submission": "."}
    run, events = pytest_run.PytestRun(SimpleNamespace(getoption=options.get)), []
    source = SourceFile.of("p04", b"")
    run.request = TestRequest(source=source, device="cpu", seed="5eed", spent_s=3.0, lost_s=2.0)
    run.send = events.append
    problem = load_problem("p04")
    at = CheckCase(problem, problem.check("plain"), 1, None)
    run.ended(at, OSError("no space left"), "test_p04.py::test_plain", 0.5)
    run.run(problem).calls = 1
    run.ended(at, OSError("no space left"), "test_p04.py::test_plain", 0.5)
    run.run(problem).calls = 0
    run.run(problem).sessions.open(problem)._workers.append(None)  # it may be importing by now
    run.ended(at, OSError("no space left"), "test_p04.py::test_plain", 0.5)
    first, second, third = events
    assert (first.check, first.index, first.spent_s, first.lost_s) == ("plain", 1, 3.0, 2.0)
    assert [event.finding.verdict for event in events] == [Verdict.INTERNAL] * 3
    assert [event.finding.after_calls for event in events] == [False, True, True]
    headline = "the judge failed in test_p04.py::test_plain: OSError: no space left"
    assert {event.finding.message.headline for event in (first, second, third)} == {headline}
