"""The kernels of PyTorch's own library that `make race` times beside an answer.

Like naive.py this file imports nothing of the project, so that it can be loaded by path into a
worker. Every function has the arguments of the problems' entry points, for any rule, and returns
`out` alone: scaled_dot_product_attention (SDPA) does not return lse.

SDPA has no window and no sink tokens. It gets them as a mask, and then computes all pairs of query
and key. `flash` supports no mask, and fails with one.

Source: https://docs.pytorch.org/docs/2.11/generated/torch.nn.functional.scaled_dot_product_attention.html
"""

import functools

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


@functools.lru_cache(maxsize=1)
def _mask(seqlen, window_size, num_sink_tokens, device):
    # Cached like naive's: a training loop would build it once.
    query = torch.arange(seqlen, device=device)[:, None]
    key = torch.arange(seqlen, device=device)[None, :]
    return (key <= query) & ((query - window_size < key) | (key < num_sink_tokens))


def _sdpa(
    backend,
    q,
    k,
    v,
    *,
    is_causal,
    window_size=None,
    num_sink_tokens=0,
    softmax_scale=None,
    enable_gqa=False,
):
    mask = None
    if window_size is not None:
        mask = _mask(q.shape[2], window_size, num_sink_tokens, q.device)
    with sdpa_kernel(backend):
        out = scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask,
            is_causal=is_causal and mask is None,
            scale=softmax_scale,
            enable_gqa=enable_gqa,
        )
    return out.contiguous()  # as the problems require; some backends put heads behind rows


def flash(q, k, v, **rules):
    """FlashAttention-2: compute capability 8.0 or newer, no mask."""
    return _sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, enable_gqa=_is_grouped(q, k), **rules)


def cudnn(q, k, v, **rules):
    """cuDNN's attention: compute capability 8.0 or newer."""
    return _sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, enable_gqa=_is_grouped(q, k), **rules)


def efficient(q, k, v, **rules):
    """The memory-efficient kernel, also on older GPUs; it needs K and V repeated per query head."""
    if _is_grouped(q, k):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    return _sdpa(SDPBackend.EFFICIENT_ATTENTION, q, k, v, **rules)


def _is_grouped(q, k):
    return q.shape[1] != k.shape[1]


def mv(x, w):
    """cuBLAS's product of a matrix and a vector."""
    return torch.mv(x, w)
