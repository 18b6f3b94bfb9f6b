"""Known mistakes of p01 in its tiles, whose sizes are arguments."""

from functools import partial

import torch

from .mistakes_softmax import row_weights
from .variants import attend, in_fp32, known
from .variants_online import online

P01 = ("p01",)


def _sum_overwritten(case):
    last_tile = case.key // case.tile_k == case.last_key // case.tile_k
    weights, row_max, _ = row_weights(case)
    row_sum = in_fp32((weights * last_tile).sum(-1))
    out = weights @ case.values() / row_sum[..., None]
    return {"out": out, "lse": row_max + row_sum.log()}


def _k_reshaped(case):
    scores = case.scores().clone()
    for end in case.walk_end.unique().tolist():
        rows = (case.walk_end == end)[:, 0]
        for start in range(0, end, case.tile_k):
            k_tile = case.k[:, :, start : min(start + case.tile_k, end)]
            reshaped = k_tile.reshape(*k_tile.shape[:2], k_tile.shape[3], k_tile.shape[2])
            keys = slice(start, start + k_tile.shape[2])
            scores[:, :, rows, keys] = case.scale * case.q[:, :, rows] @ reshaped
    scores.masked_fill_(~case.visible(), -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    return {"out": torch.exp(scores - lse[..., None]) @ case.values(), "lse": lse}


def _walked(case, step, width):
    """Return attention over tiles of `width` keys that begin at multiples of `step`."""
    before = ((case.key - width) // step).clamp(min=-1)
    return attend(case, case.visible() * (case.key // step - before))


def _masked(case, shown, *, every_tile=False, whole=False):
    """Return attention with `shown` as the mask of the tiles on the diagonal, or of every tile.

    The last tile ends at the query tile's end, or is `whole`. The result of a row whose first tile
    is all hidden, exp(-inf - (-inf)), is undetermined.
    """
    if not case.is_causal:
        return attend(case)
    tile_end = (case.key // case.tile_k + 1) * case.tile_k
    if not every_tile:
        first_query = case.query_tile_end - case.tile_q
        shown = shown | (torch.minimum(tile_end, case.walk_end) - 1 <= first_query)
    stop = -(-case.walk_end // case.tile_k) * case.tile_k if whole else case.walk_end
    shown = shown & (case.key < stop)
    begins = shown[:, : case.tile_k].any(1)
    undetermined = {"out": ~begins[:, None], "lse": ~begins}
    found = attend(case, shown)
    if begins.all():
        return found
    return {name: value.masked_fill(undetermined[name], torch.nan) for name, value in found.items()}


def _mask_inside_the_tile(case, *, rows=True, columns=True, **how):
    row = case.query % case.tile_q if rows else case.query
    column = case.key % case.tile_k if columns else case.key
    return _masked(case, column <= row, **how)


def _hidden_scores_zero(case, *, whole=False):
    if not case.is_causal:
        return attend(case)
    stop = -(-case.walk_end // case.tile_k) * case.tile_k if whole else case.walk_end
    scores = case.scores().masked_fill(~case.visible(), 0.0)
    scores.masked_fill_(case.key >= stop, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    return {"out": torch.exp(scores - lse[..., None]) @ case.values(), "lse": lse}


def _diagonal_skipped(case):
    if not case.is_causal:
        return attend(case)
    # The first queries have no full tile: their result is NaN, that is undetermined.
    return attend(case, case.visible() & (case.key < case.query_tile_end - case.tile_q))


TILE_MISTAKES = (
    known("SUM-OVERWRITTEN", P01, _sum_overwritten),
    known(
        "SCALE-AGAIN-IN-WEIGHTS",
        P01,
        lambda case: online(case, case.tile_k, weight_scale=case.scale),
    ),
    known("K-RESHAPED", P01, _k_reshaped),
    known(
        "LOOP-OVER-SEQLEN-Q",
        P01,
        lambda case: attend(case, case.visible() & (case.key < case.seqlen_q)),
    ),
    known("KEY-TILES-END-AT-TILE-Q", P01, lambda case: _walked(case, case.tile_k, case.tile_q)),
    known("KEY-TILES-BEGIN-AT-TILE-Q", P01, lambda case: _walked(case, case.tile_q, case.tile_k)),
    known("MASK-INSIDE-THE-TILE", P01, _mask_inside_the_tile),
    *(
        known("MASK-INVERTED", P01, compute, variant="of_p01", mask=mask)
        for mask, compute in (
            ("key >= query", lambda case: _masked(case, case.key >= case.query)),
            ("key > query", lambda case: _masked(case, case.key > case.query)),
        )
    ),
    known("MASK-INSIDE-EVERY-TILE", P01, partial(_mask_inside_the_tile, every_tile=True)),
    *(
        known(
            f"MASK-INSIDE-{'EVERY' if every_tile else 'THE'}-TILE",
            P01,
            partial(_mask_inside_the_tile, **{inside: False}, every_tile=every_tile, whole=whole),
            variant="of_p01",
            mask=mask,
            tiles=tiles,
        )
        for every_tile, whole, tiles in (
            (False, False, "the tiles on the diagonal"),
            (True, False, "every tile"),
            (True, True, "every whole tile"),
        )
        for inside, mask in (("columns", "key <= row"), ("rows", "column <= query"))
    ),
    known(
        "DIAGONAL-TILES-NOT-MASKED",
        P01,
        lambda case: attend(case, (case.key < case.walk_end).expand_as(case.visible())),
    ),
    *(
        known(
            "MASKED-SCORES-NOT-HIDDEN",
            P01,
            partial(_hidden_scores_zero, whole=whole),
            variant="of_p01",
            tile_of=tile,
        )
        for tile, whole in (("tile", False), ("whole tile", True))
    ),
    known("DIAGONAL-TILES-SKIPPED", P01, _diagonal_skipped),
)
