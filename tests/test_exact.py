"""Exact mode: right formulas are right in it, and a rounding is named where it alone is wrong."""

from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

from grader.checks.correctness import expect
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Budget, Session
from grader.judge.case import CheckCase
from grader.kernel import given
from grader.kernel.machine.engine import Engine
from grader.kernel.machine.exact import Exact
from grader.source.submission import Source
from grader.spec.grade_record import Verdict
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem, problem_ids
from tests import forked
from tests.harness import cases_of, edited, model_answer, run_of
from tests.on_machine import machine_in_process
from tests.shares import drawn
from tests.trials import right_answers

_quick = forked.quick

# 16 x 16 elements of x, of y or of z; others are computed from what the lines round that say so.
# fmt: off


@triton.jit
def computes_in_16_bits(x, y, z, n):
    i = tl.arange(0, 16)
    whole = i[:, None] * 16 + i[None, :]
    acc = tl.zeros((16, 16), tl.float32)
    total = tl.zeros((16,), tl.float16)
    deep = tl.zeros((16, 16), tl.float32)
    for _ in range(n):
        tile = tl.load(x + whole)
        acc = tl.dot(tile, tile, acc)
        acc = acc.to(tl.float16).to(tl.float32)  # here
        total = total * 0.3 + tl.sum(tile.to(tl.float32), 1).to(tl.float16)  # here
        for _ in range(2):
            deep += tile
        deep = deep.to(tl.bfloat16).to(tl.float32)  # here
    rows = tl.sum(tl.load(x + whole), 1)  # here
    waited = tl.zeros((16, 16), tl.float32)
    while n > 0:
        waited = (waited + tl.load(x + whole)).to(tl.float16).to(tl.float32)  # here
        n -= 1
    for _ in tl.static_range(2):
        waited = (waited + tl.load(x + whole)).to(tl.bfloat16).to(tl.float32)  # here
    tl.store(y + whole, waited.to(tl.float16))
    tl.store(y + whole, (tl.load(y + whole).to(tl.float32) + acc).to(tl.float16))  # here
    tl.atomic_add(z + i, total + rows + tl.sum(deep, 1).to(tl.float16))  # here


@triton.jit
def computes_in_32_bits(x, y, z, n):
    i = tl.arange(0, 16)
    whole = i[:, None] * 16 + i[None, :]
    acc = tl.zeros((16, 16), tl.float32)
    count = tl.zeros((16,), tl.float32)
    for _ in range(n):
        tile = tl.load(x + whole)
        weights = (tile.to(tl.float32) * 0.3).to(tl.float16)
        acc = tl.dot(weights, tl.trans((tile * 0.3).to(tl.float16)), acc)
        count += tl.sum(weights.to(tl.float32), 1)
        tile = tile.to(tl.float32).to(tl.float16)
    tl.store(y + whole, (acc / count[:, None]).to(tl.float16))
    tl.store(z + i, count.to(tl.float16))


# fmt: on


def test_roundings_that_others_are_computed_from_are_told_from_those_of_dots_and_stores():
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    marked = {number for number, line in enumerate(lines, 1) if line.endswith("  # here")}
    found = _found(computes_in_16_bits)
    assert {key for key in found if key > 0} == marked and len(marked) == 8
    found = _found(computes_in_32_bits)
    assert len(found) == 4 and max(found) < 0
    assert {site.use for site in found.values()} == {"dot", "store"}


def _found(kernel):
    """What a kernel rounds."""
    torch.manual_seed(0)
    engine, exact = Engine(__file__), Exact(())
    tensors = [torch.rand(16, 16).half() for _ in range(3)]
    engine.reset(exact=exact)
    with machine_in_process(engine, globals()):
        kernel[(1,)](*tensors, 3)
    return exact.found


@triton.jit
def reads(x, y):
    i = tl.arange(0, 64)
    tl.store(y + i, tl.load(x + i).to(tl.float32))


def _copied(x):
    return torch.stack([x.half(), x.half()])[1].clone()


@pytest.mark.parametrize(
    ("rounded", "is_computed_from"),
    [
        (lambda x: x.half(), True),
        (lambda x: x.half().float(), True),
        (lambda x: x.bfloat16().double().float(), True),
        (lambda x: torch.zeros_like(x).copy_(x.half()), True),
        (lambda x: (x.half() * 1.0).float(), True),
        (_copied, True),
        (lambda x: (torch.eye(64) * torch.mv(torch.eye(64).half(), x.half()).sum()).sum(1), True),
        (lambda x: x, None),
        (lambda x: (x.half(), x)[1], False),
        (lambda x: (_copied(x), torch.mv(torch.eye(64).half(), x.half()), x)[2], False),
    ],
)
def test_a_number_in_memory_that_others_are_computed_from_has_32_bits(rounded, is_computed_from):
    found, _, _ = _read_by_a_kernel(rounded)
    assert any(key > 0 for key in found) == bool(is_computed_from)
    assert bool(found) == (is_computed_from is not None)


def test_a_number_that_is_read_is_exact():
    _, y, x = _read_by_a_kernel(lambda x: x.half())
    assert torch.equal(y, x.double())


def _read_by_a_kernel(make, results=lambda x: []):
    """What is rounded on line 1, where `make` makes what a kernel reads; what it stores, and x."""
    exact, engine, y = Exact(()), Engine(__file__), torch.zeros(64)
    exact.line = 1
    x = torch.linspace(0.1, 9.0, 64)
    engine.reset(exact=exact)
    with machine_in_process(engine, globals()), exact:
        made = make(x)
        reads[(1,)](made, y)
    exact.ends(results(made))
    return exact.found, exact.of(y), x


@pytest.mark.parametrize(
    ("results", "is_computed_from"),
    [(lambda x: [x], False), (lambda x: [x[:32]], False), (lambda x: [2.0 * x], True)],
)
def test_others_may_be_computed_from_a_result(results, is_computed_from):
    found, _, _ = _read_by_a_kernel(lambda x: x.half(), results)
    assert any(key > 0 for key in found) == is_computed_from


# Relative; of gradients 1e-6: exp2 takes lse times log2(e), which is an fp32 constant.
_MOST = {"y": 1e-13, "out": 1e-7, "lse": 1e-7}


@pytest.mark.parametrize("problem_id", drawn(problem_ids(), 2))
def test_an_answer_is_right_to_more_digits_than_16_or_32_bits_have(problem_id):
    problem = load_problem(problem_id)
    call = _session(problem).call if problem.uses_triton else _called_here
    for check, _, case in cases_of(problem, ["half", "products"])[:2]:
        inputs = make_inputs(problem, case, 0)
        evidence = call(case, inputs, problem.outputs, rounding=())
        truth = expect(problem, case, inputs, problem.outputs).truth
        assert evidence.outputs, evidence.result
        for name, got in evidence.outputs.items():
            error = (got - truth[name]).norm() / truth[name].norm()
            assert error < _MOST.get(name, 1e-6), (check.id, name, error)


def _session(problem):
    source = Source(problem.id, model_answer(problem.id).encode(), policy=True)
    where = {"device": "cpu", "machine": True, "budget": Budget(problem.limits)}
    return Session(problem, source, **where)


def _called_here(case, inputs, outputs, rounding):
    """Call p01, whose PyTorch computes in 64 bits beside."""
    exact, names = Exact(rounding), {}
    given.offer_given()
    exec(model_answer("p01"), names)
    with torch.no_grad(), exact:
        results = names[load_problem("p01").entry](**inputs.tensors, **case.kwargs)
    return CallEvidence(outputs=dict(zip(outputs, map(exact.of, results), strict=False)))


_SCORES = 'scores = tl.dot(q, tl.trans(k), input_precision="ieee")'
_FP32, _FP16 = 0, 2  # cases of the check ieee
_ALPHA = "acc * rescale[:, None]"
# Problem or unusual answer, check and case, what is said, what is named, the line, and the edits.
_ROUNDED = {
    "products": (
        "p02", "products", 0,
        "the formula is right, but products is rounded to fp16 on its way to y",
        "HALF-PRODUCTS", "products = (x_tile",
        ("x_tile.to(tl.float32) * w_tile.to(tl.float32)[None, :]",
         "(x_tile * w_tile[None, :]).to(tl.float32)"),
    ),
    "products without a name": (
        "p02", "products", 0,
        "the formula is right, but a product is rounded to fp16 on its way to y",
        "HALF-PRODUCTS", "acc += x_tile * w_tile", ("acc += products", "acc += x_tile * w_tile"),
    ),
    "P before its sum": (
        "p03", "ieee", _FP32, "the formula is right, but p is rounded to bf16 on its way to out",
        "ROUNDED-TO-16-BITS", "tl.sum(p.to",
        ("tl.sum(p, 1)", "tl.sum(p.to(tl.bfloat16).to(tl.float32), 1)"),
    ),
    "scores": (
        "p03", "ieee", _FP16, "scores is rounded to fp16 before it is used",
        "ROUNDED-TO-16-BITS", "scores = tl.dot",
        (_SCORES, f"{_SCORES[:-1]}, out_dtype=tl.float16).to(tl.float32)"),
    ),
    "an accumulator": (
        "p03", "ieee", _FP32, "the formula is right, but acc is rounded to bf16 on its way to out",
        "ROUNDED-TO-16-BITS", "acc.to(", (_ALPHA, "acc.to(tl.bfloat16) * rescale[:, None]"),
    ),
    "lse": (
        "p08", "ieee", _FP16, "lse_ptr is rounded to fp16 before it is used",
        "ROUNDED-TO-16-BITS", "ctx.save_for_backward(",
        ("ctx.save_for_backward(q, k, v, out, lse)",
         "ctx.save_for_backward(q, k, v, out, lse.to(q.dtype))"),
    ),
    "delta": (
        "p08", "ieee", _FP16, "delta_ptr is rounded to fp16 before it is used",
        "ROUNDED-TO-16-BITS", "delta = torch.empty(",
        ("dtype=torch.float32, device=out.device", "dtype=out.dtype, device=out.device"),
    ),
    "the sum of a group": (
        "p08", "ieee", _FP16, "dk is rounded to fp16 before it is used",
        "ROUNDED-TO-16-BITS", "dk = dk.to(",
        ("dk *= softmax_scale", "dk = dk.to(k.dtype).to(tl.float32)\n    dk *= softmax_scale"),
    ),
    "parts of a group": (
        "p08-heads_apart", "half_groups", 0, "a number is rounded to fp16 before it is used",
        "ROUNDED-TO-16-BITS", "dk, dv = (torch.empty(",
        ("(torch.empty(q.shape, dtype=torch.float32,", "(torch.empty(q.shape, dtype=q.dtype,"),
    ),
    "the terms of a sum": (
        "p09", "half_dsink", 0, "a number is rounded to fp16 before it is used",
        "ROUNDED-TO-16-BITS", "dsink_logits = -(sink_p",
        ("delta).sum((0, 2)).to(sink_logits.dtype)",
         "delta).to(sink_logits.dtype).sum((0, 2))"),
    ),
    "an operand": (
        "p08", "ieee", _FP32,
        "the formula is right, but an operand of a tl.dot is rounded to fp16 on its way to dq",
        "OPERANDS-ROUNDED", "dq = tl.dot(ds.to",
        ("ds.to(k.dtype), k, dq", "ds.to(tl.float16), k.to(tl.float16), dq"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", drawn(_ROUNDED, 2))
def test_a_rounding_that_alone_is_wrong_is_named_with_its_line(name):
    problem_id, check, number, says, cause, line, *edits = _ROUNDED[name]
    source, finding, causes = _judged(problem_id, check, number, edits)
    assert finding.message.headline == says
    assert line in source.splitlines()[finding.message.line - 1]
    assert "without any rounding" in f"{finding.message.extent} {finding.message.help}"
    ((id, at),) = causes
    assert (id, at) == (f"{problem_id[:3].upper()}-{cause}", finding.message.line)


_WRONG = {
    "half a percent": ("p03", "half", 2, ("acc / running_sum", "1.005 * acc / running_sum")),
    "a sum": ("p03", "lse", 0, ("tl.log2(running_sum)", "tl.log2(running_sum + 1.0)")),
    "delta": ("p08", "half", 2, ("(dp - delta[:, None])", "(dp - 0.98 * delta[:, None])")),
    "a rounded accumulator": (
        "p03", "ieee", 0, ("acc / running_sum", "1.005 * acc / running_sum"),
        (_ALPHA, "acc.to(tl.bfloat16) * rescale[:, None]"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", drawn(_WRONG, 2))
def test_a_formula_that_is_wrong_without_any_rounding_is_no_rounding(name):
    problem_id, check, number, *edits = _WRONG[name]
    _, finding, causes = _judged(problem_id, check, number, edits)
    assert finding.message.headline.endswith(" is wrong")
    assert not any("ROUNDED" in id for id, _ in causes)


def _judged(problem_id, check_id, number, edits):
    """The source of a wrong answer, and what is said and named of one case."""
    is_model = problem_id in problem_ids()
    right = model_answer(problem_id) if is_model else right_answers("unusual")[problem_id][1]
    source, problem = edited(right, *edits), load_problem(problem_id[:3])
    run = run_of(source, problem)
    try:
        check, index, case = cases_of(problem, [check_id])[number]
        finding = run.judge(CheckCase(problem, check, index, case))
        assert finding.verdict is Verdict.FAIL, finding
        return source, finding, [(cause.diagnosis.id, cause.line) for cause in run.causes()]
    finally:
        run.sessions.close()
