"""What a wrong output is made of is told, whatever made it; a right answer is asked nothing."""

from unittest import mock

import pytest
import torch

from grader.causes import diagnose
from grader.causes.outputs import Outputs
from grader.causes.rules import fits
from grader.causes.rules.fitted_rows import fitted
from grader.causes.rules.scaled import rows_scaled
from grader.checks.correctness import expect
from grader.spec.cases import resolve
from grader.spec.inputs import make_inputs
from grader.spec.problem import load_problem
from tests import forked
from tests.harness import Judged, edited, judge, model_answer
from tests.shares import drawn

PROBLEM = load_problem("p01")
LOOP = "range(0, visible_stop, tile_k)"
STOP = "k_stop = min(k_start + tile_k, visible_stop)"
RESCALE = "torch.exp(running_max - new_max)"
SCALE = "k_tile.transpose(1, 2), softmax_scale)"
OUT = "out.view(q.shape)"
TILE = "tile_matmul(q_tile, k_tile.transpose(1, 2), softmax_scale)"
HALF = "(k_tile * (torch.arange(64) < 32))"
TWICE = "torch.cat([q_tile[..., :32], q_tile[..., :32]], -1)"

_quick = forked.quick


def of(old: str, new: str) -> Judged:
    return judge(edited(model_answer("p01"), (old, new)), PROBLEM, checks=("plain", "one_tile"))


@pytest.mark.parametrize(
    ("old", "new", "id", "title"),
    drawn([
        (SCALE, SCALE.replace("scale", "scale / 2"), "OTHER-SCALE", "0.0625 (softmax_scale / 2)"),
        (SCALE, SCALE.replace("soft", "-soft"), "OTHER-SCALE", "-0.125 (-softmax_scale)"),
        (SCALE, SCALE.replace("scale", "scale * 0.77"), "OTHER-SCALE", "0.09625, not by 0.125"),
        (TILE, TILE.replace("k_tile", HALF), "OTHER-COLUMNS", "columns 0-31 of head_dim alone"),
        (TILE, TILE.replace("q_tile", TWICE), "OTHER-COLUMNS", "0-31 of q again and again"),
        (LOOP, LOOP.replace("(0", "(1"), "KEYS-NEVER-VISITED", "never visited"),
        (LOOP, LOOP.replace("tile_k)", "2 * tile_k)"), "KEYS-NEVER-VISITED", "never visited"),
        (LOOP, LOOP.replace("tile_k)", "tile_k // 2)"), "OTHER-KEYS", "keys 64-255 counted twice"),
        (STOP, STOP.replace("tile_k,", "tile_k + 1,"), "OTHER-KEYS", "key 128 counted twice"),
        (RESCALE, RESCALE.replace("exp", "exp2"), "TILE-SHARES", "tiles of 128 keys"),
        (RESCALE, f"{RESCALE} ** 2", "TILE-SHARES", "tiles of 128 keys"),
        (OUT, OUT.replace("out", "out.mT.reshape(out.shape)"), "OUTPUT-REORDERED", "another order"),
        (OUT, OUT.replace("out", "out.flip(1)"), "OUTPUT-REORDERED", "numbers in other places"),
    ], 4, lambda case: case[2]),
)  # fmt: skip
def test_a_fit_tells_what_the_rows_are_made_of(old: str, new: str, id: str, title: str) -> None:
    (cause,) = of(old, new).findings.causes
    assert cause.diagnosis.id == f"P01-{id}"
    assert title in cause.diagnosis.title


def test_rows_of_no_such_thing_are_told_as_nothing() -> None:
    squared = of("v_tile = v_heads[:, k_start:k_stop]", "v_tile = v_heads[:, k_start:k_stop] ** 2")
    assert squared.wrong and not squared.findings.causes


def test_what_is_right_or_known_pays_for_no_fit() -> None:
    with mock.patch.object(diagnose, "fitted", side_effect=AssertionError):
        assert not of(RESCALE, RESCALE).wrong
        assert of(RESCALE, "torch.ones_like(new_max)").named == {"RESCALE-MISSING"}


def test_a_fit_is_of_finite_fp32_rows_alone() -> None:
    with mock.patch.object(diagnose, "fitted", wraps=fitted) as fit:
        of("out[:, q_start:q_stop] = acc", "out[:, q_start:q_stop] = torch.nan * acc")
    assert not fit.called


def outputs_of(problem_id: str, given: dict, name: str, made) -> Outputs:
    """Right outputs of a case, but for the one that `made` computes of the inputs in fp64."""
    problem, case = load_problem(problem_id), resolve(given, "fp32", "")
    inputs = make_inputs(problem, case, 1)
    expected = expect(problem, case, inputs, (name,))
    of = {n: t.double() for n, t in inputs.all.items()}
    got = {name: made(of).float().reshape(expected.truth[name].shape)}
    return Outputs(problem_id, case, inputs, got, expected)


def quarters(of):
    """Sums of four quarters of the columns, stored as (4, rows) and read as (rows, 4)."""
    return torch.stack([part.sum(1) for part in (of["x"] * of["w"]).chunk(4, 1)]).view(-1, 4).sum(1)


def halves(of):
    """Attention of two halves of the keys, stored as (heads, 2, ..) and read as (2, heads, ..)."""
    q, k, v = (of[name][0] for name in "qkv")
    weights = (q @ k.mT * q.shape[-1] ** -0.5).exp()
    parts = list(zip(weights.chunk(2, -1), v.chunk(2, 1), strict=True))
    acc = torch.stack([w @ x for w, x in parts], 1).view(2, *q.shape).sum(0)
    return acc / torch.stack([w.sum(-1) for w, _ in parts], 1).view(2, *q.shape[:2], 1).sum(0)


def tiles(of):
    """The logits' gradients of four tiles, as (batch, 2 heads, tile), read as (tile, 2, batch)."""
    sink = of["sink_logits"].exp()[None, :, None]
    keys = torch.arange(1, 129)
    out = (of["q"] @ of["k"].mT * 0.125).masked_fill(keys > keys[:, None], -torch.inf).exp()
    total = out.sum(-1) + sink
    delta = (out @ of["v"] / total[..., None] * of["dout"]).sum(-1)
    return (-sink / total * delta).unflatten(2, (4, 32)).sum(3).view(4, 2, -1).sum((0, 2))


@pytest.mark.parametrize(
    ("problem_id", "given", "name", "made", "words"),
    [
        ("p02", {"rows": 32, "cols": 256}, "y", quarters, "(split, row) and read as (row, split)"),
        ("p03", {"seqlen": 128, "num_q_heads": 3, "num_kv_heads": 3}, "out", halves, "64 keys"),
        (
            *("p09", {"seqlen": 128, "num_q_heads": 2, "num_kv_heads": 2, "batch": 3}),
            *("dsink_logits", tiles, "(batch, head, tile) and read as (tile, head, batch)"),
        ),
    ],
)
def test_right_parts_that_are_added_up_in_another_order(problem_id, given, name, made, words):
    options = {"sink_logits": True, "window_size": 128} if problem_id == "p09" else {}
    found = fits.fitted(outputs_of(problem_id, given | options, name, made))
    assert found.id == "PARTS-REORDERED" and found.figures["name"] == name
    text = "{of} stored as ({stored}) and read as ({read})".format(**found.figures)
    assert words in text


@pytest.mark.parametrize(("more", "variant"), [(1.0, "of_a_term"), (2.0, "of_empty_parts")])
def test_terms_of_no_key_in_the_sums_of_all_rows_or_of_some(more, variant):
    def made(of):
        weights = (of["q"] @ of["k"].mT * 0.125).exp()
        first = torch.arange(128)[:, None] < 48
        added = first * more if variant == "of_empty_parts" else more
        return weights @ of["v"] / (weights.sum(-1, keepdim=True) + added)

    found = rows_scaled(outputs_of("p03", {"seqlen": 128}, "out", made), ("out",))
    number = found.figures["number" if variant == "of_empty_parts" else "term"]
    assert (found.id, found.variant) == ("ROWS-SCALED", variant)
    assert number == pytest.approx(more, rel=1e-3)


@pytest.mark.parametrize("order", [(0, 2, 1, 3), (0, 1, 3, 2)])
def test_heads_of_groups_in_another_order(order):
    """An lse of (batch, kv heads, group, rows) whose middle axes are exchanged, read as it is."""
    given = {"seqlen": 64, "num_q_heads": 6, "num_kv_heads": 2}

    def made(of):
        k = of["k"].repeat_interleave(3, 1)
        scores = (of["q"] @ k.mT * 0.125).masked_fill(torch.ones(64, 64).triu(1) > 0, -torch.inf)
        return scores.logsumexp(-1).unflatten(1, (2, 3)).permute(order)

    found = fits.fitted(outputs_of("p05", given, "lse", made))
    assert (found.id, found.figures["name"]) == ("OUTPUT-REORDERED", "lse")
