"""Causal sliding-window attention with sink tokens, forward: the sinks, then the window.

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
from given.windows import safe_maximum, window_bounds


@triton.jit
def _loop(
    q, k_ptr, v_ptr, stride_kn, stride_vn, queries, begin, first_key, full_start, full_end, end_key,
    seqlen, window_size, num_sink_tokens, running_max, running_sum, acc, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the tiles of the sinks, then those of the window, to the running state.

    The positions before first_key stand for the tiles of the sinks, `begin` for key 0; from
    first_key on a position is the key itself. Every query sees every key from full_start to
    full_end, both tile boundaries; the tiles before and after are masked.
    """
    # disable_licm: loop-invariant values hoisted out of the loop would take registers.
    for position in tl.range(begin, end_key, BLOCK_N, disable_licm=True):
        key_start = tl.where(position < first_key, position - begin, position)
        # >>> step 1: one tile, with the mask of window and sinks (about 12 lines)
        k = load_tile(k_ptr, key_start, stride_kn, seqlen, BLOCK_N, HEAD_DIM)
        v = load_tile(v_ptr, key_start, stride_vn, seqlen, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        if (position < full_start) | (position >= full_end):  # full tiles pay for no mask
            keys = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
            # The first query that does not see the key any more.
            stop = tl.where(keys < num_sink_tokens, seqlen, keys + window_size)  # (BLOCK_N,)
            visible = (keys[None, :] <= queries) & (queries < stop[None, :])  # (BLOCK_M, BLOCK_N)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
        safe_max = safe_maximum(new_max)  # (BLOCK_M,)
        running_sum, acc = add_tile(scores, v, running_max, safe_max, running_sum, acc, scale_log2)
        running_max = new_max
        # <<< step 1
    return running_max, running_sum, acc


@triton.jit(do_not_specialize=VARYING)
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, q_strides, k_strides, v_strides, out_strides,
    num_q_heads, group_size, seqlen, window_size, num_sink_tokens, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one query head.

    Algorithm: one loop: the tiles of the sinks before the first tile of the window, masked; then
    the window as in p06. Sinks in a tile of the window are visible there and nowhere else.
    Grid: (batch * num_q_heads, query tiles), longest rows first, heads of a group side by side.
    Memory traffic: as in p06, and the tiles of the sinks once more per query tile, from L2.
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

    bounds = window_bounds(query_start, seqlen, window_size, BLOCK_M, BLOCK_N)
    first_key, full_start, full_end, end_key = bounds
    begin = first_key  # until step 2, the sinks before the window are not visited
    # >>> step 2: the tiles of the sinks (about 2 lines)
    sink_end = tl.minimum(num_sink_tokens, first_key)
    begin = first_key - tl.cdiv(sink_end, BLOCK_N) * BLOCK_N
    # <<< step 2
    running_max, running_sum, acc = _loop(
        q, k_ptr, v_ptr, k_strides[2], v_strides[2], queries, begin, first_key, full_start,
        full_end, end_key, seqlen, window_size, num_sink_tokens, running_max, running_sum, acc,
        scale_log2, HEAD_DIM, BLOCK_N,
    )  # fmt: skip

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    store_tile(out_ptr, query_start, out_strides[2], out, seqlen, BLOCK_M, HEAD_DIM)
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + offs_m, lse, mask=offs_m < seqlen)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    """Causal attention over the sinks and the last window_size keys, and each row's log-sum-exp.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, last dimension contiguous.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype and device of q, same rule for strides.
        window_size: keys each query sees, itself included; any int >= 1.
        num_sink_tokens: any int >= 0. Query i sees the keys j <= i with i - window_size < j or
            j < num_sink_tokens.
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen), fp32, natural log-sum-exp of the scaled visible scores.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453.
    """
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    batch, num_q_heads, seqlen, head_dim = q.shape
    q, softmax_scale = positive_scale(q, default_scale(softmax_scale, head_dim))
    tiles = forward_tiles(q, window_size)
    # 32 bits hold what is at most seqlen, and sums with positions.
    window_size, num_sink_tokens = min(window_size, seqlen), min(num_sink_tokens, seqlen)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    _attention_kernel[(batch * num_q_heads, triton.cdiv(seqlen, tiles["BLOCK_M"]))](
        q, k, v, out, lse,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], out.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, num_sink_tokens,
        softmax_scale * LOG2_E.value, HEAD_DIM=head_dim, **tiles,
    )  # fmt: skip
    return out, lse
