"""Known mistakes in scale, softmax and lse."""

import math

import torch

from .mistakes_mask import ATTENTION
from .variants import LOG2_E, attend, known, known_per_tile
from .variants_online import online

FORWARD = ("p01", "p03", "p04", "p05", "p06", "p07")
KERNELS = FORWARD[1:]  # of these in Triton, whose exponentials are to base 2
_LARGEST_EXPONENT = 110.0  # of a weight whose products and sums still fit in fp32


def _with_lse(case, lse):
    return {"out": attend(case)["out"], "lse": lse}


def out_of(case, **changes):
    return {"out": attend(case, **changes)["out"]}


def _scaled(case, scale):
    return attend(case, scale=scale)


def row_weights(case):
    """Unnormalised weights exp(score - row maximum), that maximum, and their sum."""
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
    # Where softmax_scale is negative, its sign has moved to q.
    scale = math.copysign(1.0, case.scale)
    largest = case.masked(scale=scale).amax(-1)
    # The maximum that is subtracted is a scaled one: what it leaves may be too much for fp32.
    overflows = largest * (1.0 - abs(case.scale) * LOG2_E) > _LARGEST_EXPONENT
    result = _scaled(case, scale / LOG2_E)
    rows = {"out": overflows[..., None], "lse": overflows}
    return {name: value.masked_fill(rows[name], math.nan) for name, value in result.items()}


def _scaled_in_weights(case, tile):
    return online(case, tile, weight_scale=abs(case.scale) * LOG2_E)


def _sum_rescaled_late(case, tile):
    result = online(case, tile, sum_late=True)
    # Where the maximum is in the last tile the sum is 0; what a division by it gives is not known.
    return result | {"out": result["out"].masked_fill(result["out"].isinf(), math.nan)}


def _state_swapped(case, tile):
    """The online softmax in units of log2 whose update takes the maximum for the sum."""
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


_SCALE = "multiply the scores by softmax_scale, 1/sqrt(head_dim) by default, exactly once"
_LSE = "return a natural logarithm: keep maximum and sum in one unit, and convert at the end"
_RESCALE = (
    "multiply accumulator and sum by exp(old maximum - new one); only then keep the new maximum"
)
_UNITS = "keep scores, maximum and weights in one unit: scale once, then exp2 of the difference"

SOFTMAX_MISTAKES = (
    known(
        "ZEROS",
        ATTENTION,
        "the output is zero everywhere",
        "your output equals zeros",
        "add the weighted values to acc in the loop over key tiles, and store acc after it",
        lambda case: {"out": torch.zeros_like(case.q)},
    ),
    known(
        "MEAN-VALUE",
        ATTENTION,
        "all visible keys have the same weight",
        "your output equals the mean of v over the visible keys",
        "let the scores enter the weights: exp(score - maximum) differs from key to key",
        lambda case: out_of(case, scale=0.0),
    ),
    known(
        "SCALE-MISSING",
        ATTENTION,
        "scores are not scaled",
        "your output equals attention with softmax_scale = 1",
        _SCALE,
        lambda case: _scaled(case, 1.0),
    ),
    known(
        "SCALE-SQUARED",
        ATTENTION,
        "scores are scaled twice: by 1/head_dim instead of 1/sqrt(head_dim)",
        "your output equals attention with softmax_scale squared",
        _SCALE,
        lambda case: _scaled(case, case.scale**2),
    ),
    known(
        "SCALE-TWICE-IN-LOG2",
        KERNELS,
        "scores are scaled twice, each time in units of log2",
        "your output equals attention with softmax_scale squared times log2(e)",
        "pass scores to the online softmax as the dot gives them: it applies scale_log2 itself",
        lambda case: _scaled(case, case.scale * abs(case.scale) * LOG2_E),
    ),
    *known_per_tile(
        "SCALE-AGAIN-IN-WEIGHTS",
        KERNELS,
        "scores that are already scaled are scaled again inside the weights",
        "your output equals an online softmax over tiles of {tile} keys, the weights scaled twice",
        _UNITS,
        _scaled_in_weights,
    ),
    known(
        "WEIGHTS-OF-RAW-SCORES",
        KERNELS,
        "the weights are 2 to the power of scores that are not scaled",
        "your output equals attention with weights 2^(q @ k)",
        _UNITS,
        _raw_scores_in_exp2,
    ),
    known(
        "SCALE-INVERTED",
        ATTENTION,
        "scores are divided by the scale, so multiplied by sqrt(head_dim)",
        "your output equals attention with 1/softmax_scale",
        _SCALE,
        lambda case: _scaled(case, 1.0 / case.scale if case.scale else 0.0),
    ),
    known(
        "SCALE-OPTION-IGNORED",
        ATTENTION,
        "the softmax_scale that was passed is not used",
        "your output equals attention with the default scale 1/sqrt(head_dim)",
        "use softmax_scale where it is given and 1/sqrt(head_dim) only where it is None",
        lambda case: _scaled(case, case.default_scale),
    ),
    known(
        "EXP2-WITHOUT-LOG2E",
        ATTENTION,
        "exp2 is applied to scores in natural units",
        "your output equals attention with weights 2^score",
        "fold log2(e) into the scale when the weights are taken with exp2",
        lambda case: out_of(case, scale=case.scale / LOG2_E),
    ),
    known(
        "EXP-WITH-LOG2E",
        ATTENTION,
        "exp is applied to scores in units of log2",
        "your output equals attention with softmax_scale * log2(e)",
        "take exp2, not exp, of scores whose scale contains log2(e)",
        lambda case: out_of(case, scale=case.scale * LOG2_E),
    ),
    *known_per_tile(
        "RESCALE-MISSING",
        ATTENTION,
        "nothing is rescaled when the running maximum grows",
        "your output equals an online softmax over tiles of {tile} keys without rescaling",
        _RESCALE,
        lambda case, tile: online(case, tile, rescale_acc=False, rescale_sum=False),
    ),
    *known_per_tile(
        "RESCALE-ACC-MISSING",
        ATTENTION,
        "the accumulator is not rescaled when the running maximum grows",
        "your output equals an online softmax over tiles of {tile} keys, only the sum rescaled",
        _RESCALE,
        lambda case, tile: online(case, tile, rescale_acc=False),
    ),
    *known_per_tile(
        "RESCALE-ACC-LATE",
        ATTENTION,
        "the accumulator is rescaled after the tile was added, not before",
        "your output equals an online softmax over tiles of {tile} keys, the newest tile rescaled",
        "rescale acc first, then add the weights of the new tile times its values",
        lambda case, tile: {"out": online(case, tile, rescale_late=True)["out"]},
    ),
    *known_per_tile(
        "RESCALE-SUM-MISSING",
        ATTENTION,
        "the running sum is not rescaled when the running maximum grows",
        "your output equals an online softmax over tiles of {tile} keys, only acc rescaled",
        _RESCALE,
        lambda case, tile: online(case, tile, rescale_sum=False),
    ),
    *known_per_tile(
        "RESCALE-SUM-LATE",
        ATTENTION,
        "the running sum is rescaled after the tile was added, not before",
        "your output equals an online softmax over tiles of {tile} keys, the newest sum rescaled",
        "rescale the running sum first, then add the sum of the new tile's weights",
        _sum_rescaled_late,
    ),
    *known_per_tile(
        "RUNNING-MAX-FORGOTTEN",
        FORWARD,
        "the running maximum stays at minus infinity",
        "your output equals attention to the last tile of {tile} keys alone, and lse is -inf",
        "keep the new maximum as the running maximum of the next iteration",
        _last_tile_alone,
    ),
    *known_per_tile(
        "SUM-AND-MAX-SWAPPED",
        ("p03", "p04", "p05"),
        "the running maximum and the running sum have changed places",
        "your output equals an online softmax over tiles of {tile} keys with the two exchanged",
        "pass the running maximum and the running sum in the order in which they are declared",
        _state_swapped,
    ),
    *known_per_tile(
        "ACC-OVERWRITTEN",
        ATTENTION,
        "only the last tile of keys reaches the output",
        "your output equals the share of the last tile of {tile} keys",
        "add the product of weights and values to the accumulator instead of replacing it",
        _acc_overwritten,
    ),
    known(
        "NOT-NORMALISED",
        ATTENTION,
        "the output is not divided by the sum of the weights",
        "your output equals exp(scores - maximum) @ v",
        "divide the accumulator by the running sum after the last tile",
        lambda case: {"out": row_weights(case)[0] @ case.values()},
    ),
    known(
        "SOFTMAX-OVER-QUERIES",
        ATTENTION,
        "the softmax runs over the queries instead of the keys",
        "your output equals attention with weights that sum to 1 down each column",
        "take maximum and sum along the keys, the last axis of a tile of scores",
        lambda case: {"out": torch.softmax(case.masked(), dim=-2) @ case.values()},
    ),
    known(
        "FIRST-KEY-ONLY",
        ATTENTION,
        "every query returns the value of its first visible key",
        "your output equals the row of v at the first visible key",
        "sum over all visible keys",
        lambda case: _first_visible(case, case.visible()),
    ),
    known(
        "LAST-KEY-ONLY",
        ATTENTION,
        "every query returns the value of its last visible key",
        "your output equals the row of v at the last visible key",
        "sum over all visible keys",
        _last_visible,
    ),
    known(
        "LSE-BASE-2",
        FORWARD,
        "lse is a logarithm to base 2",
        "your lse equals log2 of the sum of exponentials; out is right",
        _LSE,
        lambda case: _with_lse(case, attend(case)["lse"] * LOG2_E),
    ),
    known(
        "LSE-UNITS-MIXED",
        FORWARD,
        "lse adds a maximum in units of log2 to a natural logarithm",
        "your lse equals maximum * log2(e) + log(sum); out is right",
        _LSE,
        lambda case: _lse_in_units(case, of_max=LOG2_E),
    ),
    known(
        "LSE-SUM-IN-LOG2",
        FORWARD,
        "lse adds a natural maximum to a logarithm to base 2",
        "your lse equals maximum + log2(sum); out is right",
        _LSE,
        lambda case: _lse_in_units(case, of_log=LOG2_E),
    ),
    known(
        "LSE-LOG-SCALED",
        KERNELS,
        "lse multiplies a natural logarithm by ln(2), as if it were to base 2",
        "your lse equals maximum + log(sum) * log(2); out is right",
        _LSE,
        lambda case: _lse_in_units(case, of_log=1.0 / LOG2_E),
    ),
    known(
        "LSE-WITHOUT-MAX",
        FORWARD,
        "lse lacks the running maximum",
        "your lse equals log(sum of exp(score - maximum)); out is right",
        "add the running maximum to the logarithm of the running sum",
        lambda case: _with_lse(case, row_weights(case)[2].log()),
    ),
    known(
        "LSE-WITHOUT-SUM",
        FORWARD,
        "lse lacks the logarithm of the running sum",
        "your lse equals the largest score of the row; out is right",
        "add the running maximum to the logarithm of the running sum",
        lambda case: _with_lse(case, row_weights(case)[1]),
    ),
    known(
        "LSE-UNSCALED-MAX",
        FORWARD,
        "lse contains the maximum of the scores before scaling",
        "your lse equals maximum / softmax_scale + log(sum); out is right",
        "keep the running maximum of the scaled scores, or scale it before adding it",
        _lse_unscaled_max,
    ),
)
