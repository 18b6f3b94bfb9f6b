"""Inputs of timed calls: a right answer is right on them, one made for normal inputs is not."""

import dataclasses
import math

import pytest
import torch

from grader.checks import performance
from grader.spec.cases import Case
from grader.spec.inputs import make_inputs
from grader.spec.problem import Problem, load_problem
from grader.timing.drawn import drawn_inputs

SEEDS = range(24)


def small(id: str, dtype: str) -> tuple[Problem, Case]:
    """The timed case of a problem, with 256 rows."""
    problem = load_problem(id)
    case = problem.benchmarks_on("cuda")[0]
    heads = {"batch": 1, "num_q_heads": 2, "num_kv_heads": 1, "seqlen_q": 256, "seqlen_k": 256}
    if problem.oracle in ("noncausal_attention", "causal_attention"):
        heads["num_kv_heads"] = 2
    return problem, dataclasses.replace(case, dtype=dtype, **heads)


def attention(case: Case, tensors: dict[str, torch.Tensor], *, safe: bool) -> dict:
    """A tile kernel's roundings: P and out to the dtype, all else in fp32."""
    q, k, v = (tensors[name].float() for name in "qkv")
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(case.head_dim)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    scores.masked_fill_(hidden, -math.inf)
    top = scores.amax(-1, keepdim=True) if safe else torch.zeros(())
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    out = (weights.to(tensors["q"].dtype).float() @ v / total).to(tensors["q"].dtype)
    return {"out": out, "lse": (top + total.log())[..., 0]}


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_right_answer_is_right_and_one_without_a_maximum_is_not(dtype):
    problem, case = small("p05", dtype)
    worst, wrong = 0.0, 0
    for seed in SEEDS:
        inputs = drawn_inputs(problem, case, seed, "cpu")
        right = attention(case, inputs.tensors, safe=True)
        worst = max(worst, performance.verify(problem, case, inputs, right))
        hasty = attention(case, inputs.tensors, safe=False)
        wrong += performance.verify(problem, case, inputs, hasty) > 1.0
    assert worst < 0.5
    assert wrong == 0 if dtype == "fp32" else 4 < wrong < 20
    normal = make_inputs(problem, case, 0)
    hasty = attention(case, normal.tensors, safe=False)
    assert performance.verify(problem, case, normal, hasty) < 1.0  # for which they are drawn


@pytest.mark.parametrize("id", ["p02", "p08", "p09"])
def test_a_seed_draws_the_same_inputs_again_and_another_seed_another_distribution(id):
    problem = load_problem(id)
    problem, case = (
        (problem, problem.benchmarks_on("cuda")[0]) if id == "p02" else small(id, "bf16")
    )
    if id == "p02":
        case = dataclasses.replace(case, rows=64, cols=256)
    found = [drawn_inputs(problem, case, seed, "cpu") for seed in SEEDS]
    again = drawn_inputs(problem, case, SEEDS[-1], "cpu")
    for name, tensor in again.all.items():
        assert torch.equal(tensor, found[-1].all[name])
        assert tensor.dtype == make_inputs(problem, case, 0).all[name].dtype
        spreads = sorted(float(inputs.all[name].float().std()) for inputs in found)
        assert name == "sink_logits" or spreads[-1] > 2 * spreads[0]
        assert all(torch.isfinite(inputs.all[name]).all() for inputs in found)
