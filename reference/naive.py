"""Naive attention: the specification in fp64, and at working precision the baseline.

Every function here writes the whole score matrix to memory, as the formula says. With fp64 tensors
it is exact to rounding and serves as the reference; with fp16, bf16 or fp32 tensors it is the
baseline for speed and memory of a submission. The file imports nothing of the project, so that it
can also be loaded by path instead of a submission.

Shapes: q (batch, num_q_heads, seqlen_q, head_dim); k, v (batch, num_kv_heads, seqlen_k, head_dim);
out as q, in q's dtype; lse (batch, num_q_heads, seqlen_q), natural logarithm, fp32 (fp64 for fp64
inputs). Any strides. Default softmax_scale: 1/sqrt(head_dim).
"""

import functools
import math

import torch


def visible_keys(
    seqlen_q, seqlen_k, *, is_causal, window_size=None, num_sink_tokens=0, device=None
):
    """Return the mask, True where key j is visible to query i.

    Without `is_causal` every key is visible. With it: j <= i and (i - window_size < j or
    j < num_sink_tokens); `window_size` counts the query itself, None means no window.

    Returns: bool (seqlen_q, seqlen_k), dense.
    Source: Sliding window as in Mistral 7B (arXiv:2310.06825), sink tokens as in StreamingLLM
    (arXiv:2309.17453).
    """
    query = torch.arange(seqlen_q, device=device)[:, None]
    key = torch.arange(seqlen_k, device=device)[None, :]
    if not is_causal:
        return torch.ones(seqlen_q, seqlen_k, dtype=torch.bool, device=device)
    visible = key <= query
    if window_size is not None:
        visible &= (query - window_size < key) | (key < num_sink_tokens)
    return visible


@functools.lru_cache(maxsize=4)
def _hidden_keys(seqlen_q, seqlen_k, is_causal, window_size, num_sink_tokens, device):
    # Cached, since a training loop would build the mask once and not in every call: the baseline
    # must not include its cost.
    return ~visible_keys(
        seqlen_q,
        seqlen_k,
        is_causal=is_causal,
        window_size=window_size,
        num_sink_tokens=num_sink_tokens,
        device=device,
    )


def _attention(
    q,
    k,
    v,
    *,
    is_causal,
    window_size=None,
    num_sink_tokens=0,
    sink_logits=None,
    softmax_scale=None,
    need_lse=True,
):
    """Compute softmax(softmax_scale * q k^T + mask) v for every head; differentiable.

    `sink_logits` (num_q_heads,) adds exp(sink_logits[h]) to the denominator of every row of head h.
    Returns (out, lse); lse is None if `need_lse` is False.
    """
    head_dim = q.shape[-1]
    group_size = q.shape[1] // k.shape[1]
    if group_size > 1:
        k = k.repeat_interleave(group_size, dim=1)
        v = v.repeat_interleave(group_size, dim=1)
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(head_dim)
    accumulator = torch.float64 if q.dtype == torch.float64 else torch.float32

    scores = q @ k.transpose(-2, -1) * softmax_scale
    if is_causal:
        hidden = _hidden_keys(q.shape[2], k.shape[2], True, window_size, num_sink_tokens, q.device)
        scores = scores.masked_fill(hidden, -math.inf)
    if sink_logits is not None:
        # A column of scores without values, which only enters the denominator.
        column = sink_logits.to(scores.dtype)[None, :, None, None]
        scores = torch.cat([scores, column.expand(*scores.shape[:-1], 1)], dim=-1)
    probs = torch.softmax(scores, dim=-1, dtype=accumulator)

    lse = None
    if need_lse:
        # The largest probability of a row is exp(largest score - lse). That gives lse from two
        # maxima; torch.logsumexp would write the score matrix twice more and slow the baseline.
        lse = scores.amax(dim=-1).to(accumulator) - probs.amax(dim=-1).log()
    if sink_logits is not None:
        probs = probs[..., :-1]
    return probs.to(v.dtype) @ v, lse


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    """p01: (out, lse), causal or not; the tile sizes do not change the result and are ignored."""
    return _attention(q, k, v, is_causal=is_causal, softmax_scale=softmax_scale)


def weighted_row_sum(x, w):
    """p02: y[i] = sum_j x[i, j] * w[j].

    x (rows, cols), w (cols,); y (rows,) in x's dtype. Products and sums are fp32 (fp64 for fp64),
    rounded once at the end: 16-bit sums would be less accurate than the kernel under test.
    """
    accumulator = torch.float64 if x.dtype == torch.float64 else torch.float32
    return (x.to(accumulator) * w.to(accumulator)).sum(1).to(x.dtype)


def noncausal_attention(q, k, v, *, softmax_scale=None):
    """p03: (out, lse); every query sees every key, seqlen_q and seqlen_k may differ."""
    return _attention(q, k, v, is_causal=False, softmax_scale=softmax_scale)


def causal_attention(q, k, v, *, softmax_scale=None):
    """p04: (out, lse); query i sees the keys j <= i."""
    return _attention(q, k, v, is_causal=True, softmax_scale=softmax_scale)


def row_logsumexp(x):
    """p03, first step: the log-sum-exp of each row of x (rows, cols), fp32 (fp64 for fp64 inputs).

    Source: Online softmax, arXiv:1805.02867, by which a kernel computes it in one pass.
    """
    accumulator = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.to(accumulator).logsumexp(1)


def gqa_attention(q, k, v, *, softmax_scale=None):
    """p05: (out, lse); causal, query head h reads kv head h // (num_q_heads // num_kv_heads).

    Source: GQA, arXiv:2305.13245.
    """
    return _attention(q, k, v, is_causal=True, softmax_scale=softmax_scale)


def sliding_window_attention(q, k, v, *, window_size, softmax_scale=None):
    """p06: (out, lse); causal and grouped, query i sees the keys i - window_size < j <= i."""
    return _attention(q, k, v, is_causal=True, window_size=window_size, softmax_scale=softmax_scale)


def sink_attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    """p07: (out, lse); as p06, and keys j < num_sink_tokens are visible to all later queries."""
    return _attention(
        q,
        k,
        v,
        is_causal=True,
        window_size=window_size,
        num_sink_tokens=num_sink_tokens,
        softmax_scale=softmax_scale,
    )


def gqa_attention_training(q, k, v, *, softmax_scale=None):
    """p08: out alone, differentiable; the same attention as p05."""
    return _attention(q, k, v, is_causal=True, softmax_scale=softmax_scale, need_lse=False)[0]


def sink_window_attention(
    q, k, v, *, window_size, num_sink_tokens=0, sink_logits=None, softmax_scale=None
):
    """p09: out alone, differentiable; as p07, with a learned logit per head in the denominator.

    sink_logits (num_q_heads,), or None for no such term (as a logit of minus infinity, not 0).
    Source: the sinks of gpt-oss, arXiv:2508.10925.
    """
    return _attention(
        q,
        k,
        v,
        is_causal=True,
        window_size=window_size,
        num_sink_tokens=num_sink_tokens,
        sink_logits=sink_logits,
        softmax_scale=softmax_scale,
        need_lse=False,
    )[0]
