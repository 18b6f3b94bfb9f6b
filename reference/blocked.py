"""The mathematics of `naive` in blocks of query rows, for shapes whose score matrix does not fit.

Memory grows linearly with the sequence length, and a block touches only the keys that its
rows can see, so that a window costs seqlen * window_size and not seqlen squared.
"""

import math

import torch


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
    """Attention at precision `dtype` with linear memory; CPU or CUDA.

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
    """Attention and its gradients at precision `dtype` with linear memory; CPU or CUDA.

    Args: as `blocked_attention`; dout: upstream gradient, shape of q, any strides.
    Returns: dict out, lse, dq, dk, dv and, where sink_logits is given, dsink_logits, in `dtype`.
    """
    rule = (is_causal, window_size, num_sink_tokens)
    return _walk(q, k, v, dout, rule, sink_logits, softmax_scale, block, dtype)


def _key_spans(start, stop, seqlen_k, rule):
    """Ranges of keys, disjoint and in order, outside of which no row of start..stop sees a key."""
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
    """Bool (rows, keys): True where the row may not see the key at position `key`."""
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
        for b in range(batch):
            for kv_head in range(num_kv_heads):
                heads = slice(kv_head * group_size, (kv_head + 1) * group_size)
                rows = (b, heads, slice(start, stop))
                q_rows = q[rows].to(dtype)
                keys, values = (
                    torch.cat([x[b, kv_head, i:j] for i, j in spans]).to(dtype) for x in (k, v)
                )
                scores = scale * (q_rows @ keys.T)
                if hidden is not None:
                    scores = scores.masked_fill_(hidden, -math.inf)
                lse = torch.logsumexp(scores, dim=-1)
                if sink_logits is not None:
                    sink = sink_logits[heads].to(dtype)[:, None]
                    lse = torch.logaddexp(lse, sink)
                probs = scores.sub_(lse[..., None]).exp_()
                out = probs @ values
                result["out"][rows] = out
                result["lse"][rows] = lse
                if dout is None:
                    continue

                dout_rows = dout[rows].to(dtype)
                delta = (dout_rows * out).sum(-1)
                dv = (probs.mT @ dout_rows).sum(0)
                dscores = (dout_rows @ values.T).sub_(delta[..., None]).mul_(probs)
                result["dq"][rows] = scale * (dscores @ keys)
                dk = scale * (dscores.mT @ q_rows).sum(0)
                result["dk"][b, kv_head].index_add_(0, key, dk)
                result["dv"][b, kv_head].index_add_(0, key, dv)
                if sink_logits is not None:
                    result["dsink_logits"][heads] -= (torch.exp(sink - lse) * delta).sum(-1)
    return result
