"""dQ from the sums that the backward kernel leaves, in plain Triton.

The sums lack what the keys that are sinks give to queries beyond their window, and softmax_scale.
"""

import triton
import triton.language as tl

from given.backward import add_to_dq
from given.launch import VARYING
from given.tiles import load_tile, store_tile


@triton.jit(do_not_specialize=VARYING)
def finish_dq_kernel(
    sums, q, k, v, dout, lse, delta, dq, q_strides, k_strides, v_strides, dout_strides,
    num_q_heads, group_size, seqlen, window_size, num_sink_tokens, scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    """Store BLOCK_M rows of dQ per program.

    sums: (batch, num_q_heads, seqlen, HEAD_DIM), fp32.
    Grid: (batch * num_q_heads, tiles of BLOCK_M queries).
    Memory traffic: the sums and dQ once; Q and dO where there are sinks beyond the window.
    """
    row, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    batch, q_head = row // num_q_heads, row % num_q_heads
    kv_head = q_head // group_size
    start = tile * BLOCK_M
    total = load_tile(sums + row * seqlen * HEAD_DIM, start, HEAD_DIM, seqlen, BLOCK_M, HEAD_DIM)
    if HAS_SINKS and start + BLOCK_M > window_size:
        q += batch * q_strides[0] + q_head * q_strides[1]
        dout += batch * dout_strides[0] + q_head * dout_strides[1]
        k += batch * k_strides[0] + kv_head * k_strides[1]
        v += batch * v_strides[0] + kv_head * v_strides[1]
        q_rows = load_tile(q, start, q_strides[2], seqlen, BLOCK_M, HEAD_DIM)
        dout_rows = load_tile(dout, start, dout_strides[2], seqlen, BLOCK_M, HEAD_DIM)
        queries = start + tl.arange(0, BLOCK_M)
        is_query = queries < seqlen
        # An infinite lse past the end makes all weights 0 there.
        lse_log2 = tl.load(lse + row * seqlen + queries, is_query, float("inf")) * 1.4426950408889634
        deltas = tl.load(delta + row * seqlen + queries, is_query, 0.0)
        for key_start in range(0, num_sink_tokens, BLOCK_N):
            k_rows = load_tile(k, key_start, k_strides[2], num_sink_tokens, BLOCK_N, HEAD_DIM)
            v_rows = load_tile(v, key_start, v_strides[2], num_sink_tokens, BLOCK_N, HEAD_DIM)
            sinks = key_start + tl.arange(0, BLOCK_N)
            is_beyond = (queries[:, None] >= sinks[None, :] + window_size) & (
                sinks[None, :] < num_sink_tokens
            )
            scores = tl.dot(q_rows, tl.trans(k_rows)) * scale_log2
            p = tl.where(is_beyond, tl.exp2(scores - lse_log2[:, None]), 0.0)
            total = add_to_dq(total, p, dout_rows, deltas, k_rows, v_rows)
    store_tile(
        dq + row * seqlen * HEAD_DIM, start, HEAD_DIM, total * scale, seqlen, BLOCK_M, HEAD_DIM
    )
