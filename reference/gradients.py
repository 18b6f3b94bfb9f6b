"""Computes gradients of attention: by autograd, and from the formulas."""

import math

import torch

from .naive import visible_keys


def gradients(fn, inputs, dout, **options):
    """Return output and gradients of a naive function by autograd, at the precision of the inputs.

    Args:
        fn: a function of `reference`; of a pair (out, lse) the first is differentiated.
        inputs: q, k, v and perhaps sink_logits (a tensor or None); other keys are ignored.
        dout: upstream gradient, shape of out, any strides.
        options: the entry's options.
    Returns: dict out, dq, dk, dv and, where sink_logits is a tensor, dsink_logits; each with the
        shape and dtype of what it belongs to, detached.
    """
    leaves = {
        name: inputs[name].detach().clone().requires_grad_()
        for name in ("q", "k", "v", "sink_logits")
        if inputs.get(name) is not None
    }
    tensors = dict(leaves)
    q, k, v = tensors.pop("q"), tensors.pop("k"), tensors.pop("v")
    with torch.enable_grad():
        out = fn(q, k, v, **tensors, **options)
        out = out[0] if isinstance(out, tuple) else out
    found = torch.autograd.grad(out, list(leaves.values()), dout.to(out.dtype))
    names = [f"d{name}" for name in leaves]
    return {"out": out.detach()} | dict(zip(names, found, strict=True))


def attention_gradients(
    q,
    k,
    v,
    dout,
    *,
    is_causal,
    window_size=None,
    num_sink_tokens=0,
    sink_logits=None,
    softmax_scale=None,
):
    """Compute gradients of attention from the formulas that a backward kernel follows.

        P  = exp(S - lse)            S = softmax_scale * q k^T, masked
        dV = sum over the group of P^T dO
        dP = dO V^T
        dS = P * (dP - delta)        delta = rowsum(dO * O)
        dQ = softmax_scale * dS K
        dK = softmax_scale * sum over the group of dS^T Q
        dsink_logits[h] = -sum over batch and rows of exp(sink_logits[h] - lse) * delta

    Args: q, dout (batch, num_q_heads, seqlen_q, head_dim); k, v (batch, num_kv_heads, seqlen_k,
        head_dim); sink_logits (num_q_heads,) or None. One dtype, any strides; exact in fp64.
    Returns: dict out, lse, dq, dk, dv and, where sink_logits is given, dsink_logits.
    Source: FlashAttention, arXiv:2205.14135, appendix B.
    """
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    num_kv_heads, seqlen_k = k.shape[1:3]
    scale = 1.0 / math.sqrt(head_dim) if softmax_scale is None else softmax_scale
    visible = visible_keys(
        seqlen_q,
        seqlen_k,
        is_causal=is_causal,
        window_size=window_size,
        num_sink_tokens=num_sink_tokens,
        device=q.device,
    )
    # The query heads of a kv head get a dimension of their own, to sum over the group.
    grouped = (batch, num_kv_heads, num_q_heads // num_kv_heads, seqlen_q, head_dim)
    q, dout = q.reshape(grouped), dout.reshape(grouped)
    k, v = k[:, :, None], v[:, :, None]

    scores = (scale * q @ k.mT).masked_fill(~visible, -math.inf)
    lse = torch.logsumexp(scores, dim=-1)
    if sink_logits is not None:
        sink = sink_logits.reshape(num_kv_heads, -1)[:, :, None]
        lse = torch.logaddexp(lse, sink)
    probs = torch.exp(scores - lse[..., None])
    out = probs @ v

    dv = (probs.mT @ dout).sum(2)
    dprobs = dout @ v.mT
    delta = (dout * out).sum(-1)
    dscores = probs * (dprobs - delta[..., None])
    dq = scale * dscores @ k
    dk = scale * (dscores.mT @ q).sum(2)

    per_head = (batch, num_q_heads, seqlen_q)
    result = {
        "out": out.reshape(*per_head, head_dim),
        "lse": lse.reshape(per_head),
        "dq": dq.reshape(*per_head, head_dim),
        "dk": dk,
        "dv": dv,
    }
    if sink_logits is not None:
        dsink = -(torch.exp(sink - lse) * delta).sum((0, 3))
        result["dsink_logits"] = dsink.reshape(num_q_heads)
    return result


def gqa_gradients(q, k, v, out, lse, dout, *, softmax_scale=None):
    """p08, first step: compute (dq, dk, dv) of causal attention from out and lse.

    Args: as of `attention_gradients`, with out and lse as the forward pass returned them.
    Returns: shape and dtype of q, k and v; lse may have another dtype than these.
    """
    scale = 1.0 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    visible = visible_keys(q.shape[2], k.shape[2], is_causal=True, device=q.device)
    grouped = (k.shape[1], q.shape[1] // k.shape[1])
    q, out, dout, lse = (x.unflatten(1, grouped) for x in (q, out, dout, lse))
    k, v = k[:, :, None], v[:, :, None]
    scores = (scale * q @ k.mT).masked_fill(~visible, -math.inf)
    probs = torch.exp(scores - lse[..., None]).to(q.dtype)
    delta = (dout * out).sum(-1, keepdim=True)
    dscores = probs * (dout @ v.mT - delta)
    dq = (scale * dscores @ k).flatten(1, 2)
    return dq, scale * (dscores.mT @ q).sum(2), (probs.mT @ dout).sum(2)
