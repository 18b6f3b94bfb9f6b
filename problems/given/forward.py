"""The forward pass of p05 for those who train: out, and lse for the backward pass.

Opens with p08.
"""

import torch
import triton
import triton.language as tl

from given.arguments import positive_scale
from given.launch import VARYING, batch_and_head, grid_of_queries, memory_for_tensor_cores
from given.softmax import add_tile, initial_state
from given.tiles import load_keys, load_tile, store_tile
from given.units import LN_2, LOG2_E


@triton.jit
def _forward_tiles(
    acc, running_max, running_sum, q, k_ptr, v_ptr, stride_kn, stride_vn, queries, begin, end,
    seqlen, scale_log2, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, IS_DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Add the keys from begin to end to the running state of one tile of queries."""
    rows = tl.arange(0, BLOCK_N)
    k_offs = rows[:, None] * stride_kn + tl.arange(0, HEAD_DIM)[None, :]  # (BLOCK_N, HEAD_DIM)
    v_offs = rows[:, None] * stride_vn + tl.arange(0, HEAD_DIM)[None, :]  # (BLOCK_N, HEAD_DIM)
    # Pointers that move from tile to tile take fewer registers than addresses made for each tile.
    k_ptr += tl.cast(begin, tl.int64) * stride_kn
    v_ptr += tl.cast(begin, tl.int64) * stride_vn
    for key_start in range(begin, end, BLOCK_N):
        keys = key_start + rows  # (BLOCK_N,)
        k = load_keys(k_ptr + k_offs, keys, seqlen, not IS_DIAGONAL)
        v = load_keys(v_ptr + v_offs, keys, seqlen, not IS_DIAGONAL)
        k_ptr += BLOCK_N * stride_kn
        v_ptr += BLOCK_N * stride_vn
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        if IS_DIAGONAL:
            scores = tl.where(keys[None, :] <= queries[:, None], scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
        running_sum, acc = add_tile(scores, v, running_max, new_max, running_sum, acc, scale_log2)
        running_max = new_max
    return acc, running_max, running_sum


@triton.jit(do_not_specialize=VARYING)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, q_strides, k_strides, v_strides, out_strides,
    num_q_heads, group_size, seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one query head.

    Algorithm: the tiles of p04 in two loops: the full ones, then those on the diagonal.
    Grid: (query heads of an L2 group, query tiles, L2 groups), longest rows first.
    Memory traffic: Q and out once; on average half of K and V per query tile.
    Limits: BLOCK_N divides BLOCK_M; last dimensions contiguous.
    """
    batch, q_head = batch_and_head(num_q_heads)
    kv_head = q_head // group_size
    query_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    q_ptr += batch * q_strides[0] + q_head * q_strides[1]
    k_ptr += batch * k_strides[0] + kv_head * k_strides[1]
    v_ptr += batch * v_strides[0] + kv_head * v_strides[1]
    out_ptr += batch * out_strides[0] + q_head * out_strides[1]
    lse_ptr += (batch * num_q_heads + q_head) * seqlen
    queries = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    q = load_tile(q_ptr, query_start, q_strides[2], seqlen, BLOCK_M, HEAD_DIM)

    running_max, running_sum, acc = initial_state(BLOCK_M, HEAD_DIM)
    acc, running_max, running_sum = _forward_tiles(
        acc, running_max, running_sum, q, k_ptr, v_ptr, k_strides[2], v_strides[2], queries,
        0, query_start, seqlen, scale_log2, HEAD_DIM, BLOCK_N, False,
    )  # fmt: skip
    end_key = tl.minimum(query_start + BLOCK_M, seqlen)
    acc, running_max, running_sum = _forward_tiles(
        acc, running_max, running_sum, q, k_ptr, v_ptr, k_strides[2], v_strides[2], queries,
        query_start, end_key, seqlen, scale_log2, HEAD_DIM, BLOCK_N, True,
    )  # fmt: skip

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    store_tile(out_ptr, query_start, out_strides[2], out, seqlen, BLOCK_M, HEAD_DIM)
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + queries, lse, mask=queries < seqlen)


def gqa_forward(q, k, v, softmax_scale):
    """Return out and lse of causal grouped-query attention, as p05 does.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), last dimension contiguous.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype of q, same rule for strides.
        softmax_scale: any finite float.

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen), fp32, natural log-sum-exp of the scaled visible scores.
    """
    q, softmax_scale = positive_scale(q, softmax_scale)
    batch, num_q_heads, seqlen, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    tiles = _tiles(q)
    _forward_kernel[grid_of_queries(q, k, tiles["BLOCK_M"])](
        q, k, v, out, lse,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], out.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, **tiles,
    )  # fmt: skip
    return out, lse


def _tiles(q):
    shared = memory_for_tensor_cores(q)
    if shared >= 160 * 1024:
        if q.shape[3] == 128:  # small enough that two programs share a multiprocessor
            return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
        return {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}
    if shared >= 96 * 1024:  # compute capability 8.6, 8.9 and 12.0
        return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    return {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
