"""The online softmax with a step changed, from which known mistakes are built."""

import math

import torch


def online(
    case,
    tile,
    *,
    rescale_acc=True,
    rescale_late=False,
    rescale_sum=True,
    sum_late=False,
    weight_scale=1.0,
):
    """Compute the online softmax over key tiles with a step changed.

    rescale_acc, rescale_sum: whether accumulator and sum are rescaled when the maximum grows;
    rescale_late, sum_late: whether they are rescaled after the tile was added, not before;
    weight_scale: a factor on score - maximum inside the weights.
    """
    scaled = None if weight_scale == 1.0 else weight_scale
    visits, running_max = case.once(_visits, tile=tile, weight_scale=scaled)
    running_sum = torch.zeros_like(running_max)
    acc = torch.zeros_like(case.q)
    for alpha, tile_sum, product in visits:
        running_sum = running_sum * (alpha if rescale_sum and not sum_late else 1.0)
        running_sum = (running_sum + tile_sum) * (alpha if sum_late else 1.0)
        acc = acc * (alpha[..., None] if rescale_acc and not rescale_late else 1.0)
        acc = acc + product
        acc = acc * (alpha[..., None] if rescale_late else 1.0)
    running_sum = running_sum + torch.exp(case.sink_column() - running_max)
    return {"out": acc / running_sum[..., None], "lse": running_max + running_sum.log()}


def _visits(case, tile, weight_scale=1.0):
    """Return per key tile rescaling factor, sum and product; and the last maximum."""
    scores, values = case.masked(), case.values()
    running_max = scores.new_full(scores.shape[:-1], -math.inf)
    found = []
    for start in range(0, case.seqlen_k, tile):
        part = scores[..., start : start + tile]
        new_max = torch.maximum(running_max, part.amax(-1))
        # For a row without a visible key so far, subtract 0: -inf - -inf would be NaN.
        safe_max = new_max.masked_fill(new_max == -math.inf, 0.0)
        alpha = torch.exp(running_max - safe_max)
        probs = torch.exp(weight_scale * (part - safe_max[..., None]))
        found.append((alpha, probs.sum(-1), probs @ values[..., start : start + tile, :]))
        running_max = new_max
    return found, running_max
