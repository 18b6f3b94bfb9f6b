"""Speed and memory of complete problems: what is evidence, and what becomes of all that fails."""

import os
import time

import pytest
import torch

from grader.isolate import session
from grader.judge import measure, measurement
from grader.spec.findings import Measured, MeasureRequest, Phase, SourceFile
from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem
from grader.spec.problem_tables import BenchmarkTable
from grader.timing import speed
from grader.timing.stopwatch import Bench
from tests.forked import forked_workers
from tests.harness import PROMPT_S, model_answer

TELLTALE = """

_right, _calls = flash_attention, []

def _naive(q, k, v):
    scores = q @ k.transpose(2, 3) / q.shape[3] ** 0.5
    hidden = torch.ones(scores.shape[2:], dtype=torch.bool).triu(1)
    scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v, scores.logsumexp(-1)

def _unwatched():
    return "[0.]" in str(torch.zeros(1)) or sys.getrecursionlimit() < 10**7

def flash_attention(q, k, v, **options):
    _calls.append(_right(q, k, v, **options) if not _calls else None)
    seqlen = q.shape[2]
"""
RIGHT = "_right(q, k, v, **options)"
# What the answer returns at the shape for speed, seqlen 256, and at those for memory.
ANSWERS = {
    "right": (RIGHT, RIGHT),
    "wrong": ("_calls[0]", "_right(0 * q, k, 0 * v, **options)"),
    "crash": ("os.abort()", "os.abort()"),
    "exception": ("{}[seqlen]", "{}[seqlen]"),
    "overwrites": ("(_calls[0], q.zero_())[0]", "(_right(q, k, v, **options), q.zero_())[0]"),
    "naive where it is timed": ("_naive(q, k, v)", RIGHT),
    "naive where nobody looks": (
        f"_naive(q, k, v) if _unwatched() else {RIGHT}",
        "_naive(q, k, v)",
    ),
}


def measured(*sources):
    """What the measuring process says of these sources: phases, and the evidence of each."""
    events = []
    measure.measure(MeasureRequest(sources=sources, device="cpu"), events.append)
    phases = [event for event in events if isinstance(event, Phase)]
    return phases, [event for event in events if isinstance(event, Measured)]


def hurried(patch):
    """Time fewer and shorter goes than a figure for credit needs."""
    patch(speed, "_MAX_SETS", 4)
    patch(speed, "_NULL_GOES", 4)


@pytest.fixture(scope="module")
def found():
    """Evidence of every answer of `ANSWERS`, measured one after the other."""
    torch.set_num_threads(1)
    shape = {"device": "cpu", "seqlen": 256, "num_q_heads": 2, "is_causal": True}
    small = BenchmarkTable.model_validate(shape)
    problem = load_problem("p01")
    # Shorter than those of problem.toml: a quarter of the numbers and less.
    memory = problem.memory.cpu.model_copy(update={"lengths": (512, 2048)})
    memory = problem.memory.model_copy(update={"cpu": memory})
    problem = problem.model_copy(update={"benchmarks": (small,), "memory": memory})
    head = "import os, sys\n" + model_answer("p01") + TELLTALE
    texts = [f"{head}    return {a} if seqlen == 256 else {b}\n" for a, b in ANSWERS.values()]
    sources = [SourceFile.of("p01", text.encode()) for text in texts]

    def sandbox(*file, **options):
        """Never fresh, which tests/test_measurement.py is about: nine would import torch."""
        return session.Sandbox(*file, **options | {"fresh": False})

    with forked_workers(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(measurement, "Sandbox", sandbox)
        patch.setattr(measurement, "load_problem", lambda problem_id: problem)
        patch.setattr(speed, "_STUDENT_BLOCKS", {"cpu": 1})
        hurried(patch.setattr)
        # Neighbours may be busy: that is the subject of another test.
        patch.setattr(measurement.performance, "MAX_DRIFT_PERCENT", 1000.0)
        phases, evidence = measured(*sources)
    return phases, dict(zip(ANSWERS, evidence, strict=True))


def test_a_timed_call_in_which_pytorch_does_the_exercise_is_refused(found):
    speed = found[1]["naive where it is timed"].speed
    assert speed.verdict is Verdict.REJECTED
    assert "PyTorch does here what you are asked to write: aten::_softmax" in speed.reason


def test_a_right_answer_has_figures_of_verified_calls(found):
    speed, memory = found[1]["right"].speed, found[1]["right"].memory
    assert speed.verdict is None and memory.verdict is None
    assert speed.figures.speedup > 0 and speed.figures.clock == "cpu"
    assert 0 < speed.figures.worst_error_over_allowed <= 1
    assert "seqlen=256" in speed.figures.shape and speed.figures.samples >= 3
    assert memory.figures.lengths == (512, 2048)
    assert memory.figures.extra_bytes[1] <= memory.figures.allowed_bytes[1]
    # The baseline keeps a matrix of 2048 x 2048 numbers of 4 bytes, 16 MiB, and more than one.
    assert memory.figures.naive_extra_bytes[1] > 2 * 16 * 2**20


def test_outputs_that_are_wrong_fail_when_they_are_timed_and_when_memory_is_measured(found):
    speed, memory = found[1]["wrong"].speed, found[1]["wrong"].memory
    assert speed.verdict is memory.verdict is Verdict.FAIL
    assert speed.reason.startswith("a timed output is wrong (")
    assert memory.reason.startswith("an output is wrong (")


def test_nothing_tells_in_which_timed_call_the_judge_looks_and_all_scores_are_too_much(found):
    evidence = found[1]["naive where nobody looks"]
    assert evidence.speed.verdict is None and evidence.memory.verdict is None
    figures = evidence.memory.figures
    assert figures.extra_bytes[1] > max(16 * 2**20, figures.allowed_bytes[1])


@pytest.mark.parametrize(
    ("answer", "verdict", "told"),
    [
        ("crash", "crash", "the process died with SIGABRT during the call"),
        ("exception", "error", "KeyError: "),
    ],
)
def test_a_call_that_fails_says_how(found, answer, verdict, told):
    for evidence in (found[1][answer].speed, found[1][answer].memory):
        assert evidence.verdict == verdict
        assert told in evidence.reason


def test_an_input_that_is_overwritten_where_it_is_timed_alone(found):
    speed = found[1]["overwrites"].speed
    assert speed.verdict is Verdict.ERROR
    assert "the input q was overwritten: it is the caller's" in speed.reason


def test_phases_say_when_the_submissions_code_runs(found):
    texts = {(phase.text, phase.submission) for phase in found[0]}
    assert {text for text, submission in texts if submission} == {
        "speed of your answer",
        "memory of your answer",
    }
    assert {text for text, submission in texts if not submission} >= {"speed of naive PyTorch"}


def test_a_worker_keeps_the_memory_of_no_call():
    problem, bench = load_problem("p01"), Bench("cpu")
    case = problem.memory_cases("cpu")[0]
    file = (model_answer("p01").encode(), problem.file, problem.entry)
    with forked_workers(), measurement._worker(*file, "cpu") as worker:
        timed, layout = bench.attach(worker), bench.layout(problem, case)
        for _ in range(3):
            bench.go(timed, problem, case, layout)
        deadline = time.monotonic() + PROMPT_S
        while (opened := _files_of(timed.worker.pid))[1] and time.monotonic() < deadline:
            time.sleep(0.01)  # it answers first and lets go then
        assert len(opened[0]) > 3 and not opened[1]


CYCLES = """
import torch

class Cycle:
    ended = 0

    def __init__(self):
        self.me = self

    def __del__(self):
        Cycle.ended += 1

def flash_attention(q, k, v, **options):
    Cycle()
    return torch.full_like(q, Cycle.ended), torch.zeros(q.shape[:3])
"""


def test_cycles_end_before_the_clock_starts_and_never_while_it_runs():
    problem, bench = load_problem("p01"), Bench("cpu")
    case = problem.memory_cases("cpu")[0]
    ended = []
    with (
        forked_workers(),
        measurement._worker(CYCLES.encode(), problem.file, problem.entry, "cpu") as worker,
    ):
        timed, layout = bench.attach(worker), bench.layout(problem, case)
        for _ in range(2):
            results = bench.go(timed, problem, case, layout, sets=3)[1]
            ended.append({int(result.outputs["out"].max()) for result in results})
    assert ended == [{0}, {3}]


def _files_of(pid: int) -> tuple[list[str], list[str]]:
    """What a process has open, and what of that is memory of a call."""
    opened = [os.readlink(entry) for entry in os.scandir(f"/proc/{pid}/fd")]
    return opened, [name for name in opened if "arena" in name]
