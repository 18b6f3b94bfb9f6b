"""An engine that runs tasks in this process, and what a real one runs; imports no torch."""

import collections
import errno
import hashlib
import time
from concurrent.futures import Future
from types import SimpleNamespace

from parsl.executors.errors import BadStateException

from classroom.grading import GradingOutcome, Task
from grader.judge.results import NOT_REACHED
from grader.spec.grade_record import (
    CheckResult,
    ComponentResult,
    GradeRecord,
    Message,
    Points,
    ProblemResult,
)
from grader.spec.grade_record import Verdict as V
from tests.environments import CPU


class FakeEngine:
    """Runs what is submitted at once, in this process; counts."""

    workers = 2

    def __init__(self) -> None:
        self.submitted: list[Task] = []
        self.closed = 0
        self.stop_after: int | None = None

    def submit(self, function, argument):
        if self.stop_after is not None and len(self.submitted) >= self.stop_after:
            raise KeyboardInterrupt
        self.submitted.append(argument)
        future = Future()
        try:
            future.set_result(function(argument))
        except Exception as error:
            future.set_exception(error)
        return future

    def check(self):
        pass

    def close(self, *, keep_logs=False):
        self.closed += 1
        self.kept_logs = keep_logs

    @property
    def times_graded(self) -> collections.Counter:
        """How often each file was handed out, by problem and bytes."""
        return collections.Counter(item for task in self.submitted for item in task.files.items())


def problem_result(problem: str, data: bytes, earned: float = 0.0, **fields) -> ProblemResult:
    """Return what a grading makes of a file."""
    passed = CheckResult(id="plain", title="plain", verdict=V.PASS)
    component = ComponentResult(verdict=V.PASS, points=Points(earned=earned, available=7))
    given = {
        "verdict": V.PASS,
        "points": Points(earned=earned, available=7, possible=10),
        "components": {"correctness": component},
        "checks": (passed,),
        "source_sha256": hashlib.sha256(data).hexdigest(),
    }
    return ProblemResult(id=problem, title=problem, bonus=False, **given | fields)


def record_of(*problems: ProblemResult, **fields) -> GradeRecord:
    """Return a record of these problems."""
    given = {"mode": "local", "environment": CPU, "seed": "5eed", "submission": "x"}
    totals = {"totals": Points(), "bonus": Points(), "problems": problems}
    return GradeRecord(**given | totals | fields)


def unfinished(problem: str, data: bytes) -> ProblemResult:
    """Return a problem that was not reached."""
    skipped = {"verdict": V.SKIPPED, "message": Message(headline=NOT_REACHED)}
    return problem_result(problem, data, checks=(CheckResult(id="a", title="a", **skipped),))


def slow_grade(task: Task) -> GradingOutcome:
    """Grade as `fake_grade`, in half a second."""
    time.sleep(0.5)
    return fake_grade(task)


def fake_grade(task: Task) -> GradingOutcome:
    """Grade as the files say: a number is points; other words are ways to fail."""
    results = []
    for problem, data in task.files.items():
        word = data.decode().split()[0]
        if word == "lost":
            raise RuntimeError("worker lost")
        if word == "broken":
            raise BadStateException(SimpleNamespace(label="x"), RuntimeError("no more nodes"))
        if word == "killed":
            return GradingOutcome(-9, None)
        if word == "limit":
            return GradingOutcome(None, record_of(*results, interrupted=True).to_json(), "", 9.0)
        if word == "refused":
            return GradingOutcome(
                2, None, "grader: problems/p02/test_p02.py: not valid Python: x\n", 1.0
            )
        if word == "full":
            raise OSError(errno.ENOSPC, "No space left on device", "record.json")
        if word == "internal":
            judge = ComponentResult(verdict=V.INTERNAL, reason="shared memory is full")
            results.append(problem_result(problem, data, components={"correctness": judge}))
        elif word == "unfinished":
            results.append(unfinished(problem, data))
        else:
            results.append(problem_result(problem, data, float(word)))
    return GradingOutcome(0, record_of(*results).to_json(), "", 1.0)
