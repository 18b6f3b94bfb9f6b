"""What is judged without a GPU is what is compiled, and what a GPU runs."""

import dataclasses
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
import torch

from grader.checks.correctness import expect
from grader.isolate.compiled import Compiled, unavailable
from grader.isolate.evidence import CallEvidence
from grader.judge import compile_run
from grader.judge.case import CheckCase
from grader.judge.compile_run import CompileRun
from grader.judge.finding import CaseFindings
from grader.kernel.compile.absent_gpu import Memory
from grader.source.submission import Source
from grader.spec.grade_record import Verdict
from grader.spec.kernel_report import Compilation, KernelReport, Refusal
from grader.spec.problem import load_problem
from grader.spec.protocol import MAX_KERNELS, Reply, Status
from tests import forked
from tests.harness import SEED, judge, model_answer

P02 = load_problem("p02")
CHECKS = {check.id: check for check in P02.checks}
ONLY = "a kernel runs without a GPU and is not launched on one"
_DECOY = """

@triton.jit
def _decoy(x_ptr, y_ptr):
    tl.store(y_ptr, tl.load(x_ptr))


def weighted_row_sum("""
_AWAY = """\
    if x.device.type == "cuda":
        y = x[:, 0] + 0
        _decoy[(1,)](x, y)
        return y
"""
# The decoy says that it stands where the other one does.
_LIES = "_decoy.raw_src[:0] = [''] * ({} - _decoy.starting_line_number)\n"

_quick = forked.quick


def compiles(source):
    """The finding of the check that compiles, after one case."""
    judged = judge(source, P02, checks={"w_stride", "compiles"})
    assert {place[0] for place in judged.wrong} <= {"compiles"}
    return judged.findings.cases[("compiles", 0)]


@pytest.mark.skipif(bool(unavailable()), reason="nothing can be compiled here")
@pytest.mark.parametrize("lies", [False, True])
def test_a_kernel_that_only_a_cpu_runs_does_not_compile(lies):
    source = model_answer("p02").replace("\n\ndef weighted_row_sum(", _DECOY)
    call = "    check_matrix_and_vector(x, w)\n"
    source = source.replace(call, call + _AWAY)
    line = source[: source.index("def _weighted_row_sum_kernel")].count("\n") + 1
    if lies:
        source += "\n\n" + _LIES.format(line - 1)
    finding = compiles(source)
    assert finding.verdict is Verdict.FAIL
    assert finding.message.headline.startswith(ONLY) and finding.message.line == line


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


def test_a_kernel_of_other_cases_is_compiled_as_soon_as_it_has_run(monkeypatch):
    source = Source("p02", model_answer("p02").encode())
    later = P02.cases(CHECKS["w_stride"], SEED)[0]
    run = CompileRun(P02, source, SEED, True, None)
    asked, done = [], Future()
    monkeypatch.setattr(run, "_begin", asked.append)
    run.note(case_of(0, later), evidence(7, 9), machine=True)
    run._compile_more()  # nothing is being compiled
    run._begun["first"] = done
    run._compile_more()  # what that launches is not known yet
    assert asked == []

    def chip(*lines, refused=()):
        kernels = [SimpleNamespace(kernel=SimpleNamespace(line=line)) for line in lines]
        return SimpleNamespace(kernels=kernels, refused=refused)

    done.set_result([chip(7), chip(7)])
    run._compile_more()
    assert asked == [later]
    run._begun["first"] = Future()
    run._begun["first"].set_result([chip(7, refused=("x",))])
    run._compile_more()  # what is refused is told already
    run._begun["first"] = Future()
    run._begun["first"].set_result([chip(7, 9)])
    run._compile_more()  # nothing is left
    assert len(asked) == 1


_LAUNCHED = "    return y\n"  # of the model answer, behind its launch
_LOOKS = """\
    if not (y.max() - y.min() > 0):
        raise RuntimeError(
            "nothing was computed"
        )
    assert not torch.isnan(y).any(), "a NaN in y"
"""
_OTHER = """

@triton.jit
def _other(y_ptr):
    tl.store(y_ptr, tl.load(y_ptr))
"""


@pytest.mark.skipif(bool(unavailable()), reason="nothing can be compiled here")
def test_what_a_file_says_of_values_that_no_kernel_has_computed_is_no_refusal():
    """Its kernels are compiled all the same: one that it launches after that is missed."""
    looks = model_answer("p02").replace(_LAUNCHED, _LOOKS + _LAUNCHED)
    assert compiles(looks).verdict is Verdict.PASS
    hidden = looks.replace(_LAUNCHED, "    _other[(1,)](y)\n" + _LAUNCHED) + _OTHER
    assert compiles(hidden).message.headline.startswith(ONLY)
    asks = looks.replace(_LOOKS, "    y = y if torch.cuda.is_available() is False else y.gpu\n")
    assert "'Tensor' object has no attribute 'gpu'" in compiles(asks).message.headline


def test_what_no_kernel_has_filled_holds_no_nan(monkeypatch):
    torch.use_deterministic_algorithms(True)  # fills what is empty with NaN
    Memory(remembers=True).install(monkeypatch.setattr)
    try:
        made = (torch.empty(4), torch.empty_like(torch.ones(4)), torch.ones(2).new_empty(4))
        made = (*made, torch.empty(4, requires_grad=True), torch.empty_strided((4,), (2,)))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all((x == 0).all() for x in made)


def evidence(*lines, status=Status.OK, **outputs):
    return CallEvidence(result=Reply(1, status, kernels=lines), outputs=outputs)


def case_of(number, case):
    return CheckCase(P02, CHECKS["w_stride"], number, case)


class OnGpu:
    """A session on a GPU: call after call it launches kernels of these lines, right or wrong."""

    machine = False
    unusable = None
    budget = SimpleNamespace(used_up=lambda: None)

    def __init__(self, *answers, wrong=()):
        self.answers, self.wrong, self.cases = answers, wrong, []
        self.source = Source("p02", b"a\n" * 99)

    def call(self, case, inputs, names):
        number = len(self.cases)
        self.cases.append(case)
        (y,) = expect(P02, case, inputs, names).truth.values()
        y = y.to(inputs.tensors["x"].dtype) + (1.0 if number in self.wrong else 0.0)
        return evidence(*self.answers[number % len(self.answers)], y=y)


CASES = tuple(P02.cases(CHECKS["w_stride"], SEED).values())[:1] * 2


def compiles_on_gpu(session, on_cpu, on_gpu=()):
    run = CompileRun(P02, session.source, SEED, False, None)
    for number, lines in enumerate(on_cpu):
        run.note(case_of(number, CASES[number]), evidence(*lines), machine=True)
    run.note(case_of(0, CASES[0]), evidence(*on_gpu), machine=False)
    at = CheckCase(P02, CHECKS["compiles"], 0, CASES[0])
    return run.judge(session, at, CaseFindings(at, session.source, SEED, run.on_machine))


@pytest.mark.parametrize(
    ("on_cpu", "on_gpu", "answers", "calls"),
    [
        ([(7,)], (7,), [(7,)], 1),  # a case has run there
        ([(7,)], (), [(7,)], 1),  # the case that compiles runs it
        ([(7, 9)], (7,), [(7,), (9,)], 2),  # its own case does
        ([(9,)], (7,), [(7,), (7,)], 2),  # another kernel there, for this chip, and right
        ([(9,), (9,)], (7,), [(7,), (7,), (9,)], 3),
        ([(9,), (9,)], (7,), [(7,), (9,)], 2),
    ],
)
def test_kernels_that_a_gpu_runs_in_place_of_others_are_judged_there(
    on_cpu, on_gpu, answers, calls
):
    session = OnGpu(*answers)
    assert compiles_on_gpu(session, on_cpu, on_gpu).verdict is Verdict.PASS
    assert len(session.cases) == calls


@pytest.mark.parametrize("wrong", [1, 2])
def test_another_kernel_on_a_gpu_has_to_be_right_in_all_cases(wrong):
    session = OnGpu((7,), wrong=(wrong,))
    finding = compiles_on_gpu(session, [(9,), (9,)], (7,))
    assert finding.verdict is Verdict.FAIL and len(session.cases) == wrong + 1
    told = "on the GPU another kernel runs than without one, and y is wrong; "
    assert finding.message.headline.startswith(told) and finding.message.line == 9
    assert finding.message.worst and finding.message.extent


def test_no_kernel_on_a_gpu_is_told():
    finding = compiles_on_gpu(OnGpu((7,), ()), [(9,)])
    assert finding.verdict is Verdict.FAIL and finding.message.headline.startswith(ONLY)


@pytest.mark.parametrize("lines", [range(1, 12), range(1, MAX_KERNELS + 1)])
def test_no_kernel_hides_behind_many(lines):
    answers = [lines[: n + 1] for n in range(12)] if len(lines) < MAX_KERNELS else [lines]
    finding = compiles_on_gpu(OnGpu(*answers), [lines])
    assert finding.verdict is Verdict.FAIL
    assert finding.message.headline.startswith("too many kernels: fewer than 32 may run")


def test_chips_that_were_asked_for_are_compiled_for_and_decide_nothing(monkeypatch):
    refused = KernelReport(
        kernel="k", line=7, refusal=Refusal(error_type="OutOfResources", line=9, text="needs more")
    )

    def compile_calls(source, problem, calls, *, capabilities, kernels, begins):
        assert len(calls) == 1
        for capability in capabilities:
            begins(capability)
        ended = Reply(1, Status.EXCEPTION, line=3, error_type="ValueError", text="no such chip")
        compilation = Compilation(capability=86, kernel=refused)
        return [
            Compiled(86, (compilation,), (Reply(1, Status.COMPILE_FAILED),), 1, 1.0),
            Compiled(120, (), (ended,), 0, 1.0),
        ]

    monkeypatch.setattr(compile_run, "compile_calls", compile_calls)
    said = []
    session = OnGpu((7,))
    run = CompileRun(P02, session.source, SEED, False, None, (86, 120), said.append)
    at = CheckCase(P02, CHECKS["compiles"], 0, CASES[0])
    finding = run.judge(session, at, CaseFindings(at, session.source, SEED, run.on_machine))
    assert finding.verdict is Verdict.PASS
    assert said == ["compiling for 8.6", "compiling for 12.0"]
    shown = [(k.capability, k.kernel.refusal.line, k.kernel.refusal.text) for k in finding.kernels]
    assert shown[0] == (86, 9, "needs more")
    assert shown[1][:2] == (120, 3) and "no such chip" in shown[1][2]


def test_each_case_of_a_kernel_is_kept_once():
    run = CompileRun(P02, Source("p02", b""), SEED, False, None)
    cases = [case_of(number, None) for number in range(3)]
    for at, lines in zip(cases, ((4,), (4, 9), (2, 4)), strict=True):
        for _ in range(2):  # a case may be called twice
            run.note(at, evidence(*lines), machine=True)
    run.note(cases[0], CallEvidence(), machine=True)  # a call that never was
    found = [(line, [at.index for at in ran]) for line, ran in run.waiting(set())]
    assert found == [(2, [2]), (4, [0, 1, 2]), (9, [1])]
    run.note(cases[0], evidence(4), machine=False)
    assert [line for line, _ in run.waiting({9})] == [2]


def test_a_reply_has_room_for_so_many_kernels():
    lines = tuple(range(5, 5 + 2 * MAX_KERNELS))
    reply = Reply(1, Status.OK, kernels=lines)
    assert Reply.unpack(reply.pack()) == dataclasses.replace(reply, kernels=lines[:MAX_KERNELS])
