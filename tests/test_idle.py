"""What comes out right while kernels do nothing was computed elsewhere, and earns nothing."""

import functools

import pytest
import torch

from grader.checks.correctness import expect, right_without_kernels
from grader.spec.cases import resolve
from grader.spec.grade_record import Verdict
from grader.spec.inputs import case_seed, make_inputs
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import SEED, judge, model_answer
from tests.shares import drawn

# As with --no-policy: what PyTorch is had to do is not looked at.
unlooked = functools.partial(judge, policy=False)

DECOY = """

honest = {entry}


def {entry}({parameters}):
    returned = honest({arguments})
    {body}
"""
# Beside the kernels of the model answer, whose results go to waste.
BODIES = {
    "p02": "return (x.float() * w.float()).sum(-1).to(x.dtype)",
    "p04": """scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    scores = (q.float()[:, :, :, None] * k.float()[:, :, None]).sum(-1) * scale
    hidden = torch.arange(k.shape[2])[None, :] > torch.arange(q.shape[2])[:, None]
    scores = scores.masked_fill(hidden, float("-inf"))
    lse = scores.logsumexp(-1)
    return (scores.softmax(-1) @ v.float()).to(q.dtype), lse""",
}

_quick = forked.quick


def decoy(problem_id: str, body: str) -> str:
    problem = load_problem(problem_id)
    parameters = problem.signature.partition("(")[2].rpartition(")")[0]
    names = [part.partition("=")[0].strip() for part in parameters.split(",")]
    named = names.index("*") if "*" in names else len(names)
    arguments = [n if i < named else f"{n}={n}" for i, n in enumerate(names) if n != "*"]
    fields = {"parameters": parameters, "arguments": ", ".join(arguments), "body": body}
    return model_answer(problem_id) + DECOY.format(entry=problem.entry, **fields)


@pytest.mark.parametrize("problem_id", BODIES)
def test_a_kernel_beside_the_work_earns_nothing(problem_id):
    problem = load_problem(problem_id)
    checks = {"plain", "half"}
    judged = unlooked(decoy(problem_id, BODIES[problem_id]), problem, checks=checks)
    found = {judged.of(check).verdict for check in checks}
    assert found == {Verdict.ERROR} and judged.correctness.points.earned == 0.0
    headlines = {f.message.headline for f in judged.wrong.values() if f.message}
    assert all("right though no kernel ran" in text for text in headlines)


def test_one_output_that_pytorch_computes_is_enough():
    body = BODIES["p04"].rpartition("return")[0] + "return returned[0], lse"
    judged = unlooked(decoy("p04", body), load_problem("p04"), checks={"plain", "lse"})
    headline = "lse is right though no kernel ran: it does not come from your kernels"
    assert judged.of("lse").message.headline == headline
    assert judged.of("plain").verdict is Verdict.PASS  # it judges `out` alone


LOOKS = ("", "returned[0].sum().item()", "assert not returned[1].isnan().any()")


@pytest.mark.parametrize("look", drawn(LOOKS, 3))
def test_a_right_answer_may_look_at_its_results(look):
    body = f"{look}\n    return returned"
    judged = unlooked(decoy("p04", body), load_problem("p04"), checks={"plain", "lse", "half"})
    assert judged.wrong == {}


def outputs(seed: str, **given):
    problem = load_problem("p08")
    case = resolve(problem.base.given | given, "fp32", SEED)
    inputs = make_inputs(problem, case, case_seed(SEED, seed))
    return expect(problem, case, inputs, ("out", "dq", "dk", "dv"))


def test_what_was_right_before_or_is_zero_says_nothing():
    names = ("out", "dq", "dk", "dv")
    expected, earlier = outputs("b", seqlen=1), outputs("a", seqlen=1)
    right = {name: truth.float() for name, truth in expected.truth.items()}
    # Of a single key the weight is 1, whatever q and k are: their gradients are zero.
    assert right_without_kernels(names, right, expected, earlier) == ("out", "dv")
    assert right_without_kernels(names, right, expected, expected) == ()
    nothing = {name: torch.full_like(value, float("nan")) for name, value in right.items()}
    assert right_without_kernels(names, nothing, expected, earlier) == ()
    expected, earlier = outputs("b", seqlen=64), outputs("a", seqlen=64)
    right = {name: truth.float() for name, truth in expected.truth.items()}
    assert right_without_kernels(("dq",), right, expected, earlier) == ("dq",)
    assert right_without_kernels(("dq",), {"dq": right["dq"] + 0.1}, expected, earlier) == ()
