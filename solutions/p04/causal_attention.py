"""Causal attention, forward: full tiles below the diagonal, masked tiles on it, none above.

What lies outside the marked steps is given and correct.
"""

import torch
import triton
import triton.language as tl

from given.arguments import check_attention, default_scale, positive_scale
from given.launch import forward_tiles, grid_of_queries
from given.softmax import add_tile, initial_state
from given.tiles import load_keys, load_tile, store_tile
from given.units import LN_2, LOG2_E


@triton.jit
def _loop(
    q, k_ptr, v_ptr, stride_kn, stride_vn, queries, full_end, end_key, seqlen,
    running_max, running_sum, acc, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    """Add the keys from 0 to end_key to the running state of one tile of queries.

    Every query sees every key before full_end, a tile boundary; tiles from there on are masked.
    """
    offs_n = tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    offs_d = tl.arange(0, HEAD_DIM)  # (HEAD_DIM,)
    # The pointers move from tile to tile; these offsets stay within one tile.
    k_offs = offs_n[:, None] * stride_kn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    v_offs = offs_n[:, None] * stride_vn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    # >>> step 1: the loop over the key tiles, and the mask (about 13 lines)
    for key_start in range(0, end_key, BLOCK_N):
        keys = key_start + offs_n  # (BLOCK_N,)
        k = load_keys(k_ptr + k_offs, keys, seqlen, IS_EVEN)
        v = load_keys(v_ptr + v_offs, keys, seqlen, IS_EVEN)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        if key_start >= full_end:  # full tiles pay for no mask
            # A key past the end lies after every query that is stored: it is hidden as well.
            visible = keys[None, :] <= queries[:, None]  # (BLOCK_M, BLOCK_N)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
        running_sum, acc = add_tile(scores, v, running_max, new_max, running_sum, acc, scale_log2)
        running_max = new_max
        k_ptr += BLOCK_N * stride_kn
        v_ptr += BLOCK_N * stride_vn
    # <<< step 1
    return running_max, running_sum, acc


@triton.jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, q_strides, k_strides, v_strides, out_strides,
    num_q_heads, seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one head.

    Algorithm: hold the query tile and visit the key tiles from left to right. Full tiles, whose
    every key lies before every query, need no mask; tiles on the diagonal are masked; tiles above
    it are never visited, which halves the work.
    Grid: (heads of an L2 group, query tiles, L2 groups), see `grid_of_queries`; longest rows first.
    Memory traffic: Q and out once, half of K and V per query tile; no score leaves the chip.
    Limits: head_dim contiguous; IS_EVEN only where BLOCK_N divides seqlen.
    """
    batch_head = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    query_tile = tl.num_programs(1) - 1 - tl.program_id(1)
    # Divided in 32 bits, which is faster; int64 because strides multiply them.
    batch = (batch_head // num_q_heads).to(tl.int64)
    head = (batch_head % num_q_heads).to(tl.int64)
    q_ptr += batch * q_strides[0] + head * q_strides[1]
    k_ptr += batch * k_strides[0] + head * k_strides[1]
    v_ptr += batch * v_strides[0] + head * v_strides[1]
    out_ptr += batch * out_strides[0] + head * out_strides[1]
    lse_ptr += (batch * num_q_heads + head) * seqlen
    query_start = query_tile * BLOCK_M
    queries = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    q = load_tile(q_ptr, query_start, q_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    running_max, running_sum, acc = initial_state(BLOCK_M, HEAD_DIM)

    full_end, end_key = 0, seqlen  # until step 2, every tile is visited and masked
    # >>> step 2: where the full tiles and the loop end (about 2 lines)
    full_end = query_start // BLOCK_N * BLOCK_N
    end_key = tl.minimum(query_start + BLOCK_M, seqlen)
    # <<< step 2
    running_max, running_sum, acc = _loop(
        q, k_ptr, v_ptr, k_strides[2], v_strides[2], queries, full_end, end_key, seqlen,
        running_max, running_sum, acc, scale_log2, HEAD_DIM, BLOCK_N, IS_EVEN,
    )  # fmt: skip

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    store_tile(out_ptr, query_start, out_strides[2], out, seqlen, BLOCK_M, HEAD_DIM)
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + queries, lse, mask=queries < seqlen)


def attention(q, k, v, *, softmax_scale=None):
    """Attention of every query over itself and the keys before it, and the log-sum-exp of each row.

    Args:
        q, k, v: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, each with strides of
            its own, the last dimension contiguous.
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen), fp32, natural log-sum-exp of the scaled visible scores.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Dao, FlashAttention-2, arXiv:2307.08691, algorithm 1; the online softmax is from Milakov
    and Gimelshein, arXiv:1805.02867.
    """
    check_attention(q, k, v, softmax_scale)
    batch, num_q_heads, seqlen, head_dim = q.shape
    q, softmax_scale = positive_scale(q, default_scale(softmax_scale, head_dim))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    tiles = forward_tiles(q)
    _attention_kernel[grid_of_queries(q, k, tiles["BLOCK_M"])](
        q, k, v, out, lse,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], out.stride()[:3],
        num_q_heads, seqlen, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, IS_EVEN=seqlen % tiles["BLOCK_N"] == 0, **tiles,
    )  # fmt: skip
    return out, lse
