"""Known mistakes in the first steps of p03, a row's log-sum-exp, and p08, gradients in PyTorch."""

import math
from dataclasses import replace
from functools import partial

import torch

from .mistakes_backward import BACKWARD_MISTAKES
from .mistakes_of_rows import ROW_MISTAKES
from .variants import LOG2_E, Mistake, in_fp32, known

_LN_2 = 1.0 / LOG2_E
_COLUMNS = 128  # of a tile of p03's first step, and keys of one of p08's


def _of_row(id, compute, variant=""):
    """Return a mistake of `row_logsumexp`; compute(x), x (rows, cols) in fp64, returns lse."""

    def fn(inputs, options):
        return {"lse": compute(inputs["x"].double())}

    return Mistake(id, ("p03",), fn, variant=variant)


def _row_sum(x, *, rescaled=True, overwritten=False):
    """Return the maximum of each row, and the sum of exp(x - maximum), with a step changed."""
    row_max, row_sum = x.new_full(x.shape[:1], -math.inf), x.new_zeros(x.shape[:1])
    for part in x.split(_COLUMNS, dim=1):
        new_max = torch.maximum(row_max, part.amax(1))
        before = row_sum * (torch.exp(row_max - new_max) if rescaled else 1.0)
        row_sum = torch.exp(part - new_max[:, None]).sum(1) + (0.0 if overwritten else before)
        row_max = new_max
    return row_max, row_sum


def _lse_of(x, **changes):
    row_max, row_sum = _row_sum(x, **changes)
    return row_max + in_fp32(row_sum).log()


def _padded(x):
    return torch.nn.functional.pad(x, (0, -x.shape[1] % _COLUMNS)).logsumexp(1)


def _whole_tiles(x):
    cols = x.shape[1] // _COLUMNS * _COLUMNS
    return x[:, :cols].logsumexp(1)


def _pytorch(case, *, probs=None, of_query=1.0):
    """Return the gradients of p08's first step with P, or the pairs that reach dq, replaced."""
    scores = case.scores().masked_fill(~case.visible(), -math.inf)
    probs = scores.softmax(-1) if probs is None else probs(scores)
    values, keys = case.values(), case.k[:, case.kv_heads]
    delta = (case.dout * (scores.softmax(-1) @ values)).sum(-1, keepdim=True)
    dscores = probs * (case.dout @ values.mT - delta)

    def of_group(per_head):
        return per_head.unflatten(1, (case.num_kv_heads, case.group_size)).sum(2)

    return {
        "dq": case.scale * (dscores * of_query) @ keys,
        "dk": of_group(case.scale * dscores.mT @ case.q),
        "dv": of_group(probs.mT @ case.dout),
    }


def _softmax_of_each_tile(scores):
    tiles = [tile.softmax(-1).nan_to_num(0.0) for tile in scores.split(_COLUMNS, dim=-1)]
    return torch.cat(tiles, -1)


def _last_tile(case):
    return (case.key // _COLUMNS == case.query // _COLUMNS).double()


_OF_A_ROW = (
    _of_row("ROW-LSE-BASE-2", lambda x: x.logsumexp(1) * LOG2_E),
    _of_row("ROW-IN-NATURAL-UNITS", lambda x: (x * _LN_2).logsumexp(1)),
    _of_row(
        "ROW-UNITS-MIXED",
        lambda x: x.amax(1) * _LN_2 + (x - x.amax(1, keepdim=True)).exp().sum(1).log(),
    ),
    _of_row("ROW-RESCALE-MISSING", lambda x: _lse_of(x, rescaled=False)),
    _of_row("ROW-SUM-OVERWRITTEN", lambda x: _lse_of(x, overwritten=True), "of_lse"),
    _of_row("ROW-PADDING-COUNTED", _padded),
    _of_row("ROW-LAST-TILE-DROPPED", _whole_tiles),
    _of_row("ROW-FIRST-TILE-ONLY", lambda x: x[:, :_COLUMNS].logsumexp(1)),
    _of_row("ROW-WITHOUT-MAX", lambda x: x.logsumexp(1) - x.amax(1)),
)

_OF_GRADIENTS = (
    *BACKWARD_MISTAKES,
    *ROW_MISTAKES,
    known(
        "SOFTMAX-OF-EACH-TILE", ("p08",), lambda case: _pytorch(case, probs=_softmax_of_each_tile)
    ),
    known("DQ-OVERWRITTEN", ("p08",), lambda case: _pytorch(case, of_query=_last_tile(case))),
)


def bridge_mistakes_for(problem_id):
    """Return the mistakes that can be made in the first step of p03 or p08; none for others."""
    if problem_id == "p03":
        return _OF_A_ROW
    return tuple(
        replace(mistake, fn=partial(mistake.fn, problem_id=problem_id))
        for mistake in (_OF_GRADIENTS if problem_id == "p08" else ())
        if problem_id in mistake.problems
    )
