"""What wrong gradients and row sums are made of is told by fits, whatever made the numbers."""

import math
from collections.abc import Callable

import pytest
import torch

from grader.causes.outputs import Outputs
from grader.causes.rules.fits import fittable, fitted
from grader.causes.rules.sighting import Sighting
from grader.checks.correctness import Expected, expect
from grader.judge.case import CheckCase
from grader.spec.inputs import Inputs
from grader.spec.problem import load_problem
from reference.variants import Case, attend, case_of
from reference.variants_backward import differentiate, row_delta
from tests.harness import SEED, cases_of

LOG2_E = 1.0 / math.log(2.0)
Made = dict[str, torch.Tensor]


def given(problem_id: str, check: str, number: int) -> tuple[object, Inputs, Expected]:
    problem = load_problem(problem_id)
    at = CheckCase(problem, *cases_of(problem, (check,))[number])
    inputs = at.inputs(SEED)
    return at.case, inputs, expect(at.problem, at.case, inputs, at.judged)


def told(problem_id: str, check: str, number: int, make: Callable[[Case], Made]) -> Sighting | None:
    case, inputs, expected = given(problem_id, check, number)
    known = case_of(problem_id, inputs.all, case.kwargs)
    got = {name: truth.float() for name, truth in expected.truth.items()}
    got |= {name: made.float() for name, made in make(known).items()}
    wrong = Outputs(problem_id, case, inputs, got, expected)
    assert fittable(wrong)
    return fitted(wrong)


def of_slope(slope: Callable[[Case, torch.Tensor, torch.Tensor], torch.Tensor]):
    """Gradients dq and dk of another dS, made of P and dP."""

    def make(case: Case) -> Made:
        scores = case.masked()
        probs = torch.exp(scores - attend(case)["lse"][..., None])
        ds = slope(case, probs, case.dout @ case.values().mT)
        dk = (case.scale * ds.mT @ case.q).unflatten(1, (case.num_kv_heads, case.group_size))
        return {"dq": case.scale * ds @ case.k[:, case.kv_heads], "dk": dk.sum(2)}

    return make


def delta(case: Case) -> torch.Tensor:
    return row_delta(case)[..., None]


@pytest.mark.parametrize(
    ("make", "id", "title"),
    [
        (
            of_slope(lambda case, p, dp: p * (0.5 * dp - delta(case))),
            "OTHER-TERMS",
            "(0.5 * P * dP - P * delta) k",
        ),
        (of_slope(lambda case, p, dp: p), "OTHER-TERMS", "dq is softmax_scale * P k"),
        (of_slope(lambda case, p, dp: p / case.scale), "OTHER-TERMS", "dq is P k, not softmax"),
        (
            of_slope(lambda case, p, dp: (dp - delta(case)) * case.visible()),
            "OTHER-TERMS",
            "softmax_scale * (dP - delta) k",
        ),
        (
            of_slope(lambda case, p, dp: dp - delta(case)),
            "OTHER-TERMS",
            "(dP - delta, without the mask) k",
        ),
        (
            of_slope(lambda case, p, dp: case.scale * p * (dp - delta(case))),
            "GRADIENT-SCALED",
            "dq and dk are 0.125 (softmax_scale) times what they should be",
        ),
        (
            of_slope(lambda case, p, dp: p * (dp - (case.dout * case.dout).sum(-1, True))),
            "OTHER-DELTA",
            "sum(dout * dout)",
        ),
        (
            of_slope(lambda case, p, dp: p * (dp - delta(case) * torch.rand_like(delta(case)))),
            "OTHER-DELTA",
            "another number instead of delta",
        ),
        (
            lambda case: differentiate(case, lse=0.5 * attend(case)["lse"] * 2 * LOG2_E),
            "OTHER-PROBABILITIES",
            "dv is that of P = exp(S - lse * log2(e))",
        ),
        (
            lambda case: differentiate(case, lse=attend(case)["lse"].exp()),
            "OTHER-PROBABILITIES",
            "dv is that of P = exp(S - exp(lse))",
        ),
        (
            lambda case: differentiate(case, lse=attend(case)["lse"] - case.masked().amax(-1)),
            "OTHER-PROBABILITIES",
            "dv is that of P = exp(S + maximum of the query - lse)",
        ),
        (
            lambda case: differentiate(case, visible_kv=case.visible().mT),
            "OTHER-PROBABILITIES",
            "exp(S - lse), with the mask transposed",
        ),
        (
            lambda case: differentiate(case, score_scale_q=1.0),
            "OTHER-PROBABILITIES",
            "dq is that of P = exp(q k^T - lse)",
        ),
        (
            lambda case: differentiate(case, visible_q=case.visible() & (case.key // 64 != 1)),
            "OTHER-PAIRS",
            "keys 64-127 left out",
        ),
        (
            lambda case: differentiate(case, visible_kv=case.visible() & (case.query // 64 != 1)),
            "OTHER-PAIRS",
            "queries 64-127 left out",
        ),
        (lambda case: differentiate(case), None, ""),
        (lambda case: {"dk": torch.zeros_like(case.k)}, None, ""),
        (lambda case: {"dq": torch.randn_like(case.q)}, None, ""),
        (
            lambda case: {"dk": torch.zeros_like(case.k), "dv": torch.randn_like(case.v)},
            "OTHER-PAIRS",
            "queries 0-255 left out",
        ),
    ],
)
def test_a_wrong_gradient_is_told_by_what_it_is_made_of(make, id: str | None, title: str) -> None:
    found = told("p08", "plain", 0 if id == "OTHER-PROBABILITIES" else 1, make)
    assert (found and found.id) == id
    assert found is None or title in found.text.title


def test_a_head_that_is_left_out_of_its_group_is_named() -> None:
    def without_the_second(case: Case) -> Made:
        alone = case.dout.clone()
        alone[:, 1] = 0.0
        return {"dv": differentiate(case, dout=alone)["dv"]}

    found = told("p08", "groups", 0, without_the_second)
    assert found is not None and found.id == "OTHER-PAIRS"
    assert "query head 1 left out" in found.text.title


def of_heads(case: Case) -> torch.Tensor:
    """What each query head gives to dv, (batch, q heads, keys, head_dim)."""
    probs = torch.exp(case.masked() - attend(case)["lse"][..., None])
    return probs.mT @ case.dout


@pytest.mark.parametrize(
    ("check", "place", "note"),
    [
        ("groups", lambda heads, case: heads % case.num_kv_heads, "query heads 1, 3 give"),
        ("batch_heads", lambda heads, case: heads * 0, "query heads 0, 1 of batch"),
    ],
)
def test_heads_that_are_added_to_another_kv_head_are_named(check, place, note) -> None:
    def elsewhere(case: Case) -> Made:
        shares = of_heads(case)
        dv = torch.zeros_like(case.v)
        heads = torch.arange(case.num_q_heads)
        return {"dv": dv.index_add_(1, place(heads, case), shares)}

    found = told("p08", check, 0, elsewhere)
    assert found is not None and found.id == "GROUP-OF-OTHER-HEADS"
    assert note in found.text.note


def halves(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """P * dP, P * delta and k, with which dq is a difference of two sums."""
    probs = torch.exp(case.masked() - attend(case)["lse"][..., None])
    k = case.k[:, case.kv_heads]
    return probs * (case.dout @ case.values().mT), probs * delta(case), k


@pytest.mark.parametrize(
    ("other", "id", "title"),
    [
        (
            lambda case, ds, k: (ds * (case.key >= 32)) @ k,
            "OTHER-PAIRS",
            "P * delta of all pairs once: for query",
        ),
        (
            lambda case, ds, k: ds @ case.values(),
            "OTHER-TERMS",
            "P * delta is summed over rows of v",
        ),
    ],
)
def test_one_of_two_sums_of_dq_is_told(other, id: str, title: str) -> None:
    def make(case: Case) -> Made:
        first, second, k = halves(case)
        return {"dq": case.scale * (first @ k - other(case, second, k))}

    found = told("p08", "plain", 1, make)
    assert found is not None and found.id == id and title in found.text.title


def test_tiles_that_are_scaled_again_in_each_iteration_are_told() -> None:
    def make(case: Case) -> Made:
        powers = 0.5 ** ((case.seqlen_q - 1 - case.query) // 64)
        probs = torch.exp(case.masked() - attend(case)["lse"][..., None])
        return {"dv": (powers * probs).mT @ case.dout}

    found = told("p08", "plain", 1, make)
    assert found is not None and found.id == "SHARES-OF-A-GRADIENT"
    assert "queries 0-63 0.125 times, queries 64-127 0.25 times" in found.text.note


def of_far_pairs(case: Case, change: Callable[[Made, Made], Made]) -> Made:
    """Gradients whose part of sinks beyond the window is changed; given it and the rest."""
    right, near = (
        differentiate(case, visible_kv=case.visible(**sinks))
        for sinks in ({}, {"num_sink_tokens": 0})
    )
    return change({name: right[name] - near[name] for name in near}, near)


def without_queries(case: Case) -> Made:
    left_out = (case.query >= 128) & (case.query < 192) & ~case.visible(num_sink_tokens=0)
    return {"dk": differentiate(case, visible_kv=case.visible() & ~left_out)["dk"]}


@pytest.mark.parametrize(
    ("make", "title"),
    [
        (
            lambda case: of_far_pairs(case, lambda far, near: {"dv": near["dv"] + far["dv"] / 2}),
            "count 0.5 times in dv",
        ),
        (
            lambda case: of_far_pairs(
                case, lambda far, near: {"dv": near["dv"] + far["dk"] / case.scale}
            ),
            "give dS^T q to dv, where P^T dout is due",
        ),
        (without_queries, "missing in dk: those of queries 128-191"),
    ],
)
def test_far_pairs_of_sinks_are_told(make: Callable[[Case], Made], title: str) -> None:
    found = told("p09", "sinks", 0, make)
    assert found is not None and found.id == "SINK-PAIRS"
    assert title in found.text.title


def share(case: Case, slope: float = -1.0) -> torch.Tensor:
    """What each row gives to the sink logits; with slope 1 by the inverse of P."""
    lse = attend(case)["lse"]
    return -torch.exp(slope * (lse - case.sink_column())) * row_delta(case)


@pytest.mark.parametrize(
    ("number", "make", "title"),
    [
        (0, lambda case: -row_delta(case).sum((0, 2)), "the sum of -delta"),
        (0, lambda case: share(case, 1.0).sum((0, 2)), "of -exp(lse - sink_logits) * delta"),
        (2, lambda case: LOG2_E * share(case, 1.0).sum((0, 2)), None),
        (0, lambda case: -LOG2_E * share(case).sum((0, 2)), "log2(e) times the sum of P * delta"),
        (0, lambda case: share(case).sum((0, 1))[:2], "over batch and heads, at row h"),
        (0, lambda case: share(case).sum((0, 2)) ** 2, None),
    ],
)
def test_another_gradient_of_the_sink_logits_is_told(number, make, title: str | None) -> None:
    found = told("p09", "dsink_logits", number, lambda case: {"dsink_logits": make(case)})
    assert (found and found.id) == (title and "OTHER-SINK-GRADIENT")
    assert found is None or str(title) in found.text.title


def test_a_gradient_of_the_sink_logits_at_the_place_of_the_kv_head_is_told() -> None:
    def at_the_kv_head(case: Case) -> Made:
        made = torch.zeros_like(case.sink_logits)
        return {"dsink_logits": made.index_add_(0, case.kv_heads, share(case).sum((0, 2)))}

    found = told("p09", "together", 2, at_the_kv_head)
    assert found is not None and found.id == "OTHER-SINK-GRADIENT"
    assert "at the place of its kv head" in found.text.title


def test_a_gradient_of_the_sink_logits_without_the_last_rows_is_told() -> None:
    def of_whole_tiles(case: Case) -> Made:
        rows = case.seqlen_q // 128 * 128
        assert 0 < rows < case.seqlen_q
        return {"dsink_logits": share(case)[:, :, :rows].sum((0, 2))}

    found = told("p09", "together", 2, of_whole_tiles)
    assert found is not None and found.id == "OTHER-SINK-GRADIENT"
    assert "over the first 128 rows alone" in found.text.title


def with_term(term: Callable[[Case], torch.Tensor]) -> Callable[[Case], Made]:
    """Make out with another term in its denominator than exp(sink_logits[h])."""

    def make(case: Case) -> Made:
        alone = attend(case, sink_logits=torch.full_like(case.sink_logits, -math.inf))
        weight = 1.0 / (1.0 + term(case) * torch.exp(-alone["lse"]))
        return {"out": alone["out"] * weight[..., None]}

    return make


def on_key_zero(case: Case) -> Made:
    scores = case.masked().clone()
    scores[..., 0] += case.sink_logits[:, None]
    return {"out": scores.softmax(-1) @ case.values()}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (on_key_zero, "added to the score of key 0"),
        (with_term(lambda case: torch.exp(2.0 * case.sink_column())), "exp(2 * sink_logits[h])"),
        (
            with_term(lambda case: torch.exp(case.sink_logits[case.query[:, 0] // 64 % 2])),
            "heads have the sink logits of other heads",
        ),
    ],
)
def test_another_term_than_the_sink_logit_is_told(make, words: str) -> None:
    found = told("p09", "forward_sink_logits", 0, make)
    assert found is not None and found.id == "OTHER-SINK-LOGIT"
    assert words in found.text.title


@pytest.mark.parametrize(
    ("make", "id", "title"),
    [
        (lambda x, w: (x * w)[:, 128:].sum(1), "COLUMNS-COUNTED-OTHERWISE", "0-127 count not"),
        (
            lambda x, w: (x * w).sum(1) + (x * w)[:, :64].sum(1),
            "COLUMNS-COUNTED-OTHERWISE",
            "columns 0-63 count twice",
        ),
        (lambda x, w: (x * w).sum(1) + 7.0, "ROWS-OFFSET", "every row of y is 7 too large"),
        (lambda x, w: (x * w).sum(1).roll(1), "ROWS-ELSEWHERE", "row 0 of y is the sum of row"),
        (
            lambda x, w: (x * w).sum(1).unflatten(0, (-1, 16)).cumsum(0).flatten(),
            "ROWS-ELSEWHERE",
            "row 16 of y is the sum of rows 0 and 16 of x",
        ),
        (lambda x, w: (x * w).sum().expand(len(x)), "ROWS-ALIKE", "the sum over all of them"),
        (lambda x, w: (x * w).half().double().sum(1), None, ""),
        (lambda x, w: (x * w * w).sum(1), None, ""),
        (lambda x, w: (x * w).amax(1), None, ""),
    ],
)
def test_a_wrong_row_sum_is_told_by_what_it_is_made_of(make, id: str | None, title: str) -> None:
    case, inputs, expected = given("p02", "plain", 1)
    x, w = (inputs.all[name].double() for name in ("x", "w"))
    wrong = Outputs("p02", case, inputs, {"y": make(x, w).float()}, expected)
    assert fittable(wrong)
    found = fitted(wrong)
    assert (found and found.id) == id
    assert found is None or title in found.text.title
