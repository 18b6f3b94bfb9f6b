"""On a GPU the check of precision tells dots in TF32 by their numbers."""

from types import SimpleNamespace

import pytest
import torch

from grader.base.dtypes import as_tf32
from grader.checks.correctness import expect, find_differences, is_of_tf32
from grader.isolate.evidence import CallEvidence
from grader.isolate.session import Budget
from grader.judge.case import CheckCase
from grader.spec.cases import resolve
from grader.spec.grade_record import Verdict
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem
from grader.spec.protocol import Reply, Status
from tests import trials
from tests.harness import edited, judge, run_of

P04, P08 = load_problem("p04"), load_problem("p08")


def example(problem, names, values):
    """Inputs, what is expected of them in fp32, and in TF32."""
    given = {"seqlen": 256, "values": values}
    exact, case = (resolve(given, "fp32", "", exact=exact) for exact in (True, False))
    inputs = make_inputs(problem, exact, 1)
    return inputs, *(expect(problem, c, inputs, names) for c in (exact, case))


class Dot(torch.autograd.Function):
    """a @ b of TF32 operands, and the gradients by such products."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return as_tf32(a) @ as_tf32(b)

    @staticmethod
    def backward(ctx, d):
        a, b = ctx.saved_tensors
        return as_tf32(d) @ as_tf32(b).mT, as_tf32(a).mT @ as_tf32(d)


@pytest.mark.parametrize("values", ["peaked", "normal"])
def test_gradients_by_dots_in_tf32_are_told(values):
    names = ("dq", "dk", "dv")
    inputs, expected, cut = example(P08, names, values)
    leaves = [t.clone().requires_grad_() for t in inputs.tensors.values()]
    q, k, v = leaves
    scores = Dot.apply(q, k.mT) * q.shape[-1] ** -0.5
    weights = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf).softmax(-1)
    Dot.apply(weights, v).backward(inputs.dout)
    for name, leaf in zip(names, leaves, strict=True):
        assert is_of_tf32(leaf.grad, name, expected, cut), name


def by_dots(tensors, cut, *, scaled=False, weights=lambda p: p):
    """Causal attention of one head by dots whose operands are `cut`, q `scaled` before or not."""
    q, k, v = (tensors[name] for name in ("q", "k", "v"))
    scale = q.shape[-1] ** -0.5
    scores = cut(q * scale) @ cut(k).mT if scaled else cut(q) @ cut(k).mT * scale
    scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
    p = torch.exp(scores - scores.amax(-1, keepdim=True))
    return cut(weights(p)) @ cut(v) / p.sum(-1, keepdim=True)


DOTS = {
    "TF32": ({"cut": as_tf32}, True),
    "TF32 of scaled q": ({"cut": as_tf32, "scaled": True}, True),
    "fp16 operands": ({"cut": lambda t: t.half().float()}, False),
    "bf16 operands": ({"cut": lambda t: t.bfloat16().float()}, False),
    "fp16 weights": ({"cut": torch.clone, "weights": lambda p: p.half().float()}, False),
    "bf16 weights": ({"cut": torch.clone, "weights": lambda p: p.bfloat16().float()}, False),
    "wrong": ({"cut": lambda t: 1.01 * t}, False),
}


@pytest.mark.parametrize("values", ["peaked", "offset"])
@pytest.mark.parametrize("dots", DOTS)
def test_the_error_of_tf32_is_told_from_others(dots, values):
    options, expects = DOTS[dots]
    inputs, expected, cut = example(P04, ("out",), values)
    got = by_dots(inputs.tensors, **options)
    assert find_differences({"out": got}, expected)
    assert is_of_tf32(got, "out", expected, cut) == expects


def test_on_a_gpu_the_check_of_precision_names_tf32():
    """There the judge sees the numbers alone; without a GPU it sees the argument of tl.dot."""
    check = P04.check("ieee")
    case = P04.cases(check, "5eed")[0]
    at = CheckCase(P04, check, 0, case)
    got = {"out": by_dots(at.inputs("5eed").tensors, as_tf32)}
    evidence = CallEvidence(result=Reply(0, Status.OK, launches=1), outputs=got)
    budget = Budget(P04.limits)
    session = SimpleNamespace(
        machine=False,
        unusable=None,
        budget=budget,
        start=lambda: None,
        call=lambda *_, **how: evidence,
    )
    sessions = SimpleNamespace(of=lambda at: session, budget=budget)
    run = run_of("", P04, sessions=sessions)
    finding = run.judge(at)
    assert finding.verdict is Verdict.FAIL and finding.wrong_outputs == ("out",)
    assert finding.message.headline.startswith("out has the error of tl.dot in TF32")
    assert "your fp32 dot runs in TF32: " in finding.message.help
    assert 'input_precision="ieee"' in finding.message.help
    assert run.causes() == []


def test_where_no_fp32_may_be_cut_a_dot_that_rounds_is_seen_in_every_check():
    """p02 asks for IEEE fp32 in all its cases, and needs no dot."""
    _, source = trials.right_answers("unusual")["p02-by_dot"]
    source = edited(source, (', input_precision="ieee"', ""))
    judged = judge(source, load_problem("p02"), checks=("one_program", "half"))
    headline = "on a GPU this tl.dot rounds its fp32 operands to TF32"
    assert {f.message.headline for f in judged.wrong.values()} == {headline}
    assert {check for check, _ in judged.wrong} == {"one_program"}
