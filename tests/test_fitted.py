"""What a wrong output is made of is told, whatever made it; a right answer is asked nothing."""

from unittest import mock

import pytest

from grader.causes import diagnose
from grader.causes.rules.fitted_rows import fitted
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
