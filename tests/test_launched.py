"""What is judged in Triton's interpreter is what is compiled, and what a GPU runs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from grader.diagnose import Casebook
from grader.judge import CaseRun
from grader.launched import Launched
from grader.manifest import load_problem
from grader.model import Verdict
from grader.running.compiled import unavailable
from grader.running.evidence import CallEvidence
from grader.running.protocol import MAX_KERNELS, Reply, Status
from grader.source import Source
from grader.trial import Trial
from tests.forked import forked_workers
from tests.harness import SEED, judge, model_answer
from tests.hostile import reaching

P02 = load_problem("p02")
CHECKS = {check.id: check for check in P02.checks}
ONLY = "a kernel runs in Triton's interpreter and is not launched on a GPU"
TOLD = {
    "another kernel on a GPU": ONLY,
    "another kernel where it is no Python function": ONLY,
    "another kernel for the shape that is compiled": "does not compile for compute capability 8.0:"
    " unsupported AST node type: Break",
}


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with forked_workers():
        yield


def compiles(source):
    """The finding of the check that compiles, after one case."""
    judged = judge(source, P02, checks={"w_stride", "compiles"})
    assert {place[0] for place in judged.wrong} <= {"compiles"}
    return judged.findings.cases[("compiles", 0)]


@pytest.mark.skipif(bool(unavailable()), reason="nothing can be compiled here")
@pytest.mark.parametrize("entry", reaching.KERNELS, ids=lambda entry: entry.name)
def test_a_kernel_that_only_the_interpreter_runs_does_not_compile(entry):
    finding = compiles(entry.source)
    assert finding.verdict is Verdict.FAIL
    assert finding.message.headline.startswith(TOLD[entry.name])
    if TOLD[entry.name] == ONLY:
        before = entry.source[: entry.source.index("def _kernel")]
        assert finding.message.line == before.count("\n") + 1


@pytest.mark.skipif(bool(unavailable()), reason="nothing can be compiled here")
def test_a_kernel_of_other_shapes_is_compiled_too():
    one = model_answer("p02")
    start, end = one.index("@triton.jit\ndef _weighted"), one.index("def weighted_row_sum")
    other = one[start:end].replace("_weighted_row_sum_kernel", "_other")
    source = one[:end] + other + one[end:]
    source = source.replace(
        "    _weighted_row_sum_kernel[grid]",
        "    kernel = _weighted_row_sum_kernel if rows > 1000 else _other\n    kernel[grid]",
    )
    finding = compiles(source)
    assert finding.verdict is Verdict.PASS
    assert {k.kernel.kernel for k in finding.kernels} == {"_weighted_row_sum_kernel", "_other"}


def evidence(*lines, status=Status.OK):
    return CallEvidence(result=Reply(1, status, kernels=lines))


class OnGpu:
    """A session on a GPU that answers with kernels of these lines."""

    interpret = False

    def __init__(self, *lines):
        self.lines, self.cases = lines, []
        self.source = Source("p02", b"a\n" * 99)

    def call(self, case, inputs, outputs):
        self.cases.append(case)
        return evidence(*self.lines)


@pytest.mark.parametrize(
    ("interpreted", "on_gpu", "answered", "calls", "line"),
    [
        ((7,), (7,), (), 0, None),  # a case has run there
        ((7,), (), (7,), 1, None),  # its own case runs it
        ((7, 9), (7,), (9,), 1, None),
        ((7,), (9,), (9,), 1, 7),
        ((7,), (), (), 1, 7),
    ],
)
def test_on_a_gpu_the_kernels_run_that_were_interpreted(interpreted, on_gpu, answered, calls, line):
    trial = Trial(P02, SEED, Casebook(P02))
    check = CHECKS["w_stride"]
    (case, *_) = P02.cases(check, SEED, "cpu").values()
    trial.launched.note(evidence(*interpreted), check, 0, case, interpret=True)
    trial.launched.note(evidence(*on_gpu), check, 0, case, interpret=False)
    session = OnGpu(*answered)
    finding = CaseRun(trial, session, CHECKS["compiles"], 0, case)._not_on_gpu(set())
    assert len(session.cases) == calls
    assert (finding and finding.message.line) == line
    assert finding is None or (finding.verdict is Verdict.FAIL and ONLY in finding.message.headline)


@pytest.mark.parametrize("lines", [range(1, 12), range(1, MAX_KERNELS + 1)])
def test_no_kernel_hides_behind_many(lines):
    trial = Trial(P02, SEED, Casebook(P02))
    (case, *_) = P02.cases(CHECKS["w_stride"], SEED, "cpu").values()
    trial.launched.note(evidence(*lines), CHECKS["w_stride"], 0, case, interpret=True)
    session = OnGpu(*lines)
    call = session.call
    session.call = lambda *args: (
        call(*args) and evidence(*lines[: len(session.cases)])  # one more in each call
        if len(lines) < MAX_KERNELS
        else call(*args)
    )
    finding = CaseRun(trial, session, CHECKS["compiles"], 0, case)._not_on_gpu(set())
    assert finding.verdict is Verdict.FAIL
    assert finding.message.headline.startswith("too many kernels: fewer than 32 may run")


def test_the_first_case_of_a_kernel_is_kept():
    launched, cases = Launched(), [SimpleNamespace(n=n) for n in range(3)]
    for case, lines in zip(cases, ((4,), (4, 9), (2,)), strict=True):
        launched.note(evidence(*lines), None, 0, case, interpret=True)
    launched.note(CallEvidence(), None, 0, None, interpret=True)  # a call that never was
    found = [(line, first.case.n) for line, first in launched.waiting({4})]
    assert found == [(2, 2), (9, 1)]


def test_a_reply_has_room_for_so_many_kernels():
    lines = tuple(range(5, 5 + 2 * MAX_KERNELS))
    reply = Reply(1, Status.OK, kernels=lines)
    assert Reply.unpack(reply.pack()) == dataclasses.replace(reply, kernels=lines[:MAX_KERNELS])
