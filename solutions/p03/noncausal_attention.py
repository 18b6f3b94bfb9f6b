"""Online log-sum-exp of a row, then non-causal attention in one Triton kernel.

What lies outside the marked steps is given and correct.
"""

import torch
import triton
import triton.language as tl

from given.arguments import check_attention, default_scale, positive_scale
from given.launch import forward_tiles
from given.tiles import load_keys, store_tile
from given.units import LN_2, LOG2_E


@triton.jit
def _row_logsumexp_kernel(x_ptr, lse_ptr, cols, stride_xm, BLOCK_N: tl.constexpr):
    """One program computes the log-sum-exp of one row; row_max is in units of x * LOG2_E."""
    x_ptr += tl.program_id(0).to(tl.int64) * stride_xm
    row_max, row_sum = tl.full((), float("-inf"), tl.float32), tl.zeros((), tl.float32)
    # >>> step 1: online log-sum-exp of a row (about 6 lines)
    for start in range(0, cols, BLOCK_N):
        offs_n = start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
        x = tl.load(x_ptr + offs_n, mask=offs_n < cols, other=float("-inf")).to(tl.float32) * LOG2_E
        new_max = tl.maximum(row_max, tl.max(x, 0))
        row_sum = row_sum * tl.exp2(row_max - new_max) + tl.sum(tl.exp2(x - new_max), 0)
        row_max = new_max
    # <<< step 1
    tl.store(lse_ptr + tl.program_id(0), (row_max + tl.log2(row_sum)) * LN_2)


def row_logsumexp(x):
    """The natural log-sum-exp of each row of x (rows, cols), last dimension contiguous; fp32."""
    lse = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    _row_logsumexp_kernel[(x.shape[0],)](x, lse, x.shape[1], x.stride(0), BLOCK_N=128)
    return lse


def attention(q, k, v, *, softmax_scale=None):
    """Attention of every query over every key, and the log-sum-exp of each row of scores.

    Args:
        q: (batch, num_q_heads, seqlen_q, head_dim), fp16, bf16 or fp32, last dimension contiguous.
        k, v: (batch, num_q_heads, seqlen_k, head_dim), dtype, device and stride rule as for q.
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen_q), fp32, natural log-sum-exp of the scaled scores.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: FlashAttention-2, arXiv:2307.08691, algorithm 1; online softmax, arXiv:1805.02867.
    """
    check_attention(q, k, v, softmax_scale, causal=False)
    (batch, num_q_heads, seqlen_q, head_dim), seqlen_k = q.shape, k.shape[2]
    q, softmax_scale = positive_scale(q, default_scale(softmax_scale, head_dim))
    tiles = forward_tiles(q)
    out = lse = None
    # >>> step 2: outputs, grid and launch (about 9 lines)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen_q), dtype=torch.float32, device=q.device)
    grid = (batch * num_q_heads * triton.cdiv(seqlen_q, tiles["BLOCK_M"]),)
    _attention_kernel[grid](
        q, k, v, out, lse, q.stride()[:3], k.stride()[:3], v.stride()[:3], out.stride()[:3],
        num_q_heads, seqlen_q, seqlen_k, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, IS_EVEN=seqlen_k % tiles["BLOCK_N"] == 0, **tiles,
    )  # fmt: skip
    # <<< step 2
    return out, lse


@triton.jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, q_strides, k_strides, v_strides, out_strides,
    num_q_heads, seqlen_q, seqlen_k, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one head: it loops over all key tiles.

    Grid: one axis, batch * num_q_heads * query tiles; neighbours share a head: K and V stay in L2.
    Memory traffic: Q and out once, K and V once per query tile; no score ever leaves the chip.
    """
    # >>> step 3: the query tile (about 14 lines)
    num_query_tiles = tl.cdiv(seqlen_q, BLOCK_M)
    query_start = tl.program_id(0) % num_query_tiles * BLOCK_M
    batch_head = (tl.program_id(0) // num_query_tiles).to(tl.int64)
    batch, head = batch_head // num_q_heads, batch_head % num_q_heads
    q_ptr += batch * q_strides[0] + head * q_strides[1]
    k_ptr += batch * k_strides[0] + head * k_strides[1]
    v_ptr += batch * v_strides[0] + head * v_strides[1]
    out_ptr += batch * out_strides[0] + head * out_strides[1]
    lse_ptr += batch_head * seqlen_q
    queries = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    offs_d = tl.arange(0, HEAD_DIM)  # (HEAD_DIM,)
    q_ptrs = q_ptr + queries[:, None].to(tl.int64) * q_strides[2] + offs_d[None, :]
    q = tl.load(q_ptrs, mask=queries[:, None] < seqlen_q, other=0.0)  # (BLOCK_M, HEAD_DIM)
    # <<< step 3
    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    offs_n = tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    k_offs = offs_n[:, None] * k_strides[2] + tl.arange(0, HEAD_DIM)[None, :]  # (BLOCK_N, HEAD_DIM)
    v_offs = offs_n[:, None] * v_strides[2] + tl.arange(0, HEAD_DIM)[None, :]  # (BLOCK_N, HEAD_DIM)
    for key_start in range(0, seqlen_k, BLOCK_N):
        keys = key_start + offs_n  # (BLOCK_N,)
        k = load_keys(k_ptr + k_offs, keys, seqlen_k, IS_EVEN)
        v = load_keys(v_ptr + v_offs, keys, seqlen_k, IS_EVEN)
        # >>> step 4: scores, running maximum and running sum (about 8 lines)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        if not IS_EVEN:
            visible = keys[None, :] < seqlen_k  # (1, BLOCK_N)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
        rescale = tl.exp2(running_max - new_max)  # (BLOCK_M,)
        p = tl.exp2(scores * scale_log2 - new_max[:, None])  # (BLOCK_M, BLOCK_N)
        running_sum = running_sum * rescale + tl.sum(p, 1)
        running_max = new_max
        # <<< step 4
        # >>> step 5: weights times V (about 1 line)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        # <<< step 5
        k_ptr += BLOCK_N * k_strides[2]
        v_ptr += BLOCK_N * v_strides[2]
    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    store_tile(out_ptr, query_start, out_strides[2], out, seqlen_q, BLOCK_M, HEAD_DIM)
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + queries, lse, mask=queries < seqlen_q)
