"""Each step turns green what problem.toml says; `python -m tests.steps` prints what they do.

A share of the steps; `make sweep PARTS=corpora` judges all of them.
"""

from typing import NamedTuple

import pytest

from grader.spec.grade_record import Verdict
from grader.spec.problem import load_problem, problem_ids
from grader.spec.problem_tables import WORK
from tests import forked, steps
from tests.harness import edited, judge, model_answer
from tests.shares import drawn, of_all


class Green(NamedTuple):
    """What problem.toml says of a step."""

    problem: str
    number: int
    checks: tuple[str, ...]

    @property
    def id(self):
        return f"{self.problem}-{self.number}"


STEPS = [
    Green(problem.id, number, step.turns_green)
    for problem in map(load_problem, problem_ids())
    for number, step in enumerate(problem.steps, start=1)
]

_quick = forked.quick


def smallest_of(problem, checks):
    """The check, of these, with the fewest cases; the count of work where there is none."""
    return min(checks, key=lambda name: len(problem.check(name).cases) if name != WORK else 9)


@pytest.mark.parametrize("step", drawn(STEPS, 12, of_all), ids=lambda s: s.id)
def test_each_step_turns_green_what_problem_toml_says(step):
    problem = load_problem(step.problem)
    names = {smallest_of(problem, step.checks), *({WORK} & set(step.checks))}
    assert names <= steps.green(problem, step.number, names)
    assert not names & steps.green(problem, step.number - 1, names)


def test_no_step_turns_nothing_green():
    assert all(step.checks for step in STEPS)


# What the check of a step that has no numbers says where the step is done wrong.
NO_NUMBERS = (
    ("p03", 2, "launch", "), dtype=torch.float32", "), dtype=q.dtype", "lse: got dtype"),
    ("p03", 2, "launch", " _attention_kernel[grid]", " (lambda *a, **b: a)", "no Triton kernel"),
    ("p03", 5, "stores", "(batch * num_q_heads * tr", "(batch * tr", "was not written everywhere"),
    ("p03", 5, "stores", "lse_ptr += batch_head * seqlen_q", "", "lse was not written everywhere"),
    ("p01", 6, "skipped_tiles", "stop = q_stop\n", "stop = seqlen_k\n", "100% of the products"),
)


@pytest.mark.parametrize(
    ("problem_id", "step", "check", "old", "new", "said"), drawn(NO_NUMBERS, 5)
)
def test_a_check_of_no_numbers_says_what_is_wrong(problem_id, step, check, old, new, said):
    problem = load_problem(problem_id)
    source = edited(steps.after(problem, step), (old, new))
    checks = {check, "causal"} if problem_id == "p01" else {"launch", check}
    judged = judge(source, problem, checks=checks)
    assert said in judged.of(check).message.headline
    assert {c.verdict for c in judged.checks if c.id in checks - {check}} <= {Verdict.PASS}


# The step that is named for a check that fails after a step, and whose lines feed it.
EMPTY = (
    ("p02", 2, "x_strides", 5),
    ("p02", 1, "x_strides", 5),  # its cause is that of `plain`, which step 2 turns green
    ("p03", 1, "lse", 2),  # nothing is returned before step 2, whatever step 4 is to do
)


@pytest.mark.parametrize(("problem_id", "step", "check", "named"), EMPTY)
def test_a_check_fails_for_want_of_the_step_that_is_empty(problem_id, step, check, named):
    problem = load_problem(problem_id)
    judged = judge(steps.after(problem, step), problem, checks={check})
    assert judged.of(check).step == judged.of(check).message.step == named
    assert judged.of(check).message.fed_by == ()


def test_a_step_that_is_done_wrong_is_named_beside_one_that_is_empty():
    problem = load_problem("p02")
    source = steps.after(problem, 5).replace("row_ids < rows", "row_ids <= rows")
    judged = judge(source, problem, checks={"ragged_rows", "products"})
    assert judged.of("ragged_rows").step != 6 == judged.of("products").step


PRODUCTS = {
    "by elements": "(a.float()[..., None] * b.float()[:, None]).sum(2)",
    "by addbmm": "torch.stack([torch.addbmm(x.new_zeros(len(x), y.shape[1]), x[None], y[None])"
    " for x, y in zip(a.float(), b.float())])",
}


@pytest.mark.parametrize("how", PRODUCTS)
@pytest.mark.parametrize("skips", [True, False])
def test_products_count_whatever_makes_them(how, skips):
    source = model_answer("p01").replace(
        "from given.products import tile_matmul",
        f"def tile_matmul(a, b, scale=1.0):\n    return scale * {PRODUCTS[how]}",
    )
    source = source if skips else source.replace("stop = q_stop\n", "stop = seqlen_k\n")
    judged = judge(source, load_problem("p01"), checks={"causal", "skipped_tiles"})
    assert judged.of("causal").verdict is Verdict.PASS
    assert judged.of("skipped_tiles").verdict is (Verdict.PASS if skips else Verdict.FAIL)


def test_a_student_writes_a_quarter_of_the_required_code():
    required = [p for p in map(load_problem, problem_ids()) if not p.bonus]
    _, code, students, _ = map(sum, zip(*map(steps.sizes, required), strict=True))
    assert 4 * students >= code
