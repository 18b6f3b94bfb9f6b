"""Causal sliding-window attention, forward: tiles left of the window are never visited.

What lies outside the marked steps is given and correct.
"""

import torch
import triton
import triton.language as tl

from given.arguments import check_attention, check_window, default_scale, positive_scale
from given.launch import VARYING, forward_tiles, program_of_longest_rows_first
from given.softmax import add_tile, initial_state
from given.tiles import load_tile, store_tile
from given.units import LN_2, LOG2_E


@triton.jit
def _loop(
    q, k_ptr, v_ptr, stride_kn, stride_vn, queries, first_key, full_start, full_end, end_key,
    seqlen, window_size, running_max, running_sum, acc, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the keys from first_key to end_key to the running state of one tile of queries.

    Every query sees every key from full_start to full_end, both tile boundaries; the tiles before
    and after are masked. Where full_start is past full_end, all tiles are.
    """
    # >>> step 1: the loop over the key tiles, and the mask (about 12 lines)
    # After it: the tiles from first_key to end_key are in the running state, as in p04, with
    # `load_tile` for K and V. Tiles from full_start to full_end are not masked; in the others query
    # i sees key j only if i - window_size < j <= i. `queries` is a column, (BLOCK_M, 1).
    # `running_max` is the true maximum so far, minus infinity where a row has met no key;
    # `add_tile` gets `_safe_maximum` of the new maximum as its new_max.
    raise NotImplementedError(
        "p06 step 1: the loop over the key tiles, and the mask; see problems/p06/README.md"
    )
    # <<< step 1
    return running_max, running_sum, acc


@triton.jit
def _safe_maximum(new_max):
    """The maximum that is subtracted, (BLOCK_M,): finite, also where no key was visible so far."""
    safe_max = new_max
    # >>> step 2: rows that have seen no key yet (about 1 line)
    # After it: `safe_max` is 0 where new_max is minus infinity: such a row has met no visible key,
    # and all its weights are exp2(-inf - 0) = 0. Elsewhere `safe_max` is new_max.
    # <<< step 2
    return safe_max


@triton.jit(do_not_specialize=VARYING)
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, q_strides, k_strides, v_strides, out_strides,
    num_q_heads, group_size, seqlen, window_size, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one query head.

    Algorithm: one loop over the key tiles of the window, from left to right. Tiles that the left
    edge of a row's window cuts are masked, and tiles on the diagonal; those between are not.
    Grid: (batch * num_q_heads, query tiles), longest rows first, heads of a group side by side.
    Memory traffic: Q and out once; of K and V window_size + BLOCK_M keys per query tile.
    """
    place = program_of_longest_rows_first(num_q_heads, group_size, BLOCK_M)
    batch, q_head, kv_head, query_start = place
    q_ptr += batch * q_strides[0] + q_head * q_strides[1]
    k_ptr += batch * k_strides[0] + kv_head * k_strides[1]
    v_ptr += batch * v_strides[0] + kv_head * v_strides[1]
    out_ptr += batch * out_strides[0] + q_head * out_strides[1]
    lse_ptr += (batch * num_q_heads + q_head) * seqlen
    offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    queries = tl.minimum(offs_m, seqlen - 1)[:, None]  # rows past the end get the last row's mask
    q = load_tile(q_ptr, query_start, q_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    running_max, running_sum, acc = initial_state(BLOCK_M, HEAD_DIM)

    first_key, full_start, full_end, end_key = 0, seqlen, 0, seqlen  # until step 3: all masked
    # >>> step 3: the four bounds of the loop (about 4 lines)
    # After it: the loop begins at `first_key`, the start of the key tile with the first key that a
    # query of this tile sees, and ends before `end_key`, one past the last such key. From
    # `full_start` to `full_end`, both boundaries of key tiles, every query of this tile sees every
    # key; full_start may be past full_end, and then no tile is full.
    # <<< step 3
    running_max, running_sum, acc = _loop(
        q, k_ptr, v_ptr, k_strides[2], v_strides[2], queries, first_key, full_start, full_end,
        end_key, seqlen, window_size, running_max, running_sum, acc, scale_log2, HEAD_DIM, BLOCK_N,
    )  # fmt: skip

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    store_tile(out_ptr, query_start, out_strides[2], out, seqlen, BLOCK_M, HEAD_DIM)
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + offs_m, lse, mask=offs_m < seqlen)


def attention(q, k, v, *, window_size, softmax_scale=None):
    """Causal attention over the last window_size keys of each query, and each row's log-sum-exp.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, last dimension contiguous.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype and device of q, same rule for strides.
        window_size: any int >= 1; query i sees the keys j with i - window_size < j <= i.
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen), fp32, natural log-sum-exp of the scaled visible scores.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Longformer, arXiv:2004.05150; Mistral 7B, arXiv:2310.06825, section 2.
    """
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    batch, num_q_heads, seqlen, head_dim = q.shape
    q, softmax_scale = positive_scale(q, default_scale(softmax_scale, head_dim))
    tiles = forward_tiles(q, window_size)
    window_size = min(window_size, seqlen)  # 32 bits hold it, and sums with positions
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    _attention_kernel[(batch * num_q_heads, triton.cdiv(seqlen, tiles["BLOCK_M"]))](
        q, k, v, out, lse,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], out.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, **tiles,
    )  # fmt: skip
    return out, lse
