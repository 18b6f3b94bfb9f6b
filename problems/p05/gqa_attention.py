"""Causal grouped-query attention, forward: the query heads of a group share one head of K and V.

What lies outside the marked steps is given and correct.
"""

import torch
import triton
import triton.language as tl

from given.arguments import check_attention, default_scale, positive_scale
from given.launch import batch_and_head, forward_tiles, grid_of_queries
from given.loops import causal_loop
from given.softmax import initial_state
from given.tiles import load_tile, store_tile
from given.units import LN_2, LOG2_E


@triton.jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, q_strides, k_strides, v_strides, out_strides,
    num_q_heads, group_size, seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one query head.

    Algorithm: the loop of p04. Query head h reads kv head h // group_size in place: K
    and V are never repeated in memory.
    Grid: that of `grid_of_queries`: the query tiles lie on axis 1, longest rows first; axes 0 and 2
    are heads.
    Memory traffic: Q and out once; on average half of K and V per query tile and query head, where
    the heads of a group share what comes from DRAM; no score leaves the chip.
    Limits: head_dim contiguous; IS_EVEN only where BLOCK_N divides seqlen.
    """
    # >>> step 1: the query head and the query tile (about 6 lines)
    # After it: `batch` and `q_head` are those of the program; q_ptr, out_ptr and lse_ptr point at
    # the first row of that head; `query_start` is the first query of the program's tile (axis 1),
    # the last tile in program 0; `q` is that tile, (BLOCK_M, HEAD_DIM).
    raise NotImplementedError(
        "p05 step 1: the query head and the query tile; see problems/p05/README.md"
    )
    # <<< step 1
    # >>> step 2: the kv head of the query head (about 3 lines)
    # After it: k_ptr and v_ptr point at the first row of the kv head that this query head shares.
    # <<< step 2

    running_max, running_sum, acc = initial_state(BLOCK_M, HEAD_DIM)
    running_max, running_sum, acc = causal_loop(
        q, k_ptr, v_ptr, k_strides[2], v_strides[2], query_start, seqlen,
        running_max, running_sum, acc, scale_log2, HEAD_DIM, BLOCK_M, BLOCK_N, IS_EVEN,
    )  # fmt: skip

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    store_tile(out_ptr, query_start, out_strides[2], out, seqlen, BLOCK_M, HEAD_DIM)
    queries = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + queries, lse, mask=queries < seqlen)


def attention(q, k, v, *, softmax_scale=None):
    """Causal attention in which groups of query heads share a kv head, and each row's log-sum-exp.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, any strides with the last
            dimension contiguous.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype and device of q, same rule for strides;
            num_kv_heads divides num_q_heads, and query head h reads kv head
            h // (num_q_heads // num_kv_heads).
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen), fp32, natural log-sum-exp of the scaled visible scores.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Ainslie et al., GQA, arXiv:2305.13245, section 2.2; Dao, FlashAttention-2,
    arXiv:2307.08691, algorithm 1 and section 3.1.
    """
    check_attention(q, k, v, softmax_scale, grouped=True)
    batch, num_q_heads, seqlen, head_dim = q.shape
    q, softmax_scale = positive_scale(q, default_scale(softmax_scale, head_dim))
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    tiles = forward_tiles(q)
    _attention_kernel[grid_of_queries(q, k, tiles["BLOCK_M"])](
        q, k, v, out, lse,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], out.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, IS_EVEN=seqlen % tiles["BLOCK_N"] == 0, **tiles,
    )  # fmt: skip
    return out, lse
