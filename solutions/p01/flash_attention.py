"""FlashAttention in plain PyTorch: attention, one tile of the score matrix at a time.

What lies outside the marked steps is given and correct.
"""

import math

import torch

from given.arguments import check_attention, check_tile_sizes, default_scale
from given.products import tile_matmul


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool = False,
    softmax_scale: float | None = None,
    tile_q: int = 128,
    tile_k: int = 128,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(softmax_scale * q k^T) v and its log-sum-exp, in memory linear in seqlen.

    Args:
        q: (batch, heads, seqlen_q, head_dim), fp16, bf16 or fp32, last stride 1, others any.
        k, v: (batch, heads, seqlen_k, head_dim), dtype and last stride as q.
        is_causal: query i sees the keys 0..i only; needs seqlen_q == seqlen_k.
        softmax_scale: any finite factor on the scores; default 1/sqrt(head_dim).
        tile_q, tile_k: query rows and keys of a tile, any positive numbers.

    Returns:
        out: (batch, heads, seqlen_q, head_dim), dtype of q, dense.
        lse: (batch, heads, seqlen_q), fp32, dense: the natural logarithm of the sum of
            exp(score) over the visible keys.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Dao et al., "FlashAttention", arXiv:2205.14135, algorithm 1; loop order of Dao,
        "FlashAttention-2", arXiv:2307.08691, algorithm 1.
    """
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    softmax_scale = default_scale(softmax_scale, q.shape[3])
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    # Batch and heads become one dimension, so that one call serves every head.
    q_heads, k_heads, v_heads = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    out = torch.empty(q_heads.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q_heads.shape[:2], dtype=torch.float32, device=q.device)

    for q_start in range(0, seqlen_q, tile_q):
        q_stop = min(q_start + tile_q, seqlen_q)
        q_tile = q_heads[:, q_start:q_stop]  # (batch * heads, rows, head_dim)
        # Before the first key: the maximum of no scores is -inf, and their sums are 0.
        acc = torch.zeros(q_tile.shape, dtype=torch.float32, device=q.device)
        running_sum = torch.zeros_like(acc[:, :, :1])  # (batch * heads, rows, 1)
        running_max = torch.full_like(running_sum, -math.inf)  # (batch * heads, rows, 1)

        visible_stop = _visible_stop(q_stop, seqlen_k, is_causal)
        for k_start in range(0, visible_stop, tile_k):
            k_stop = min(k_start + tile_k, visible_stop)
            # >>> step 1: scores of one tile (about 3 lines)
            k_tile = k_heads[:, k_start:k_stop]  # (batch * heads, keys, head_dim)
            v_tile = v_heads[:, k_start:k_stop]  # (batch * heads, keys, head_dim)
            scores = tile_matmul(q_tile, k_tile.transpose(1, 2), softmax_scale)
            # <<< step 1
            if is_causal:
                scores = _hide_later_keys(scores, q_start, q_stop, k_start, k_stop)

            # Until step 2 is done: as if the tile had one key only, of weight 1.
            new_max, tile_sum, tile_acc = scores[:, :, :1], 1.0, v_tile[:, :1]
            # >>> step 2: softmax of one tile (about 4 lines)
            new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))
            # In place, because a new tile for each operation costs time.
            weights = scores.sub_(new_max).exp_()
            tile_sum = weights.sum(dim=-1, keepdim=True)
            tile_acc = tile_matmul(weights.to(v.dtype), v_tile)
            # <<< step 2

            # Until step 3 as if there were no tile before this one.
            new_sum, new_acc = tile_sum, tile_acc
            # >>> step 3: the online softmax update (about 3 lines)
            rescale = torch.exp(running_max - new_max)
            # addcmul(a, b, c) is a + b * c, in one pass.
            new_sum = torch.addcmul(tile_sum, running_sum, rescale)
            new_acc = torch.addcmul(tile_acc, acc, rescale)
            # <<< step 3
            running_max, running_sum, acc = new_max, new_sum, new_acc

        out[:, q_start:q_stop] = acc / running_sum
        row_lse = running_max  # until step 4; right for a single key
        # >>> step 4: the log-sum-exp (about 1 line)
        row_lse = running_max + running_sum.log()
        # <<< step 4
        lse[:, q_start:q_stop] = row_lse.squeeze(-1)
    return out.view(q.shape), lse.view(q.shape[:3])


def _hide_later_keys(scores, q_start, q_stop, k_start, k_stop):
    """Return the scores of queries q_start to q_stop - 1 and keys k_start to k_stop - 1, masked."""
    # >>> step 5: mask a tile that the diagonal crosses (about 4 lines)
    if k_stop - 1 > q_start:
        query = torch.arange(q_start, q_stop, device=scores.device)
        key = torch.arange(k_start, k_stop, device=scores.device)
        scores = scores.masked_fill_(key[None, :] > query[:, None], -math.inf)
    # <<< step 5
    return scores


def _visible_stop(q_stop, seqlen_k, is_causal):
    """Return the end of the keys that are visited for the queries before q_stop."""
    stop = seqlen_k
    # >>> step 6: skip the tiles above the diagonal (about 2 lines)
    if is_causal:
        stop = q_stop
    # <<< step 6
    return stop
