"""The backward pass in fp64 with every step replaceable, from which known mistakes are built.

`Case` in `variants` caches what is right.
"""

import math
import operator

import torch

from .variants import attend, unless


def row_delta(case):
    """Return sum(dout * out) of each row, (batch, num_q_heads, seqlen_q)."""
    return case.once(_row_delta)


def differentiate(
    case,
    *,
    visible_q=None,
    visible_kv=None,
    dout=None,
    lse=None,
    lse_q=None,
    lse_kv=None,
    delta=None,
    delta_q=None,
    delta_kv=None,
    score_scale_q=None,
    score_scale_kv=None,
    scale_q=None,
    scale_k=None,
    use_probs=True,
    dv_of_dscores=False,
    dk_heads="sum",
    dv_heads="sum",
    sink_batches=slice(None),
):
    """Return out and the gradients with a step of the backward pass changed; right ones are shared.

    visible_q, visible_kv: the masks in the dq and in the dk, dv kernel; lse: from which P is
    recomputed; delta: subtracted from dP, and a factor of dsink_logits; lse_q, delta_q, lse_kv,
    delta_kv: those of one kernel alone; score_scale_q, score_scale_kv: softmax_scale where it
    recomputes P; scale_q, scale_k: the factor of dq and of dk; dv_of_dscores: whether dv uses dS
    in place of P; dk_heads, dv_heads: "sum", "mean", "first" or "last" head of a group, or
    "interleaved", the sum over heads of different groups; sink_batches: batches in dsink_logits.
    """
    dout, lse = unless(dout, case.dout), unless(lse, attend(case)["lse"])
    if dout is not None and delta is None:
        delta = (dout * attend(case)["out"]).sum(-1)
    delta = unless(delta, row_delta(case))
    if case.group_size == 1:  # each group is one head
        dk_heads = dv_heads = "sum"

    def tiles(visible, own_lse, own_delta, score_scale):
        """Return P and dS of a kernel."""
        probs = case.once(
            _probs,
            visible=unless(visible, case.visible()),
            lse=unless(lse if own_lse is None else own_lse, attend(case)["lse"]),
            scale=None if score_scale == case.scale else score_scale,
        )
        factor = probs if use_probs else case.visible() if visible is None else visible
        own_delta = unless(delta if own_delta is None else own_delta, row_delta(case))
        factor = None if factor is case.once(_probs) else factor
        return probs, case.once(_dscores, factor=factor, dout=dout, delta=own_delta)

    of_q = visible_q, lse_q, delta_q, score_scale_q
    of_kv = visible_kv, lse_kv, delta_kv, score_scale_kv
    right_probs, right_dscores = case.once(_probs), case.once(_dscores)

    probs, dscores = tiles(*of_q)
    result = {"out": attend(case)["out"]}
    result["dq"] = case.once(
        _dq,
        dscores=None if dscores is right_dscores else dscores,
        scale=None if scale_q == case.scale else scale_q,
    )
    if not all(map(operator.is_, of_kv, of_q)):
        probs, dscores = tiles(*of_kv)
    result["dk"] = case.once(
        _dk,
        dscores=None if dscores is right_dscores else dscores,
        scale=None if scale_k == case.scale else scale_k,
        heads=None if dk_heads == "sum" else dk_heads,
    )
    factor = dscores if dv_of_dscores else probs
    result["dv"] = case.once(
        _dv,
        probs=None if factor is right_probs else factor,
        dout=dout,
        heads=None if dv_heads == "sum" else dv_heads,
    )
    if case.sink_logits is not None:
        batches = None if sink_batches == slice(None) else sink_batches
        result["dsink_logits"] = case.once(_dsink, lse=lse, delta=delta, batches=batches)
    return result


def _row_delta(case):
    return (case.dout * attend(case)["out"]).sum(-1)


def _probs(case, visible=None, lse=None, scale=None):
    visible = case.visible() if visible is None else visible
    lse = attend(case)["lse"] if lse is None else lse
    scores = case.scores(scale=scale).masked_fill(~visible, -math.inf)
    return torch.exp(scores - lse[..., None])


def _dprobs(case, dout=None):
    return (case.dout if dout is None else dout) @ case.values().mT


def _dscores(case, factor=None, dout=None, delta=None):
    """Return `factor` times (dP - delta); the right factor is P."""
    factor = case.once(_probs) if factor is None else factor
    delta = row_delta(case) if delta is None else delta
    return (case.once(_dprobs, dout=dout) - delta[..., None]) * factor


def _dq(case, dscores=None, scale=None):
    dscores = case.once(_dscores) if dscores is None else dscores
    return (case.scale if scale is None else scale) * dscores @ case.k[:, case.kv_heads]


def _dk(case, dscores=None, scale=None, heads="sum"):
    dscores = case.once(_dscores) if dscores is None else dscores
    return _gather(case, (case.scale if scale is None else scale) * dscores.mT @ case.q, heads)


def _dv(case, probs=None, dout=None, heads="sum"):
    probs = case.once(_probs) if probs is None else probs
    return _gather(case, probs.mT @ (case.dout if dout is None else dout), heads)


def _dsink(case, lse=None, delta=None, batches=slice(None)):
    lse = attend(case)["lse"] if lse is None else lse
    delta = row_delta(case) if delta is None else delta
    dsink = -torch.exp(case.sink_column() - lse) * delta
    return dsink[batches].sum((0, 2))


def _gather(case, per_head, how):
    """Combine gradients per query head into those per kv head."""
    grouped = per_head.unflatten(1, (case.num_kv_heads, case.group_size))
    if how in ("sum", "mean"):
        return getattr(grouped, how)(2)
    if how == "interleaved":
        return per_head.unflatten(1, (case.group_size, case.num_kv_heads)).sum(1)
    return grouped[:, :, 0 if how == "first" else -1]
