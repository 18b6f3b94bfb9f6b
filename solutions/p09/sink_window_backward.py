"""p09: sliding-window attention with sink tokens and sink logits that can be trained.

Query i sees key j iff j <= i and (i - window_size < j or j < num_sink_tokens). Each visible pair
belongs to exactly one of two kinds, and every kernel here treats the two apart:

    window pairs: i - window_size < j <= i
    sink pairs:   j < num_sink_tokens and j <= i - window_size

A window key is seen by window_size queries, a sink key by all that follow. One program for all of
them would outlast the whole rest of the launch, so a kernel of its own cuts the queries of the
sink pairs into chunks, and the chunks' sums are added up.

A sink logit s adds exp(s) to the softmax denominator of its head and nothing to the numerator.
"""

import math

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

LOG2E = tl.constexpr(math.log2(math.e))
LN2 = tl.constexpr(math.log(2.0))
# What a tile holds: pairs that are all visible, or pairs of one kind among others to be masked.
ALL_VISIBLE = tl.constexpr(0)
WINDOW_PAIRS = tl.constexpr(1)
SINK_PAIRS = tl.constexpr(2)


# Given: loads and stores of one tile, as in p08.


@triton.jit
def _load_tile(base, start, stride, seqlen, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr,
               IS_MASKED: tl.constexpr):
    """Rows start .. start + BLOCK - 1 of one head; with IS_MASKED, rows past the end are zero."""
    rows = start + tl.arange(0, BLOCK)
    dims = tl.arange(0, HEAD_DIM)
    pointers = base + rows[:, None].to(tl.int64) * stride + dims[None, :]
    if IS_MASKED:
        tile = tl.load(pointers, mask=rows[:, None] < seqlen, other=0.0)
    else:
        tile = tl.load(pointers)
    return tile  # (BLOCK, HEAD_DIM)


@triton.jit
def _store_tile(base, start, stride, tile, seqlen, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Store a tile in the tensor's dtype, without the rows past the end."""
    rows = start + tl.arange(0, BLOCK)
    dims = tl.arange(0, HEAD_DIM)
    pointers = base + rows[:, None].to(tl.int64) * stride + dims[None, :]
    tl.store(pointers, tile.to(base.dtype.element_ty), mask=rows[:, None] < seqlen)


@triton.jit
def _load_row_values(base, start, seqlen, BLOCK: tl.constexpr, PAD: tl.constexpr,
                     IS_MASKED: tl.constexpr):
    """One fp32 value a row (lse or delta); with IS_MASKED, PAD for the rows past the end."""
    rows = start + tl.arange(0, BLOCK)
    if IS_MASKED:
        values = tl.load(base + rows, mask=rows < seqlen, other=PAD)
    else:
        values = tl.load(base + rows)
    return values  # (BLOCK,)


# Which pairs count, and where they lie.


@triton.jit
def _is_visible(queries, keys, window_size, num_sink_tokens, PAIRS: tl.constexpr):
    """True where (query, key) is a pair of the kind PAIRS; shapes (BLOCK_M, 1) and (1, BLOCK_N),
    or (1, BLOCK_M) and (BLOCK_N, 1) for a transposed tile."""
    # >>> step 1: the window pairs and the sink pairs (about 4 lines)
    if PAIRS == WINDOW_PAIRS:
        visible = (keys <= queries) & (keys > queries - window_size)
    else:
        visible = (keys < num_sink_tokens) & (keys <= queries - window_size)
    # <<< step 1
    return visible


@triton.jit
def _key_ranges(start_m, seqlen, window_size, num_sink_tokens,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The keys that one query tile visits (given).

    Sink pairs lie in keys 0 .. sink_end - 1. Window pairs lie in three ranges of whole tiles:
    window_begin .. full_begin - 1, crossed by the left edge; full_begin .. start_m - 1, all
    visible; start_m .. end - 1, crossed by the diagonal. BLOCK_M is a multiple of BLOCK_N.
    """
    end = tl.minimum(start_m + BLOCK_M, seqlen)
    sink_end = tl.minimum(num_sink_tokens, end - window_size)
    window_begin = tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N
    left_edge = tl.maximum(start_m + BLOCK_M - window_size, 0)
    full_begin = tl.minimum(tl.cdiv(left_edge, BLOCK_N) * BLOCK_N, start_m)
    return sink_end, window_begin, full_begin, end


@triton.jit
def _query_ranges(start_n, seqlen, window_size, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The queries that form window pairs with one key tile, in three ranges of tiles.

    start_n .. diagonal_end - 1, crossed by the diagonal; diagonal_end .. full_end - 1, whole
    tiles, all visible; full_end .. end - 1, crossed by the window's edge or by the end of the
    sequence. BLOCK_N is a multiple of BLOCK_M.
    """
    # >>> step 2: the queries that see one key tile (about 4 lines)
    end = tl.minimum(start_n + BLOCK_N - 1 + window_size, seqlen)
    diagonal_end = tl.minimum(start_n + BLOCK_N, end)
    full_rows = tl.maximum(tl.minimum(start_n + window_size, seqlen) - diagonal_end, 0)
    full_end = diagonal_end + full_rows // BLOCK_M * BLOCK_M
    # <<< step 2
    return diagonal_end, full_end, end


# Given: the forward pass, p07's phases; _initial_state, further down, is yours.


@triton.jit
def _attend_tiles(acc, running_max, running_sum, q_tile, k_base, v_base, start_m, begin, end,
                  stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
                  PAIRS: tl.constexpr):
    """Online softmax over the keys begin .. end - 1."""
    IS_MASKED: tl.constexpr = PAIRS != ALL_VISIBLE
    for start_n in range(begin, end, BLOCK_N):
        k_tile = _load_tile(k_base, start_n, stride_kn, seqlen, BLOCK_N, HEAD_DIM, IS_MASKED)
        v_tile = _load_tile(v_base, start_n, stride_vn, seqlen, BLOCK_N, HEAD_DIM, IS_MASKED)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee") * scale_log2
        if IS_MASKED:
            # Rows past the end see what the last row sees, so that no row ends with a sum of 0.
            queries = tl.minimum(start_m + tl.arange(0, BLOCK_M), seqlen - 1)
            keys = start_n + tl.arange(0, BLOCK_N)
            visible = _is_visible(queries[:, None], keys[None, :], window_size, num_sink_tokens,
                                  PAIRS)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        offset = new_max
        if IS_MASKED:
            # A row may have met no visible key so far: -inf - (-inf) would be NaN.
            offset = tl.where(new_max == float("-inf"), 0.0, new_max)
        probs = tl.exp2(scores - offset[:, None])  # (BLOCK_M, BLOCK_N)
        rescale = tl.exp2(running_max - offset)
        running_sum = running_sum * rescale + tl.sum(probs, axis=1)
        acc = acc * rescale[:, None]
        acc += tl.dot(probs.to(v_tile.dtype), v_tile, input_precision="ieee")
        running_max = new_max
    return acc, running_max, running_sum


@triton.jit
def _forward_kernel(q, k, v, sink_logits, out, lse,
                    stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
                    stride_vb, stride_vh, stride_vn, stride_ob, stride_oh, stride_om,
                    stride_sink, num_q_heads, group_size, seqlen, window_size, num_sink_tokens,
                    scale_log2,
                    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SINK: tl.constexpr,
                    HEAD_DIM: tl.constexpr):
    """Attention of one query tile of one head: sink tiles, left edge, full tiles, diagonal.

    Grid (batch * num_q_heads, query tiles). Memory: Q and out once; K and V once per query tile
    whose window reaches them, the sinks once per query tile.
    """
    batch = (tl.program_id(0) // num_q_heads).to(tl.int64)
    q_head = (tl.program_id(0) % num_q_heads).to(tl.int64)
    kv_head = q_head // group_size
    start_m = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    k_base = k + batch * stride_kb + kv_head * stride_kh
    v_base = v + batch * stride_vb + kv_head * stride_vh
    q_tile = _load_tile(q + batch * stride_qb + q_head * stride_qh, start_m, stride_qm, seqlen,
                        BLOCK_M, HEAD_DIM, True)
    sink_end, window_begin, full_begin, end = _key_ranges(
        start_m, seqlen, window_size, num_sink_tokens, BLOCK_M, BLOCK_N)

    running_max, running_sum = _initial_state(sink_logits, q_head * stride_sink, BLOCK_M)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    acc, running_max, running_sum = _attend_tiles(
        acc, running_max, running_sum, q_tile, k_base, v_base, start_m, 0, sink_end,
        stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, BLOCK_SINK, HEAD_DIM, SINK_PAIRS)
    acc, running_max, running_sum = _attend_tiles(
        acc, running_max, running_sum, q_tile, k_base, v_base, start_m, window_begin, full_begin,
        stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, BLOCK_N, HEAD_DIM, WINDOW_PAIRS)
    acc, running_max, running_sum = _attend_tiles(
        acc, running_max, running_sum, q_tile, k_base, v_base, start_m, full_begin, start_m,
        stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, BLOCK_N, HEAD_DIM, ALL_VISIBLE)
    acc, running_max, running_sum = _attend_tiles(
        acc, running_max, running_sum, q_tile, k_base, v_base, start_m, start_m, end,
        stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, BLOCK_N, HEAD_DIM, WINDOW_PAIRS)

    out_base = out + batch * stride_ob + q_head * stride_oh
    _store_tile(out_base, start_m, stride_om, acc / running_sum[:, None], seqlen,
                BLOCK_M, HEAD_DIM)
    rows = start_m + tl.arange(0, BLOCK_M)
    lse_base = lse + (batch * num_q_heads + q_head) * seqlen
    tl.store(lse_base + rows, (running_max + tl.log2(running_sum)) * LN2, mask=rows < seqlen)


# The backward pass: delta (given), the sinks' part of dK and dV, dK and dV, dQ.


@triton.jit
def _delta_kernel(out, dout, delta,
                  stride_ob, stride_oh, stride_om, stride_dob, stride_doh, stride_dom,
                  num_q_heads, seqlen,
                  BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr):
    """delta = rowsum(O * dO) in fp32, one program per query tile and head (given, as in p08)."""
    batch = (tl.program_id(0) // num_q_heads).to(tl.int64)
    q_head = (tl.program_id(0) % num_q_heads).to(tl.int64)
    start_m = tl.program_id(1) * BLOCK_M
    out_base = out + batch * stride_ob + q_head * stride_oh
    dout_base = dout + batch * stride_dob + q_head * stride_doh
    delta_base = delta + (batch * num_q_heads + q_head) * seqlen
    rows = start_m + tl.arange(0, BLOCK_M)
    out_tile = _load_tile(out_base, start_m, stride_om, seqlen, BLOCK_M, HEAD_DIM, True)
    dout_tile = _load_tile(dout_base, start_m, stride_dom, seqlen, BLOCK_M, HEAD_DIM, True)
    delta_tile = tl.sum(out_tile.to(tl.float32) * dout_tile.to(tl.float32), axis=1)
    tl.store(delta_base + rows, delta_tile, mask=rows < seqlen)


@triton.jit
def _dkdv_tiles(dk, dv, k_tile, v_tile, q_base, dout_base, lse_base, delta_base,
                start_n, begin, end, stride_qm, stride_dom, seqlen, window_size, num_sink_tokens,
                scale_log2,
                BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
                PAIRS: tl.constexpr):
    """Add what the queries begin .. end - 1 of one head give to dK and dV of one key tile.

    Given, as in p08: keys down and queries across; only the mask is another.
    """
    IS_MASKED: tl.constexpr = PAIRS != ALL_VISIBLE
    for start_m in range(begin, end, BLOCK_M):
        q_tile = _load_tile(q_base, start_m, stride_qm, seqlen, BLOCK_M, HEAD_DIM, IS_MASKED)
        dout_tile = _load_tile(dout_base, start_m, stride_dom, seqlen, BLOCK_M, HEAD_DIM,
                               IS_MASKED)
        # A query past the end gets lse = +inf, hence P = 0: it adds nothing.
        lse_tile = _load_row_values(lse_base, start_m, seqlen, BLOCK_M, float("inf"), IS_MASKED)
        delta_tile = _load_row_values(delta_base, start_m, seqlen, BLOCK_M, 0.0, IS_MASKED)
        scores_t = tl.dot(k_tile, tl.trans(q_tile), input_precision="ieee")
        probs_t = tl.exp2(scores_t * scale_log2 - lse_tile[None, :] * LOG2E)
        if IS_MASKED:
            queries = start_m + tl.arange(0, BLOCK_M)
            keys = start_n + tl.arange(0, BLOCK_N)
            visible = _is_visible(queries[None, :], keys[:, None], window_size, num_sink_tokens,
                                  PAIRS)
            probs_t = tl.where(visible, probs_t, 0.0)
        dv += tl.dot(probs_t.to(dout_tile.dtype), dout_tile, input_precision="ieee")
        dprobs_t = tl.dot(v_tile, tl.trans(dout_tile), input_precision="ieee")
        dscores_t = probs_t * (dprobs_t - delta_tile[None, :])
        dk += tl.dot(dscores_t.to(q_tile.dtype), q_tile, input_precision="ieee")
    return dk, dv


@triton.jit
def _sink_dkdv_kernel(q, k, v, dout, lse, delta, dk_partial, dv_partial,
                      stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
                      stride_vb, stride_vh, stride_vn, stride_dob, stride_doh, stride_dom,
                      num_kv_heads, group_size, seqlen, window_size, num_sink_tokens,
                      chunk_size, scale_log2,
                      BLOCK_M: tl.constexpr, BLOCK_SINK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """What the sink pairs of one chunk of queries give to dK and dV of one tile of sinks.

    The first query with a sink pair is window_size; chunk c begins at window_size + c * chunk_size.
    Partial sums are fp32 (num_chunks, batch, num_kv_heads, num_sink_tokens, HEAD_DIM), each slot
    written by one program; dK still lacks softmax_scale, which _dkdv_kernel applies.
    Grid (batch * num_kv_heads, sink tiles, chunks). Memory: Q and dO read once per sink tile.
    """
    batch = (tl.program_id(0) // num_kv_heads).to(tl.int64)
    kv_head = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    start_n = tl.program_id(1) * BLOCK_SINK
    chunk = tl.program_id(2)
    k_tile = _load_tile(k + batch * stride_kb + kv_head * stride_kh, start_n, stride_kn,
                        num_sink_tokens, BLOCK_SINK, HEAD_DIM, True)
    v_tile = _load_tile(v + batch * stride_vb + kv_head * stride_vh, start_n, stride_vn,
                        num_sink_tokens, BLOCK_SINK, HEAD_DIM, True)
    dk = tl.zeros((BLOCK_SINK, HEAD_DIM), dtype=tl.float32)
    dv = tl.zeros((BLOCK_SINK, HEAD_DIM), dtype=tl.float32)
    # >>> step 3: one chunk of queries against one tile of sinks (about 11 lines)
    begin = window_size + chunk * chunk_size
    end = tl.minimum(begin + chunk_size, seqlen)
    for member in range(group_size):
        q_head = kv_head * group_size + member
        q_base = q + batch * stride_qb + q_head * stride_qh
        dout_base = dout + batch * stride_dob + q_head * stride_doh
        row_offset = (batch * num_kv_heads * group_size + q_head) * seqlen
        dk, dv = _dkdv_tiles(
            dk, dv, k_tile, v_tile, q_base, dout_base, lse + row_offset, delta + row_offset,
            start_n, begin, end, stride_qm, stride_dom, seqlen, window_size, num_sink_tokens,
            scale_log2, BLOCK_M, BLOCK_SINK, HEAD_DIM, SINK_PAIRS)
    # <<< step 3
    slot = chunk.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
    offset = slot * num_sink_tokens * HEAD_DIM
    _store_tile(dk_partial + offset, start_n, HEAD_DIM, dk, num_sink_tokens, BLOCK_SINK, HEAD_DIM)
    _store_tile(dv_partial + offset, start_n, HEAD_DIM, dv, num_sink_tokens, BLOCK_SINK, HEAD_DIM)


@triton.jit
def _dkdv_kernel(q, k, v, dout, lse, delta, sink_dk, sink_dv, dk_out, dv_out,
                 stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
                 stride_vb, stride_vh, stride_vn, stride_dob, stride_doh, stride_dom,
                 stride_dkb, stride_dkh, stride_dkn,
                 num_kv_heads, group_size, seqlen, window_size, num_sink_tokens,
                 softmax_scale, scale_log2,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr):
    """dK and dV of one key tile of one key/value head (given but for the ranges of step 2).

    The sums start from what the sink pairs gave, zero for keys that are no sinks; then come the
    window pairs of each query head of the group. The program is the only writer of its tile.
    Grid (batch * num_kv_heads, key tiles). Memory: K and V read once; Q and dO once per key tile
    in whose window they are.
    """
    batch = (tl.program_id(0) // num_kv_heads).to(tl.int64)
    kv_head = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    start_n = tl.program_id(1) * BLOCK_N
    k_tile = _load_tile(k + batch * stride_kb + kv_head * stride_kh, start_n, stride_kn, seqlen,
                        BLOCK_N, HEAD_DIM, True)
    v_tile = _load_tile(v + batch * stride_vb + kv_head * stride_vh, start_n, stride_vn, seqlen,
                        BLOCK_N, HEAD_DIM, True)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), dtype=tl.float32)
    if start_n < num_sink_tokens:
        sink_offset = (batch * num_kv_heads + kv_head) * num_sink_tokens * HEAD_DIM
        dk = _load_tile(sink_dk + sink_offset, start_n, HEAD_DIM, num_sink_tokens,
                        BLOCK_N, HEAD_DIM, True)
        dv = _load_tile(sink_dv + sink_offset, start_n, HEAD_DIM, num_sink_tokens,
                        BLOCK_N, HEAD_DIM, True)
    diagonal_end, full_end, end = _query_ranges(start_n, seqlen, window_size, BLOCK_M, BLOCK_N)
    for member in range(group_size):
        q_head = kv_head * group_size + member
        q_base = q + batch * stride_qb + q_head * stride_qh
        dout_base = dout + batch * stride_dob + q_head * stride_doh
        row_offset = (batch * num_kv_heads * group_size + q_head) * seqlen
        dk, dv = _dkdv_tiles(
            dk, dv, k_tile, v_tile, q_base, dout_base, lse + row_offset, delta + row_offset,
            start_n, start_n, diagonal_end, stride_qm, stride_dom, seqlen, window_size,
            num_sink_tokens, scale_log2, BLOCK_M, BLOCK_N, HEAD_DIM, WINDOW_PAIRS)
        dk, dv = _dkdv_tiles(
            dk, dv, k_tile, v_tile, q_base, dout_base, lse + row_offset, delta + row_offset,
            start_n, diagonal_end, full_end, stride_qm, stride_dom, seqlen, window_size,
            num_sink_tokens, scale_log2, BLOCK_M, BLOCK_N, HEAD_DIM, ALL_VISIBLE)
        dk, dv = _dkdv_tiles(
            dk, dv, k_tile, v_tile, q_base, dout_base, lse + row_offset, delta + row_offset,
            start_n, full_end, end, stride_qm, stride_dom, seqlen, window_size,
            num_sink_tokens, scale_log2, BLOCK_M, BLOCK_N, HEAD_DIM, WINDOW_PAIRS)
    dk *= softmax_scale
    offset = batch * stride_dkb + kv_head * stride_dkh
    _store_tile(dk_out + offset, start_n, stride_dkn, dk, seqlen, BLOCK_N, HEAD_DIM)
    _store_tile(dv_out + offset, start_n, stride_dkn, dv, seqlen, BLOCK_N, HEAD_DIM)


@triton.jit
def _dq_tiles(dq, q_tile, dout_tile, lse_tile, delta_tile, k_base, v_base,
              start_m, begin, end, stride_kn, stride_vn, seqlen, window_size, num_sink_tokens,
              scale_log2,
              BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
              PAIRS: tl.constexpr):
    """Add what the keys begin .. end - 1 give to dQ of one query tile (given, as in p08)."""
    IS_MASKED: tl.constexpr = PAIRS != ALL_VISIBLE
    for start_n in range(begin, end, BLOCK_N):
        k_tile = _load_tile(k_base, start_n, stride_kn, seqlen, BLOCK_N, HEAD_DIM, IS_MASKED)
        v_tile = _load_tile(v_base, start_n, stride_vn, seqlen, BLOCK_N, HEAD_DIM, IS_MASKED)
        scores = tl.dot(q_tile, tl.trans(k_tile), input_precision="ieee")
        probs = tl.exp2(scores * scale_log2 - lse_tile[:, None] * LOG2E)
        if IS_MASKED:
            queries = start_m + tl.arange(0, BLOCK_M)
            keys = start_n + tl.arange(0, BLOCK_N)
            visible = _is_visible(queries[:, None], keys[None, :], window_size, num_sink_tokens,
                                  PAIRS)
            probs = tl.where(visible, probs, 0.0)
        dprobs = tl.dot(dout_tile, tl.trans(v_tile), input_precision="ieee")
        dscores = probs * (dprobs - delta_tile[:, None])
        dq += tl.dot(dscores.to(k_tile.dtype), k_tile, input_precision="ieee")
    return dq


@triton.jit
def _dq_kernel(q, k, v, dout, lse, delta, dq_out,
               stride_qb, stride_qh, stride_qm, stride_kb, stride_kh, stride_kn,
               stride_vb, stride_vh, stride_vn, stride_dob, stride_doh, stride_dom,
               stride_dqb, stride_dqh, stride_dqm,
               num_q_heads, group_size, seqlen, window_size, num_sink_tokens,
               softmax_scale, scale_log2,
               BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_SINK: tl.constexpr,
               HEAD_DIM: tl.constexpr):
    """dQ of one query tile of one query head, over the key tiles of the forward pass.

    Grid (batch * num_q_heads, query tiles). Memory: Q and dO read once; K and V once per query
    tile whose window reaches them, the sinks once per query tile.
    """
    batch = (tl.program_id(0) // num_q_heads).to(tl.int64)
    q_head = (tl.program_id(0) % num_q_heads).to(tl.int64)
    kv_head = q_head // group_size
    start_m = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    k_base = k + batch * stride_kb + kv_head * stride_kh
    v_base = v + batch * stride_vb + kv_head * stride_vh
    row_offset = (batch * num_q_heads + q_head) * seqlen
    q_tile = _load_tile(q + batch * stride_qb + q_head * stride_qh, start_m, stride_qm, seqlen,
                        BLOCK_M, HEAD_DIM, True)
    dout_tile = _load_tile(dout + batch * stride_dob + q_head * stride_doh, start_m, stride_dom,
                           seqlen, BLOCK_M, HEAD_DIM, True)
    lse_tile = _load_row_values(lse + row_offset, start_m, seqlen, BLOCK_M, float("inf"), True)
    delta_tile = _load_row_values(delta + row_offset, start_m, seqlen, BLOCK_M, 0.0, True)
    dq = tl.zeros((BLOCK_M, HEAD_DIM), dtype=tl.float32)
    sink_end, window_begin, full_begin, end = _key_ranges(
        start_m, seqlen, window_size, num_sink_tokens, BLOCK_M, BLOCK_N)
    # >>> step 4: the sink tiles and the window tiles of one query tile (about 17 lines)
    dq = _dq_tiles(
        dq, q_tile, dout_tile, lse_tile, delta_tile, k_base, v_base, start_m, 0, sink_end,
        stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, BLOCK_SINK, HEAD_DIM, SINK_PAIRS)
    dq = _dq_tiles(
        dq, q_tile, dout_tile, lse_tile, delta_tile, k_base, v_base, start_m, window_begin,
        full_begin, stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, BLOCK_N, HEAD_DIM, WINDOW_PAIRS)
    dq = _dq_tiles(
        dq, q_tile, dout_tile, lse_tile, delta_tile, k_base, v_base, start_m, full_begin,
        start_m, stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, BLOCK_N, HEAD_DIM, ALL_VISIBLE)
    dq = _dq_tiles(
        dq, q_tile, dout_tile, lse_tile, delta_tile, k_base, v_base, start_m, start_m, end,
        stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, BLOCK_N, HEAD_DIM, WINDOW_PAIRS)
    dq *= softmax_scale
    # <<< step 4
    dq_base = dq_out + batch * stride_dqb + q_head * stride_dqh
    _store_tile(dq_base, start_m, stride_dqm, dq, seqlen, BLOCK_M, HEAD_DIM)


# The launches: given, but for the sum over the chunks.


def _launch_config(head_dim, dtype, device, window_size):
    """Tile sizes, warps and stages of the forward, dK/dV, dQ and sink kernels."""
    forward = dict(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3)
    dkdv = dict(BLOCK_M=64, BLOCK_N=128, num_warps=8, num_stages=2)
    dq = dict(BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=2)
    sinks = dict(BLOCK_M=64, num_warps=4, num_stages=2)
    return forward, dkdv, dq, sinks


def _launch_forward(q, k, v, sink_logits, window_size, num_sink_tokens, softmax_scale):
    batch, num_q_heads, seqlen, head_dim = q.shape
    config, _, _, _ = _launch_config(head_dim, q.dtype, q.device, window_size)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    grid = (batch * num_q_heads, triton.cdiv(seqlen, config["BLOCK_M"]))
    _forward_kernel[grid](
        q, k, v, sink_logits, out, lse,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        0 if sink_logits is None else sink_logits.stride(0),
        num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, num_sink_tokens,
        softmax_scale * LOG2E.value, BLOCK_SINK=16, HEAD_DIM=head_dim, **config)
    return out, lse


def _launch_delta(out, dout):
    batch, num_q_heads, seqlen, head_dim = out.shape
    delta = torch.empty(out.shape[:3], dtype=torch.float32, device=out.device)
    grid = (batch * num_q_heads, triton.cdiv(seqlen, 64))
    _delta_kernel[grid](
        out, dout, delta, *out.stride()[:3], *dout.stride()[:3], num_q_heads, seqlen,
        BLOCK_M=64, HEAD_DIM=head_dim, num_warps=4)
    return delta


def _sink_chunks(seqlen, window_size, num_sink_tokens, BLOCK_M):
    """Queries per chunk of the sink pairs, a multiple of BLOCK_M, and the number of chunks.

    A chunk holds at least 256 queries, and 4 per sink: the partial sums, num_chunks x
    num_sink_tokens rows of fp32, then have no more than seqlen / 4 rows and memory stays linear.
    """
    rows = seqlen - window_size
    chunk_size = triton.cdiv(max(256, 4 * num_sink_tokens), BLOCK_M) * BLOCK_M
    return chunk_size, triton.cdiv(rows, chunk_size)


def _launch_sink_dkdv(q, k, v, dout, lse, delta, window_size, num_sink_tokens, softmax_scale):
    """What the sink pairs give to dK (without softmax_scale) and dV of the sinks, fp32."""
    batch, num_kv_heads, seqlen, head_dim = k.shape
    if num_sink_tokens == 0:
        empty = torch.empty(0, dtype=torch.float32, device=k.device)
        return empty, empty
    _, _, _, config = _launch_config(head_dim, q.dtype, q.device, window_size)
    chunk_size, num_chunks = _sink_chunks(seqlen, window_size, num_sink_tokens, config["BLOCK_M"])
    shape = (num_chunks, batch, num_kv_heads, num_sink_tokens, head_dim)
    dk_partial = torch.empty(shape, dtype=torch.float32, device=k.device)
    dv_partial = torch.empty(shape, dtype=torch.float32, device=k.device)
    grid = (batch * num_kv_heads, triton.cdiv(num_sink_tokens, 16), num_chunks)
    _sink_dkdv_kernel[grid](
        q, k, v, dout, lse, delta, dk_partial, dv_partial,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
        num_kv_heads, q.shape[1] // num_kv_heads, seqlen, window_size, num_sink_tokens,
        chunk_size, softmax_scale * LOG2E.value, BLOCK_SINK=16, HEAD_DIM=head_dim, **config)
    # >>> step 5: the sum over the chunks (about 1 line)
    return dk_partial.sum(0), dv_partial.sum(0)
    # <<< step 5


def _launch_dkdv(q, k, v, dout, lse, delta, sink_dk, sink_dv, window_size, num_sink_tokens,
                 softmax_scale):
    batch, num_kv_heads, seqlen, head_dim = k.shape
    _, config, _, _ = _launch_config(head_dim, q.dtype, q.device, window_size)
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    grid = (batch * num_kv_heads, triton.cdiv(seqlen, config["BLOCK_N"]))
    _dkdv_kernel[grid](
        q, k, v, dout, lse, delta, sink_dk, sink_dv, dk, dv,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3], *dk.stride()[:3],
        num_kv_heads, q.shape[1] // num_kv_heads, seqlen, window_size, num_sink_tokens,
        softmax_scale, softmax_scale * LOG2E.value, HEAD_DIM=head_dim, **config)
    return dk, dv


def _launch_dq(q, k, v, dout, lse, delta, window_size, num_sink_tokens, softmax_scale):
    batch, num_q_heads, seqlen, head_dim = q.shape
    _, _, config, _ = _launch_config(head_dim, q.dtype, q.device, window_size)
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    grid = (batch * num_q_heads, triton.cdiv(seqlen, config["BLOCK_M"]))
    _dq_kernel[grid](
        q, k, v, dout, lse, delta, dq,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3], *dq.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, num_sink_tokens,
        softmax_scale, softmax_scale * LOG2E.value, BLOCK_SINK=16, HEAD_DIM=head_dim, **config)
    return dq


# The sink logit: its term in the forward pass, and its gradient.


@triton.jit
def _initial_state(sink_logits, sink_offset, BLOCK_M: tl.constexpr):
    """running_max and running_sum (BLOCK_M,) before the first key; sink_logits may be None."""
    running_max = tl.full((BLOCK_M,), float("-inf"), dtype=tl.float32)
    running_sum = tl.zeros((BLOCK_M,), dtype=tl.float32)
    if sink_logits is not None:
        sink = tl.load(sink_logits + sink_offset).to(tl.float32)
        # >>> step 6: the sink logit in the running state (about 2 lines)
        running_max = tl.zeros((BLOCK_M,), dtype=tl.float32) + sink * LOG2E
        running_sum += tl.where(sink == float("-inf"), 0.0, 1.0)
        # <<< step 6
    return running_max, running_sum


def _sink_logit_gradient(sink_logits, lse, delta):
    """Gradient of sink_logits, same shape and dtype; lse and delta are (batch, heads, seqlen)."""
    # >>> step 7: the gradient of the sink logits (about 2 lines)
    sink_probs = torch.exp(sink_logits.float()[:, None] - lse)
    return -(sink_probs * delta).sum((0, 2)).to(sink_logits.dtype)
    # <<< step 7


# Given: argument checks and the autograd function.


def _check_arguments(q, k, v, window_size, num_sink_tokens, sink_logits, softmax_scale):
    """Raise ValueError, naming the argument, unless the kernels support this call."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(f"{name}: got {tensor.ndim} dimensions, expected 4: "
                             "(batch, heads, seqlen, head_dim)")
        if 0 in tensor.shape[:2]:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected none empty")
        if tensor.shape[2] == 0:
            raise ValueError(f"seqlen: got 0 in {name}, expected at least 1")
    batch, num_q_heads, seqlen, head_dim = q.shape
    num_kv_heads = k.shape[1]
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"dtype: got {q.dtype}, expected float16, bfloat16 or float32")
    if head_dim not in (16, 32, 64, 128):
        raise ValueError(f"head_dim: got {head_dim}, expected one of 16, 32, 64, 128")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name}: got dtype {tensor.dtype}, expected {q.dtype} as q has")
        if tensor.device != q.device:
            raise ValueError(f"{name}: got device {tensor.device}, expected {q.device} as q has")
    if k.shape[2] != seqlen:
        raise ValueError(f"seqlen: got {seqlen} in q and {k.shape[2]} in k, expected the same")
    if num_q_heads % num_kv_heads != 0:
        raise ValueError(f"num_kv_heads: got {num_kv_heads}, expected a divisor of "
                         f"num_q_heads = {num_q_heads}")
    expected_shape = (batch, num_kv_heads, seqlen, head_dim)
    for name, tensor in (("k", k), ("v", v)):
        if tuple(tensor.shape) != expected_shape:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {expected_shape}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(3) != 1:
            raise ValueError(f"{name}: got stride {tensor.stride(3)} in the last dimension, "
                             "expected 1")
    if not isinstance(window_size, int) or window_size < 1:
        raise ValueError(f"window_size: got {window_size}, expected an int of at least 1")
    if not isinstance(num_sink_tokens, int) or num_sink_tokens < 0:
        raise ValueError(f"num_sink_tokens: got {num_sink_tokens}, expected an int of at least 0")
    if sink_logits is not None:
        if tuple(sink_logits.shape) != (num_q_heads,):
            raise ValueError(f"sink_logits: got shape {tuple(sink_logits.shape)}, "
                             f"expected ({num_q_heads},), one a query head")
        if sink_logits.dtype not in (q.dtype, torch.float32):
            raise ValueError(f"sink_logits: got dtype {sink_logits.dtype}, "
                             f"expected {q.dtype} as q has, or float32")
        if sink_logits.device != q.device:
            raise ValueError(f"sink_logits: got device {sink_logits.device}, "
                             f"expected {q.device} as q has")
    if softmax_scale is not None and not math.isfinite(softmax_scale):
        raise ValueError(f"softmax_scale: got {softmax_scale}, expected a finite number")


class _SinkWindowAttention(torch.autograd.Function):
    """Forward pass saving lse, and the launches of the backward pass."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, window_size, num_sink_tokens, softmax_scale):
        options = (window_size, num_sink_tokens, softmax_scale)
        out, lse = _launch_forward(q, k, v, sink_logits, *options)
        ctx.save_for_backward(q, k, v, sink_logits, out, lse)
        ctx.options = options
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, sink_logits, out, lse = ctx.saved_tensors
        # dO comes with any strides: out.sum().backward() sends one number with stride 0.
        if dout.stride(3) != 1:
            dout = dout.contiguous()
        delta = _launch_delta(out, dout)
        sink_dk, sink_dv = _launch_sink_dkdv(q, k, v, dout, lse, delta, *ctx.options)
        dk, dv = _launch_dkdv(q, k, v, dout, lse, delta, sink_dk, sink_dv, *ctx.options)
        dq = _launch_dq(q, k, v, dout, lse, delta, *ctx.options)
        dsink_logits = None
        if sink_logits is not None:
            dsink_logits = _sink_logit_gradient(sink_logits, lse, delta)
        return dq, dk, dv, dsink_logits, None, None, None


def sink_window_attention(q, k, v, *, window_size, num_sink_tokens=0, sink_logits=None,
                          softmax_scale=None):
    """Causal attention over sinks and window whose result can be differentiated.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, any strides with a
            contiguous last dimension; head_dim is 16, 32, 64 or 128.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype of q, strides as for q;
            num_kv_heads divides num_q_heads.
        window_size: keys each query sees, itself included; any int >= 1.
        num_sink_tokens: first keys of the sequence, visible to every later query; any int >= 0.
        sink_logits: (num_q_heads,), dtype of q or fp32, any stride, not multiplied by
            softmax_scale: exp(sink_logits[h]) is added to the softmax denominator of head h.
            None and -inf add nothing.
        softmax_scale: factor of the scores, any finite number; default 1 / sqrt(head_dim).

    Returns:
        out, shape and dtype of q, dense. Its backward gives dense dq, dk, dv and dsink_logits
        with the shape and dtype of their inputs; it cannot be differentiated a second time.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Dao, "FlashAttention-2" (2023), section 3.1.2, for the backward pass; Xiao et al.,
        "Efficient Streaming Language Models with Attention Sinks" (2023), section 3, for sink
        tokens; OpenAI, "gpt-oss-120b & gpt-oss-20b Model Card" (2025), for sink logits.
    """
    _check_arguments(q, k, v, window_size, num_sink_tokens, sink_logits, softmax_scale)
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(q.shape[-1])
    # >>> step 8: clamp window and sinks, and the differentiable call (about 4 lines)
    window_size = min(window_size, q.shape[2])
    num_sink_tokens = min(num_sink_tokens, q.shape[2] - window_size)
    return _SinkWindowAttention.apply(
        q, k, v, sink_logits, window_size, num_sink_tokens, float(softmax_scale))
    # <<< step 8
