"""Submissions that have PyTorch or Python compute in a call are rejected, whatever their text says.

The text is not looked at here: most of these the source policy refuses before they run.
"""

import pytest

from grader.source.submission import examine
from grader.spec.grade_record import Verdict
from grader.spec.problem import PROBLEMS, ROOT, load_problem
from tests import forked
from tests.harness import Judged, judge, model_answer
from tests.records import write_answers
from tests.shares import drawn
from tests.test_idle import BODIES, decoy

_quick = forked.quick


def judged_decoy(problem_id, body, *, policy=True, checks=None) -> Judged:
    checks = checks or {"one_program" if problem_id == "p02" else "plain"}
    return judge(decoy(problem_id, body), load_problem(problem_id), checks=checks, policy=policy)


# The kernel's own results are the flag: in a call whose kernels do nothing they are NaN.
IF_SET = "if not returned.isfinite().all():\n        return returned\n    "
EVASIONS = {
    "a product": ("p02", "return (x.double() @ w.double()).to(x.dtype)", "aten::mv"),
    "naive attention by elements": ("p04", BODIES["p04"], "element by element: aten::mul"),
    "a flag set by a kernel": (
        "p02",
        IF_SET + "rows = torch.arange(x.shape[0]).repeat_interleave(x.shape[1])\n"
        "    sums = torch.zeros(x.shape[0], dtype=torch.float64)\n"
        "    return sums.index_add_(0, rows, (x * w.double()).flatten()).to(x.dtype)",
        "aten::index_add_",
    ),
    "python's arithmetic": (
        "p02",
        IF_SET + "return torch.tensor([sum(a * b for a, b in zip(row, w.tolist()))"
        " for row in x.tolist()])",
        "with .tolist()",
    ),
    "python's arithmetic, one number at a time": (
        "p02",
        IF_SET + "return torch.tensor([sum(a.item() * b.item() for a, b in zip(row, w))"
        " for row in x])",
        "with .item()",
    ),
    "numpy": ("p02", "return torch.from_numpy(x.numpy() @ w.numpy())", "with .numpy()"),
    "before a launch": (
        "p02",
        "@triton.autotune([triton.Config({'B': 16}, pre_hook=lambda a: torch.mv(x, w, out=returned)"
        ")], key=[])\n    @triton.jit\n    def kernel(y, B: tl.constexpr):\n        pass\n\n"
        "    kernel[(1,)](returned)\n    return returned",
        "aten::mv",
    ),
}


@pytest.mark.parametrize("name", drawn(EVASIONS, 2))
def test_a_submission_that_computes_elsewhere_is_rejected(name):
    problem_id, body, told = EVASIONS[name]
    judged = judged_decoy(problem_id, body)
    (finding,) = {id(f): f for (_, index), f in judged.wrong.items() if index == 0}.values()
    assert finding.verdict is Verdict.REJECTED and told in finding.message.headline
    assert judged.correctness.points.earned == 0.0
    assert "docs/source-policy.md" in finding.message.help
    assert finding.message.line > model_answer(problem_id).count("\n")


def test_calls_whose_kernels_do_nothing_do_not_see_a_flag_that_a_kernel_sets():
    problem_id, body, _ = EVASIONS["a flag set by a kernel"]
    assert judged_decoy(problem_id, body, policy=False).wrong == {}


def test_without_the_policy_python_gets_no_more_than_a_few_values():
    problem_id, body, _ = EVASIONS["python's arithmetic"]
    findings = judged_decoy(problem_id, body, policy=False, checks={"plain"}).wrong.values()
    assert {f.verdict for f in findings} == {Verdict.NOT_MEASURED}
    assert all("32 are given without a GPU" in f.message.headline for f in findings)


BACKWARD = """

class _Elsewhere(torch.autograd.Function):
    @staticmethod
    def forward(ctx, out, q):
        ctx.save_for_backward(q)
        return out.clone()

    @staticmethod
    def backward(ctx, dout):
        (q,) = ctx.saved_tensors
        return {result}, None

honest = gqa_attention

def gqa_attention(q, k, v, *, softmax_scale=None):
    return _Elsewhere.apply(honest(q, k, v, softmax_scale=softmax_scale), q)
"""
MANY_TIMES = """

honest = gqa_attention

def gqa_attention(q, k, v, *, softmax_scale=None):
    out = honest(q, k, v, softmax_scale=softmax_scale)
    for _ in range(40):
        out = out * 1.0
    return out
"""


def test_the_backward_pass_is_looked_at():
    problem = load_problem("p08")
    source = model_answer("p08") + BACKWARD.format(result="dout + 0 * (dout @ q.mT @ q)")
    judged = judge(source, problem, checks={"plain"})
    (finding,) = [f for (_, index), f in judged.wrong.items() if index == 0]
    assert finding.message.headline == "PyTorch computes here: aten::bmm"
    line = source.split("\n").index("        return dout + 0 * (dout @ q.mT @ q), None") + 1
    assert finding.message.line == line
    source = model_answer("p08") + BACKWARD.format(result="torch.tensor(dout.tolist())")
    judged = judge(source, problem, checks={"plain"})
    headlines = {f.message.headline for f in judged.wrong.values()}
    assert headlines == {"values of tensors are read into Python here, with .tolist()"}
    scaled = MANY_TIMES  # which is too often for forward and backward together
    judged = judge(model_answer("p08") + scaled, problem, checks={"plain"})
    (finding,) = [f for (_, index), f in judged.wrong.items() if index == 0]
    assert finding.message.headline == "PyTorch computes here, element by element: aten::mul"
    assert finding.message.line is None  # autograd's
    rows = "dout * (1 + 0 * (dout * q).sum(-1, keepdim=True))"
    right = model_answer("p08") + BACKWARD.format(result=rows)
    assert judge(right, problem, checks={"plain"}).wrong == {}


GRADIENTS = """

def attention_gradients(q, k, v, out, lse, dout, *, softmax_scale=None):
    with torch.enable_grad():
        leaves = q, k, v = [x.detach().requires_grad_() for x in (q, k, v)]
        group = q.shape[1] // k.shape[1]
        scores = (q @ k.repeat_interleave(group, 1).mT) * (softmax_scale or q.shape[-1] ** -0.5)
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        out = weights @ v.repeat_interleave(group, 1)
        return torch.autograd.grad(out, leaves, dout)
"""


def test_the_bridge_of_p08_computes_gradients_without_autograd():
    problem = load_problem("p08")
    check = next(c.id for c in problem.checks if c.bridge)
    asks = "\nassert triton.runtime.driver.active.get_current_target().backend == 'cuda'\n"
    assert judge(model_answer("p08") + asks, problem, checks={check}).wrong == {}
    judged = judge(model_answer("p08") + GRADIENTS, problem, checks={check})
    headlines = {f.message.headline.partition(":")[0] for f in judged.wrong.values()}
    assert headlines == {"autograd computes gradients here"}


LOOKS = (
    "assert not returned[1].isnan().any()\n    print(returned[0])",
    "assert q.isfinite().all() and returned[0].max().item() < 1e9",
    "returned[0].cpu().to(q.device), returned[1].data_ptr() % 16, q.untyped_storage",
)


@pytest.mark.parametrize("look", drawn(LOOKS, 3))
def test_a_right_answer_may_look_at_its_results(look):
    checks = {"plain", "lse", "half", "arguments"}
    assert judged_decoy("p04", f"{look}\n    return returned", checks=checks).wrong == {}


def test_pytest_refuses_it(tmp_path, capfd):  # `grade`, with and without a policy: tests/hostile
    problem_id, body, told = EVASIONS["a flag set by a kernel"]
    source = decoy(problem_id, body)
    assert examine(load_problem(problem_id), source.encode()).violations == ()
    write_answers(tmp_path, {problem_id: source})
    options = ["--submission", tmp_path, "-k", "one_program", "--device=cpu"]
    assert pytest.main([*map(str, options), f"--rootdir={ROOT}", str(PROBLEMS / "p02")]) == 1
    text = capfd.readouterr().out
    assert "REJECTED" in text and f"PyTorch computes here: {told}" in text
