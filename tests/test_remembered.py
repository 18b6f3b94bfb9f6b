"""Cases that alone launch a kernel: a watch compiles them at once, from its second run on."""

import dataclasses

import pytest

from grader.causes.diagnose import Casebook
from grader.isolate.compiled import Call, Compiled, compile_calls, unavailable
from grader.isolate.session import Budget, Session
from grader.judge import remembered, trial
from grader.judge.launched import Ran
from grader.judge.trial import Trial
from grader.source.submission import Source
from grader.spec.cases import resolve
from grader.spec.kernel_report import Compilation, KernelReport
from grader.spec.problem import load_problem
from grader.spec.protocol import Reply, Status
from tests.forked import forked_workers

P03, P09 = load_problem("p03"), load_problem("p09")
SEED = "5eed"
PLACE = ("sinks", 1)
SOURCE = b"""\
import torch, triton
import triton.language as tl

@triton.jit
def fill(out_ptr):
    tl.store(out_ptr + tl.arange(0, 64), 0.0)

@triton.jit
def other(out_ptr):
    tl.store(out_ptr + tl.arange(0, 64), 1.0)

def attention(q, k, v, softmax_scale=None):
    out = torch.empty_like(q)
    fill[(1,)](out)
    if softmax_scale is not None:
        other[(1,)](out)
    return out
"""


def test_what_was_noted_is_found_with_another_seed(tmp_path):
    kernels = tmp_path / "compiled"
    assert remembered.cases(kernels, P09, SEED) == remembered.cases(None, P09, SEED) == []
    remembered.note(kernels, [PLACE])
    for seed in (SEED, "1"):
        (found,) = remembered.cases(kernels, P09, seed)
        assert found == P09.cases(P09.check("sinks"), seed)[1]
    remembered.note(kernels, [])
    assert remembered.cases(kernels, P09, SEED) == []
    remembered.note(None, [PLACE])


@pytest.mark.parametrize(
    "text", ["", "{", "7", "[1]", '[["sinks", 99]]', '[["none", 0]]', '[[["sinks"], 0]]']
)
def test_what_is_no_place_is_left_out(tmp_path, text):
    (tmp_path / "compiled.json").write_text(text)
    assert remembered.cases(tmp_path / "compiled", P09, SEED) == []


@pytest.mark.skipif(bool(unavailable()), reason=f"{unavailable()}")
def test_calls_in_one_worker_are_told_apart():
    given = {"seqlen": 64, "head_dim": 64}
    plain = resolve(given, "fp16", "")
    scaled = resolve(given | {"softmax_scale": 0.5}, "fp16", "")
    calls = [Call.of(P03, case, ("out",)) for case in (plain, scaled, plain)]
    with forked_workers():
        (whole,) = compile_calls(Source("p03", SOURCE), P03, calls, capabilities=(80,))
    parts = [whole.of_call(number) for number in range(4)]
    assert [[k.kernel.kernel for k in part.kernels] for part in parts[:3]] == [
        ["fill"],
        ["other"],
        [],
    ]
    assert [part.launches for part in parts[:3]] == [1, 2, 1] and parts[3] is None


# -- what a trial makes of it -------------------------------------------------------------------

FINE = Reply(1, Status.OK, launches=2)
REFUSED = KernelReport(kernel="k", line=9, refusal={"error_type": "E", "line": 9, "text": "no"})


def made(results, refused=()):
    kernels = tuple(Compilation(capability=80, kernel=k) for k in refused)
    launches = sum(r.launches for r in results if isinstance(r, Reply))
    known = tuple([0] * (len(results) - 1) + [len(kernels)])
    return Compiled(80, kernels, tuple(results), launches, 0.1, "", known)


@pytest.mark.parametrize(
    ("found", "times"),
    [
        (made([FINE, FINE]), 1),
        (made([FINE, FINE], [REFUSED]), 2),
        (made([FINE, dataclasses.replace(FINE, status=Status.EXCEPTION)]), 2),
        (made([FINE, dataclasses.replace(FINE, launches=0)]), 2),
        (made([FINE]), 2),
        (made([dataclasses.replace(FINE, status=Status.EXCEPTION, launches=0)]), 1),
    ],
)
def test_what_did_not_go_well_behind_another_call_is_done_again(
    tmp_path, monkeypatch, found, times
):
    asked = []

    def compile_them(source, problem, calls, *, kernels):
        asked.append(calls)
        return [found if len(asked) == 1 else made([FINE])]

    monkeypatch.setattr(trial, "compile_calls", compile_them)
    kernels = tmp_path / "compiled"
    remembered.note(kernels, [PLACE])
    run = Trial(P09, SEED, Casebook(P09), compiles_ahead=True, kernels=kernels)
    source = Source("p09", b"")
    session = Session(P09, source, device="cpu", machine=True, budget=Budget(P09.limits))
    run.answered(session)
    sinks = P09.check("sinks")
    ran = [Ran(sinks, n, P09.cases(sinks, SEED)[n]) for n in (0, 1)]
    assert run.first(ran) is ran[1]  # it is being compiled
    first, more = (future.result() for future in run.compiling.values())
    assert run.compile_ahead(source, run.call_of(ran[1].case)).result() is more
    assert [len(calls) for calls in asked] == [2, 1][:times]
    assert first[0].results == found.results[:1]
    if times == 2:
        assert more == [made([FINE])]


def test_without_a_memory_the_first_case_that_ran_a_kernel_is_compiled():
    run = Trial(P09, SEED, Casebook(P09))
    sinks = P09.check("sinks")
    ran = [Ran(sinks, n, P09.cases(sinks, SEED)[n]) for n in (0, 1)]
    assert run.first(ran) is ran[0]
