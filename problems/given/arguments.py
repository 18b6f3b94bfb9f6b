"""Checks of an entry point's arguments: a ValueError whose message begins with the argument's name.

Each says what it got and what it expected. They run in the order of the entry point's signature.
"""

import math

import torch

HEAD_DIMS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# A factor so small that no score can make it count, but with which -inf stays -inf.
_NEXT_TO_ZERO = 1e-30


def check_matrix_and_vector(x, w):
    """Raise ValueError unless x is (rows, cols), not empty, and w is (cols,) of its dtype."""
    if x.ndim != 2:
        raise ValueError(f"x: got {x.ndim} dimensions, expected 2: rows, cols")
    if w.ndim != 1:
        raise ValueError(f"w: got {w.ndim} dimensions, expected 1: cols")
    _check_dtype(x)
    _check_like("w", w, "x", x)
    if 0 in x.shape:
        raise ValueError(f"x: got shape {tuple(x.shape)}, expected at least one row and column")
    if w.shape[0] != x.shape[1]:
        raise ValueError(f"w: got {w.shape[0]} elements, expected {x.shape[1]}, the columns of x")


def check_attention(q, k, v, softmax_scale=None, *, causal=True, grouped=False):
    """Raise ValueError unless attention supports these tensors and this scale.

    Args:
        q: (batch, num_q_heads, seqlen_q, head_dim).
        k, v: (batch, num_kv_heads, seqlen_k, head_dim), dtype and device of q.
        softmax_scale: None or a finite number.
        causal: the two lengths must be equal.
        grouped: num_kv_heads may be any divisor of num_q_heads; otherwise it must be equal.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(
                f"{name}: got {tensor.ndim} dimensions, expected 4: batch, heads, seqlen, head_dim"
            )
        if 0 in tensor.shape[:2]:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected none empty")
        if tensor.shape[2] == 0:
            raise ValueError(f"seqlen: got 0 in {name}, expected at least 1")
    _check_dtype(q)
    if q.shape[3] not in HEAD_DIMS:
        raise ValueError(f"head_dim: got {q.shape[3]}, expected one of 16, 32, 64, 128")
    _check_like("k", k, "q", q)
    _check_like("v", v, "q", q)
    if causal and k.shape[2] != q.shape[2]:
        raise ValueError(f"seqlen: got {q.shape[2]} in q and {k.shape[2]} in k, expected the same")
    if grouped and q.shape[1] % k.shape[1] != 0:
        raise ValueError(
            f"num_kv_heads: got {k.shape[1]}, expected a divisor of num_q_heads, {q.shape[1]}"
        )
    num_kv_heads = k.shape[1] if grouped else q.shape[1]
    expected = (q.shape[0], num_kv_heads, k.shape[2], q.shape[3])
    for name, tensor in (("k", k), ("v", v)):
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {expected}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(3) != 1:
            raise ValueError(f"{name}: got stride {tensor.stride(3)} in head_dim, expected 1")
    if softmax_scale is not None and not math.isfinite(softmax_scale):
        raise ValueError(f"softmax_scale: got {softmax_scale}, expected a finite number")


def check_tile_sizes(tile_q, tile_k):
    """Raise ValueError unless both are positive."""
    for name, size in (("tile_q", tile_q), ("tile_k", tile_k)):
        if size < 1:
            raise ValueError(f"{name}: got {size}, expected at least 1")


def check_window(window_size, num_sink_tokens=0):
    """Raise ValueError unless the window is an int >= 1, and the sinks an int >= 0."""
    if not isinstance(window_size, int) or window_size < 1:
        raise ValueError(f"window_size: got {window_size}, expected an int of at least 1")
    if not isinstance(num_sink_tokens, int) or num_sink_tokens < 0:
        raise ValueError(f"num_sink_tokens: got {num_sink_tokens}, expected an int of at least 0")


def check_sink_logits(sink_logits, q):
    """Raise ValueError unless sink_logits is None or (num_q_heads,), in fp32 or the dtype of q."""
    if sink_logits is None:
        return
    if tuple(sink_logits.shape) != (q.shape[1],):
        raise ValueError(
            f"sink_logits: got shape {tuple(sink_logits.shape)}, expected ({q.shape[1]},)"
        )
    if sink_logits.dtype not in (q.dtype, torch.float32):
        raise ValueError(
            f"sink_logits: got {sink_logits.dtype}, expected float32 or that of q, {q.dtype}"
        )
    if sink_logits.device != q.device:
        raise ValueError(
            f"sink_logits: got {sink_logits.device}, expected the device of q, {q.device}"
        )


def default_scale(softmax_scale, head_dim):
    """Return softmax_scale, or 1 / sqrt(head_dim) where it is None."""
    return 1.0 / math.sqrt(head_dim) if softmax_scale is None else float(softmax_scale)


def positive_scale(q, softmax_scale):
    """Return q and a scale above 0 with the same scores: a negative sign moves to q.

    With such a scale the maximum of the scores can be scaled in place of all of them.
    """
    if softmax_scale < 0:
        q, softmax_scale = -q, -softmax_scale
    return q, max(softmax_scale, _NEXT_TO_ZERO)


def _check_dtype(tensor):
    if tensor.dtype not in DTYPES:
        raise ValueError(f"dtype: got {tensor.dtype}, expected one of float16, bfloat16, float32")


def _check_like(name, tensor, other_name, other):
    if tensor.dtype != other.dtype:
        raise ValueError(
            f"{name}: got {tensor.dtype}, expected the dtype of {other_name}, {other.dtype}"
        )
    if tensor.device != other.device:
        raise ValueError(
            f"{name}: got {tensor.device}, expected the device of {other_name}, {other.device}"
        )
