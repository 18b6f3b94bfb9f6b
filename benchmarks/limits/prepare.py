"""Computes the initial sums of the backward kernel for sinks, in plain Triton.

Thousands of queries beyond its window see a sink. One pass over Q, out and dO computes delta and,
over these pairs, the initial sums of dK, dV and dQ for the backward kernel.
"""

import triton
import triton.language as tl

from given.launch import VARYING
from given.tiles import load_tile, store_tile


@triton.jit
def _store_delta(
    delta, out, dout_rows, row, start, seqlen, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr
):
    """Store and return delta of a tile of queries of the head that begins at row `row`."""
    out_rows = load_tile(out + row * HEAD_DIM, start, HEAD_DIM, seqlen, BLOCK_M, HEAD_DIM)
    deltas = tl.sum(out_rows.to(tl.float32) * dout_rows.to(tl.float32), 1)
    queries = start + tl.arange(0, BLOCK_M)
    tl.store(delta + row + queries, deltas, mask=queries < seqlen)
    return deltas  # (BLOCK_M,)


@triton.jit(do_not_specialize=VARYING)
def prepare_kernel(
    q, k, v, out, dout, lse, delta, sums, partial_dk, partial_dv,
    q_strides, k_strides, v_strides, dout_strides,
    num_kv_heads, group_size, seqlen, window_size, num_sink_tokens, tiles, scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WITH_SUMS: tl.constexpr,
):  # fmt: skip
    """Process, per program, `tiles` tiles of queries of all query heads of one kv head.

    out, delta and sums are dense; sums: fp32, shape of Q. partial_dk, partial_dv: (programs of a
    head, batch, num_kv_heads, num_sink_tokens, HEAD_DIM), fp32; dK lacks its factor softmax_scale.
    Grid: (batch * num_kv_heads, programs of a head). BLOCK_N >= num_sink_tokens.
    Memory traffic: out and dO once, Q beyond the window once, the sums written once. Tiles ahead in
    shared memory (num_stages) would leave room for fewer programs: slower at head_dim 64.
    """
    batch = (tl.program_id(0) // num_kv_heads).to(tl.int64)
    kv_head = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    begin = tl.program_id(1) * tiles * BLOCK_M
    q += batch * q_strides[0] + kv_head * group_size * q_strides[1]
    dout += batch * dout_strides[0] + kv_head * group_size * dout_strides[1]
    row = (batch * num_kv_heads + kv_head) * group_size * seqlen  # of dense tensors
    dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    if begin + tiles * BLOCK_M <= window_size:  # no query here sees a sink outside its window
        for step in tl.range(0, group_size * tiles, num_stages=1):
            head, start = step % group_size, begin + step // group_size * BLOCK_M
            head_row = row + tl.cast(head, tl.int64) * seqlen
            head_dout = dout + tl.cast(head, tl.int64) * dout_strides[1]
            dout_rows = load_tile(head_dout, start, dout_strides[2], seqlen, BLOCK_M, HEAD_DIM)
            _store_delta(delta, out, dout_rows, head_row, start, seqlen, BLOCK_M, HEAD_DIM)
            if WITH_SUMS:
                dq = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
                head_sums = sums + head_row * HEAD_DIM
                store_tile(head_sums, start, HEAD_DIM, dq, seqlen, BLOCK_M, HEAD_DIM)
    else:
        k += batch * k_strides[0] + kv_head * k_strides[1]
        v += batch * v_strides[0] + kv_head * v_strides[1]
        k_rows = load_tile(k, 0, k_strides[2], num_sink_tokens, BLOCK_N, HEAD_DIM)
        v_rows = load_tile(v, 0, v_strides[2], num_sink_tokens, BLOCK_N, HEAD_DIM)
        sinks = tl.arange(0, BLOCK_N)[:, None]
        for step in tl.range(0, group_size * tiles, num_stages=1):
            head, start = step % group_size, begin + step // group_size * BLOCK_M
            head_dout = dout + tl.cast(head, tl.int64) * dout_strides[1]
            dout_rows = load_tile(head_dout, start, dout_strides[2], seqlen, BLOCK_M, HEAD_DIM)
            head_q = q + tl.cast(head, tl.int64) * q_strides[1]
            q_rows = load_tile(head_q, start, q_strides[2], seqlen, BLOCK_M, HEAD_DIM)
            head_row = row + tl.cast(head, tl.int64) * seqlen
            deltas = _store_delta(delta, out, dout_rows, head_row, start, seqlen, BLOCK_M, HEAD_DIM)
            queries = start + tl.arange(0, BLOCK_M)
            # An infinite lse past the end makes all weights there 0.
            lses = tl.load(lse + head_row + queries, queries < seqlen, float("inf"))
            scores = tl.dot(k_rows, tl.trans(q_rows), input_precision="ieee") * scale_log2
            is_pair = (queries[None, :] >= sinks + window_size) & (sinks < num_sink_tokens)
            p = tl.where(is_pair, tl.exp2(scores - lses[None, :] * 1.4426950408889634), 0.0)
            dp = tl.dot(v_rows, tl.trans(dout_rows), input_precision="ieee")
            ds = (p * (dp - deltas[None, :])).to(q_rows.dtype)  # (sinks, queries)
            dv = tl.dot(p.to(dout_rows.dtype), dout_rows, dv, input_precision="ieee")
            dk = tl.dot(ds, q_rows, dk, input_precision="ieee")
            if WITH_SUMS:
                dq = tl.dot(tl.trans(ds), k_rows, input_precision="ieee") * scale
                head_sums = sums + head_row * HEAD_DIM
                store_tile(head_sums, start, HEAD_DIM, dq, seqlen, BLOCK_M, HEAD_DIM)
    part = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    part *= num_sink_tokens * HEAD_DIM
    store_tile(partial_dk + part, 0, HEAD_DIM, dk, num_sink_tokens, BLOCK_N, HEAD_DIM)
    store_tile(partial_dv + part, 0, HEAD_DIM, dv, num_sink_tokens, BLOCK_N, HEAD_DIM)
