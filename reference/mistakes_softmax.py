"""Known mistakes in scale, softmax and lse."""

import math

import torch

from .mistakes_mask import ATTENTION
from .variants import LOG2_E, attend, known, known_per_tile
from .variants_online import online

FORWARD = ("p01", "p03", "p04", "p05", "p06", "p07")
KERNELS = FORWARD[1:]  # those in Triton, which use exp2
_LARGEST_EXPONENT = 110.0  # of 2, up to which products and sums of weights fit in fp32


def _with_lse(case, lse):
    return {"out": attend(case)["out"], "lse": lse}


def out_of(case, **changes):
    return {"out": attend(case, **changes)["out"]}


def _scaled(case, scale):
    return attend(case, scale=scale)


def row_weights(case):
    """Return the weights exp(score - row maximum), that maximum, and the sum of the weights."""
    return case.once(_row_weights)


def _row_weights(case):
    scores = case.masked()
    row_max = scores.amax(-1)
    weights = torch.exp(scores - row_max[..., None])
    return weights, row_max, weights.sum(-1) + torch.exp(case.sink_column() - row_max)


def _lse_in_units(case, of_max=1.0, of_log=1.0):
    _, row_max, row_sum = row_weights(case)
    return _with_lse(case, of_max * row_max + of_log * row_sum.log())


def _lse_unscaled_max(case):
    _, row_max, row_sum = row_weights(case)
    return _with_lse(case, row_max / (case.scale or 1.0) + row_sum.log())


def _acc_overwritten(case, tile):
    last_tile = (case.key // tile == case.last_key // tile).double()
    weights, _, row_sum = row_weights(case)
    return {"out": (weights * last_tile / row_sum[..., None]) @ case.values()}


def _last_tile_alone(case, tile):
    last_tile = case.key // tile == case.last_key // tile
    result = attend(case, case.visible() & last_tile)
    return {"out": result["out"], "lse": torch.full_like(result["lse"], -math.inf)}


def _raw_scores_in_exp2(case):
    # A kernel moves the sign of a negative softmax_scale into q.
    scale = math.copysign(1.0, case.scale)
    largest = case.masked(scale=scale).amax(-1)
    # The subtracted maximum is scaled, so the difference may overflow exp2 in fp32.
    overflows = largest * (1.0 - abs(case.scale) * LOG2_E) > _LARGEST_EXPONENT
    result = _scaled(case, scale / LOG2_E)
    rows = {"out": overflows[..., None], "lse": overflows}
    return {name: value.masked_fill(rows[name], math.nan) for name, value in result.items()}


def _scaled_in_weights(case, tile):
    return online(case, tile, weight_scale=abs(case.scale) * LOG2_E)


def _sum_rescaled_late(case, tile):
    result = online(case, tile, sum_late=True)
    # Where the maximum is in the last tile the sum is 0, and the quotient undetermined.
    return result | {"out": result["out"].masked_fill(result["out"].isinf(), math.nan)}


def _state_swapped(case, tile):
    """Return the online softmax in units of log2 whose update swaps maximum and sum."""
    scores = case.masked() * LOG2_E
    running_max = scores.new_full(scores.shape[:-1], -math.inf)
    running_sum, acc, values = (
        torch.zeros_like(running_max),
        torch.zeros_like(case.q),
        case.values(),
    )
    for start in range(0, case.seqlen_k, tile):
        part = scores[..., start : start + tile]
        new_max = torch.maximum(running_sum, part.amax(-1))
        rescale = torch.exp2(running_sum - new_max)
        probs = torch.exp2(part - new_max[..., None])
        new_sum = running_max * rescale + probs.sum(-1)
        new_acc = acc * rescale[..., None] + probs @ values[..., start : start + tile, :]
        visited = (start // tile <= case.last_key // tile)[:, 0]
        running_max = torch.where(visited, new_max, running_max)
        running_sum = torch.where(visited, new_sum, running_sum)
        acc = torch.where(visited[:, None], new_acc, acc)
    lse = (running_max + running_sum.log2()) / LOG2_E
    return {"out": acc / running_sum[..., None], "lse": lse}


def _first_visible(case, visible):
    return {"out": attend(case, visible & (visible.long().cumsum(1) == 1))["out"]}


def _last_visible(case):
    last = case.visible().flip(1).long().cumsum(1).flip(1) == 1
    return {"out": attend(case, case.visible() & last)["out"]}


SOFTMAX_MISTAKES = (
    known("ZEROS", ATTENTION, lambda case: {"out": torch.zeros_like(case.q)}),
    known("MEAN-VALUE", ATTENTION, lambda case: out_of(case, scale=0.0)),
    known("SCALE-MISSING", ATTENTION, lambda case: _scaled(case, 1.0)),
    known("SCALE-SQUARED", ATTENTION, lambda case: _scaled(case, case.scale**2)),
    known(
        "SCALE-TWICE-IN-LOG2",
        KERNELS,
        lambda case: _scaled(case, case.scale * abs(case.scale) * LOG2_E),
    ),
    *known_per_tile("SCALE-AGAIN-IN-WEIGHTS", KERNELS, _scaled_in_weights, "of_tiles"),
    known("WEIGHTS-OF-RAW-SCORES", KERNELS, _raw_scores_in_exp2),
    known(
        "SCALE-INVERTED",
        ATTENTION,
        lambda case: _scaled(case, 1.0 / case.scale if case.scale else 0.0),
    ),
    known("SCALE-OPTION-IGNORED", ATTENTION, lambda case: _scaled(case, case.default_scale)),
    known("EXP2-WITHOUT-LOG2E", ATTENTION, lambda case: out_of(case, scale=case.scale / LOG2_E)),
    known("EXP-WITH-LOG2E", ATTENTION, lambda case: out_of(case, scale=case.scale * LOG2_E)),
    *known_per_tile(
        "RESCALE-MISSING",
        ATTENTION,
        lambda case, tile: online(case, tile, rescale_acc=False, rescale_sum=False),
    ),
    *known_per_tile(
        "RESCALE-ACC-MISSING", ATTENTION, lambda case, tile: online(case, tile, rescale_acc=False)
    ),
    *known_per_tile(
        "RESCALE-ACC-LATE",
        ATTENTION,
        lambda case, tile: {"out": online(case, tile, rescale_late=True)["out"]},
    ),
    *known_per_tile(
        "RESCALE-SUM-MISSING", ATTENTION, lambda case, tile: online(case, tile, rescale_sum=False)
    ),
    *known_per_tile("RESCALE-SUM-LATE", ATTENTION, _sum_rescaled_late),
    *known_per_tile("RUNNING-MAX-FORGOTTEN", FORWARD, _last_tile_alone),
    *known_per_tile("SUM-AND-MAX-SWAPPED", ("p03", "p04", "p05"), _state_swapped),
    *known_per_tile("ACC-OVERWRITTEN", ATTENTION, _acc_overwritten),
    known("NOT-NORMALISED", ATTENTION, lambda case: {"out": row_weights(case)[0] @ case.values()}),
    known(
        "SOFTMAX-OVER-QUERIES",
        ATTENTION,
        lambda case: {"out": torch.softmax(case.masked(), dim=-2) @ case.values()},
    ),
    known("FIRST-KEY-ONLY", ATTENTION, lambda case: _first_visible(case, case.visible())),
    known("LAST-KEY-ONLY", ATTENTION, _last_visible),
    known("LSE-BASE-2", FORWARD, lambda case: _with_lse(case, attend(case)["lse"] * LOG2_E)),
    known("LSE-UNITS-MIXED", FORWARD, lambda case: _lse_in_units(case, of_max=LOG2_E)),
    known("LSE-SUM-IN-LOG2", FORWARD, lambda case: _lse_in_units(case, of_log=LOG2_E)),
    known("LSE-LOG-SCALED", KERNELS, lambda case: _lse_in_units(case, of_log=1.0 / LOG2_E)),
    known("LSE-WITHOUT-MAX", FORWARD, lambda case: _with_lse(case, row_weights(case)[2].log())),
    known("LSE-WITHOUT-SUM", FORWARD, lambda case: _with_lse(case, row_weights(case)[1])),
    known("LSE-UNSCALED-MAX", FORWARD, _lse_unscaled_max),
)
