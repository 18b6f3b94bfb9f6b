"""Computes `naive`'s attention in blocks of query rows, for shapes whose scores do not fit memory.

Memory grows linearly with the sequence length, and a block reads only the keys that its
rows can see, so that a window costs seqlen * window_size and not seqlen squared.
"""

import itertools
import math

import torch

# Scores to compute at a time, in whole kv heads: 512 MiB in fp32 on a GPU, one head on a CPU.
_SCORES_AT_A_TIME = {"cuda": 2**27, "cpu": 1}


def blocked_attention(
    q,
    k,
    v,
    *,
    is_causal,
    window_size=None,
    num_sink_tokens=0,
    sink_logits=None,
    softmax_scale=None,
    block=512,
    dtype=torch.float64,
):
    """Compute attention at precision `dtype` with linear memory; CPU or CUDA.

    Args: q (batch, num_q_heads, seqlen_q, head_dim); k, v (batch, num_kv_heads, seqlen_k,
        head_dim); sink_logits (num_q_heads,) or None; any dtype and strides. block: query rows
        at a time.
    Returns: out as q and lse (batch, num_q_heads, seqlen_q), both in `dtype`, dense.
    """
    rule = (is_causal, window_size, num_sink_tokens)
    result = _walk(q, k, v, None, rule, sink_logits, softmax_scale, block, dtype)
    return result["out"], result["lse"]


def blocked_gradients(
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
    block=512,
    dtype=torch.float64,
):
    """Compute attention and its gradients at precision `dtype` with linear memory; CPU or CUDA.

    Args: as `blocked_attention`; dout: upstream gradient, shape of q, any strides.
    Returns: dict out, lse, dq, dk, dv and, where sink_logits is given, dsink_logits, in `dtype`.
    """
    rule = (is_causal, window_size, num_sink_tokens)
    return _walk(q, k, v, dout, rule, sink_logits, softmax_scale, block, dtype)


def _key_spans(start, stop, seqlen_k, rule):
    """Return disjoint ranges of keys, in order, that hold all keys visible to rows start..stop."""
    is_causal, window_size, num_sink_tokens = rule
    if not is_causal:
        return [(0, seqlen_k)]
    last = min(stop, seqlen_k)
    if window_size is None:
        return [(0, last)]
    first = max(0, start - window_size + 1)
    sinks = min(num_sink_tokens, first)
    return ([(0, sinks)] if sinks else []) + [(first, last)]


def _hidden(start, stop, key, rule):
    """Return a bool (rows, keys), True where a row may not see the key at position `key`."""
    is_causal, window_size, num_sink_tokens = rule
    if not is_causal:
        return None
    query = torch.arange(start, stop, device=key.device)[:, None]
    visible = key <= query
    if window_size is not None:
        visible &= (query - window_size < key) | (key < num_sink_tokens)
    return ~visible


def _walk(q, k, v, dout, rule, sink_logits, softmax_scale, block, dtype):
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    num_kv_heads, seqlen_k = k.shape[1:3]
    group_size = num_q_heads // num_kv_heads
    scale = 1.0 / math.sqrt(head_dim) if softmax_scale is None else softmax_scale

    def zeros(*shape):
        return torch.zeros(shape, dtype=dtype, device=q.device)

    result = {"out": zeros(*q.shape), "lse": zeros(batch, num_q_heads, seqlen_q)}
    if dout is not None:
        result |= {"dq": zeros(*q.shape), "dk": zeros(*k.shape), "dv": zeros(*v.shape)}
        if sink_logits is not None:
            result["dsink_logits"] = zeros(num_q_heads)

    for start in range(0, seqlen_q, block):
        stop = min(start + block, seqlen_q)
        spans = _key_spans(start, stop, seqlen_k, rule)
        key = torch.cat([torch.arange(a, b, device=q.device) for a, b in spans])
        hidden = _hidden(start, stop, key, rule)
        scores_per_head = group_size * (stop - start) * len(key)
        together = max(1, _SCORES_AT_A_TIME[q.device.type] // max(1, scores_per_head))
        for b, first in itertools.product(range(batch), range(0, num_kv_heads, together)):
            kv_heads = (b, slice(first, first + together))
            rows = (b, slice(first * group_size, (first + together) * group_size))
            rows = (*rows, slice(start, stop))

            def of_group(x, rows=rows):  # (kv heads, rows of all heads of the group, head_dim)
                return x[rows].unflatten(0, (-1, group_size)).flatten(1, 2).to(dtype)

            q_rows = of_group(q)
            keys, values = (
                torch.cat([x[kv_heads][:, i:j] for i, j in spans], 1).to(dtype) for x in (k, v)
            )
            scores = (q_rows @ keys.mT).mul_(scale).unflatten(1, (group_size, -1))
            if hidden is not None:
                scores = scores.masked_fill_(hidden, -math.inf)
            lse = torch.logsumexp(scores, dim=-1).flatten(0, 1)
            if sink_logits is not None:
                sink = sink_logits[rows[1]].to(dtype)[:, None]
                lse = torch.logaddexp(lse, sink)
            result["lse"][rows] = lse
            probs = scores.flatten(1, 2).sub_(lse.view(*q_rows.shape[:2], 1)).exp_()
            out = probs @ values
            result["out"][rows] = out.view(*lse.shape, head_dim)
            if dout is None:
                continue

            dout_rows = of_group(dout)
            delta = (dout_rows * out).sum(-1, keepdim=True)
            dscores = (dout_rows @ values.mT).sub_(delta).mul_(probs)
            dq = (dscores @ keys).mul_(scale)
            result["dq"][rows] = dq.view(*lse.shape, head_dim)
            dk = (dscores.mT @ q_rows).mul_(scale)
            result["dk"][kv_heads].index_add_(1, key, dk)
            result["dv"][kv_heads].index_add_(1, key, probs.mT @ dout_rows)
            if sink_logits is not None:
                weight = torch.exp(sink - lse)
                result["dsink_logits"][rows[1]] -= (weight * delta.view(lse.shape)).sum(-1)
    return result
