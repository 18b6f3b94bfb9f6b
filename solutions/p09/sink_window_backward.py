"""Sliding-window attention with sink tokens and sink logits that can be trained.

One file holds forward and backward, since a submission is one file.
"""

import math

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

HEAD_DIMS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Triton compiles a kernel anew for arguments that are 1 or a multiple of 16. Strides and seqlen
# gain by it; for these it would only cost compilations.
VARYING = (
    "num_q_heads", "num_kv_heads", "group_size", "window_size", "num_sink_tokens", "chunk_size",
)  # fmt: skip
LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2.0))

# Every visible pair of a query and a key is of exactly one kind: a window pair, or a sink pair,
# whose key has left the window. dK and dV of the two kinds come from different kernels.
WINDOW_PAIRS = tl.constexpr(0)
SINK_PAIRS = tl.constexpr(1)


@triton.jit
def _load_tile(ptr, start, stride, seqlen, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Given: rows start to start + BLOCK of one head, zero past the end of the sequence."""
    rows = tl.arange(0, BLOCK)
    offsets = rows[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
    ptrs = ptr + tl.cast(start, tl.int64) * stride + offsets
    return tl.load(ptrs, mask=start + rows[:, None] < seqlen, other=0.0)  # (BLOCK, HEAD_DIM)


@triton.jit
def _group_rows(
    ptr, group_size, seqlen, stride_h, stride_m,
    BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Given: where `_load_group_rows` finds the rows of a group's query heads.

    A pointer to those of the first head, or a descriptor of all.
    """
    if DESCRIPTORS:
        rows = tl.make_tensor_descriptor(
            ptr,
            [group_size, seqlen, HEAD_DIM],
            [tl.cast(stride_h, tl.int64), tl.cast(stride_m, tl.int64), 1],
            [1, BLOCK, HEAD_DIM],
        )
    else:
        rows = ptr
    return rows


@triton.jit
def _load_group_rows(
    rows, member, start, stride_h, stride_m, seqlen,
    BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Given: `_load_tile` of one member of the group from what `_group_rows` returned."""
    if DESCRIPTORS:
        tile = rows.load([member, start, 0]).reshape(BLOCK, HEAD_DIM)
    else:
        head_ptr = rows + tl.cast(member, tl.int64) * stride_h
        tile = _load_tile(head_ptr, start, stride_m, seqlen, BLOCK, HEAD_DIM)
    return tile  # (BLOCK, HEAD_DIM)


@triton.jit
def _store_tile(ptr, start, stride, tile, seqlen, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Given: store a tile in the tensor's dtype, without the rows past the end."""
    rows = tl.arange(0, BLOCK)
    offsets = rows[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
    ptrs = ptr + tl.cast(start, tl.int64) * stride + offsets
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=start + rows[:, None] < seqlen)


@triton.jit
def _is_pair(offs_m, offs_n, window_size, num_sink_tokens, PAIRS: tl.constexpr):
    """True where query and key form a pair of the kind PAIRS, WINDOW_PAIRS or SINK_PAIRS.

    offs_m (BLOCK_M, 1) and offs_n (1, BLOCK_N), or transposed (1, BLOCK_M) and (BLOCK_N, 1).
    """
    # >>> step 1: window pairs and sink pairs (about 4 lines)
    if PAIRS == WINDOW_PAIRS:
        is_pair = (offs_n <= offs_m) & (offs_n > offs_m - window_size)
    else:
        is_pair = (offs_n < num_sink_tokens) & (offs_n <= offs_m - window_size)
    # <<< step 1
    return is_pair


@triton.jit
def _key_ranges(
    query_start, seqlen, window_size, num_sink_tokens, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Given: the walk of one tile of queries over its keys, as in p07.

    Positions from begin to window_start are the tiles of the sinks; from window_start on they are
    keys: to full_start the left edge of the window runs, to query_start all are visible, to end_key
    is the diagonal.
    """
    end_key = tl.minimum(query_start + BLOCK_M, seqlen)
    window_start = tl.maximum(query_start - window_size + 1, 0) // BLOCK_N * BLOCK_N
    begin = window_start - tl.cdiv(tl.minimum(num_sink_tokens, window_start), BLOCK_N) * BLOCK_N
    full_start = tl.cdiv(tl.maximum(end_key - window_size, 0), BLOCK_N) * BLOCK_N
    return begin, window_start, full_start, end_key


@triton.jit
def _is_visible(offs_m, offs_n, seqlen, window_size, num_sink_tokens):
    """Given: True for pairs of either kind; offs_m (BLOCK_M, 1), offs_n (1, BLOCK_N)."""
    # The first query that does not see the key any more; queries past the end see no sink.
    stop = tl.where(offs_n < num_sink_tokens, seqlen, offs_n + window_size)  # (1, BLOCK_N)
    return (offs_n <= offs_m) & (offs_m < stop)


@triton.jit
def _query_ranges(key_start, seqlen, window_size, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """The queries that form window pairs with one tile of keys, in three ranges.

    key_start to diagonal_end; diagonal_end to full_end, whole tiles, all visible; full_end to
    end_query, where the right edge runs: the last queries whose windows reach back to these keys.
    """
    # >>> step 2: the queries that see one tile of keys (about 4 lines)
    diagonal_end = tl.minimum(key_start + BLOCK_N, seqlen)
    end_query = tl.minimum(key_start + BLOCK_N - 1 + window_size, seqlen)
    full_queries = tl.maximum(tl.minimum(key_start + window_size, seqlen) - diagonal_end, 0)
    full_end = diagonal_end + full_queries // BLOCK_M * BLOCK_M
    # <<< step 2
    return diagonal_end, full_end, end_query


@triton.jit
def _forward_tiles(
    acc, running_max, running_sum, q, k_ptr, v_ptr, offs_m,
    begin, window_start, full_start, full_end, end,
    stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Given: fold the walk from begin to end into the running state of one tile of queries."""
    # Rows past the end see what the last row sees, so that no row ends with a sum of 0.
    queries = tl.minimum(offs_m, seqlen - 1)[:, None]  # (BLOCK_M, 1)
    # What is the same in every round stays in the loop: kept outside it would take registers.
    for position in tl.range(begin, end, BLOCK_N, disable_licm=True):
        key_start = tl.where(position < window_start, position - begin, position)
        k = _load_tile(k_ptr, key_start, stride_kn, seqlen, BLOCK_N, HEAD_DIM)
        v = _load_tile(v_ptr, key_start, stride_vn, seqlen, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        if (position < full_start) | (position >= full_end):
            offs_n = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
            visible = _is_visible(queries, offs_n[None, :], seqlen, window_size, num_sink_tokens)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
        # A row may have met no visible key so far.
        safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)  # (BLOCK_M,)
        rescale = tl.exp2(running_max - safe_max)  # (BLOCK_M,)
        p = tl.exp2(scores * scale_log2 - safe_max[:, None])  # (BLOCK_M, BLOCK_N)
        running_sum = running_sum * rescale + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        running_max = new_max
    return acc, running_max, running_sum


@triton.jit(do_not_specialize=VARYING)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, sink_logits_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om,
    stride_sink, num_q_heads, group_size, seqlen, window_size, num_sink_tokens, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Given: the forward pass of p07, one tile of queries of one head a program.

    It differs in one point: the running state starts from `_initial_state`.
    Grid: (batch * num_q_heads, query tiles), the longest rows first. BLOCK_N divides BLOCK_M.
    """
    batch = (tl.program_id(0) // num_q_heads).to(tl.int64)
    q_head = (tl.program_id(0) % num_q_heads).to(tl.int64)
    kv_head = q_head // group_size
    query_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    q_ptr += batch * stride_qb + q_head * stride_qh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    out_ptr += batch * stride_ob + q_head * stride_oh
    lse_ptr += (batch * num_q_heads + q_head) * seqlen
    offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    q = _load_tile(q_ptr, query_start, stride_qm, seqlen, BLOCK_M, HEAD_DIM)
    begin, window_start, full_start, end_key = _key_ranges(
        query_start, seqlen, window_size, num_sink_tokens, BLOCK_M, BLOCK_N
    )

    running_max, running_sum = _initial_state(sink_logits_ptr, q_head * stride_sink, BLOCK_M)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    acc, running_max, running_sum = _forward_tiles(
        acc, running_max, running_sum, q, k_ptr, v_ptr, offs_m,
        begin, window_start, full_start, query_start, end_key,
        stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2, BLOCK_N, HEAD_DIM,
    )  # fmt: skip

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    _store_tile(out_ptr, query_start, stride_om, out, seqlen, BLOCK_M, HEAD_DIM)
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + offs_m, lse, mask=offs_m < seqlen)


@triton.jit(do_not_specialize=VARYING)
def _delta_kernel(
    out_ptr, dout_ptr, delta_ptr,
    stride_ob, stride_oh, stride_om,
    stride_dob, stride_doh, stride_dom,
    num_q_heads, seqlen,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Given: delta = rowsum(out * dout) in fp32, as in p08, one tile of a head a program.

    Grid: (batch * num_q_heads, query tiles).
    Memory traffic: out and dout once; one fp32 number a row written.
    """
    batch = (tl.program_id(0) // num_q_heads).to(tl.int64)
    q_head = (tl.program_id(0) % num_q_heads).to(tl.int64)
    query_start = tl.program_id(1) * BLOCK_M
    out_ptr += batch * stride_ob + q_head * stride_oh
    dout_ptr += batch * stride_dob + q_head * stride_doh
    delta_ptr += (batch * num_q_heads + q_head) * seqlen
    offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    out = _load_tile(out_ptr, query_start, stride_om, seqlen, BLOCK_M, HEAD_DIM)
    dout = _load_tile(dout_ptr, query_start, stride_dom, seqlen, BLOCK_M, HEAD_DIM)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)  # (BLOCK_M,)
    tl.store(delta_ptr + offs_m, delta, mask=offs_m < seqlen)


@triton.jit
def _dkdv_tiles(
    dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, offs_n, group_size,
    begin, full_start, full_end, end,
    stride_qh, stride_qm, stride_doh, stride_dom,
    seqlen, window_size, num_sink_tokens, scale_log2,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr,
    DESCRIPTORS: tl.constexpr, PAIRS: tl.constexpr,
):  # fmt: skip
    """Given: add what the queries begin to end of a group's heads give to dK and dV of some keys.

    As in p08, but for two points. From full_start to full_end every pair is of the kind PAIRS, and
    no mask is paid. And one loop runs through all heads, since a window leaves few tiles of each: a
    loop for every head would fill and drain a pipeline of loads for every head.
    """
    q_rows = _group_rows(
        q_ptr, group_size, seqlen, stride_qh, stride_qm, BLOCK_M, HEAD_DIM, DESCRIPTORS
    )
    dout_rows = _group_rows(
        dout_ptr, group_size, seqlen, stride_doh, stride_dom, BLOCK_M, HEAD_DIM, DESCRIPTORS
    )
    num_tiles = tl.cdiv(end - begin, BLOCK_M)
    # As in p08: moved out of the loop, what is the same in every round would spill other registers.
    for step in tl.range(0, group_size * num_tiles, disable_licm=True):
        member = step // num_tiles
        query_start = begin + (step - member * num_tiles) * BLOCK_M
        offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
        q = _load_group_rows(
            q_rows, member, query_start, stride_qh, stride_qm, seqlen,
            BLOCK_M, HEAD_DIM, DESCRIPTORS,
        )  # fmt: skip
        dout = _load_group_rows(
            dout_rows, member, query_start, stride_doh, stride_dom, seqlen,
            BLOCK_M, HEAD_DIM, DESCRIPTORS,
        )  # fmt: skip
        row = tl.cast(member, tl.int64) * seqlen
        exists = offs_m < seqlen  # (BLOCK_M,)
        # A query past the end has lse = +inf: its probabilities are 0 and it adds nothing.
        lse = tl.load(lse_ptr + row + offs_m, mask=exists, other=float("inf"))  # (BLOCK_M,)
        delta = tl.load(delta_ptr + row + offs_m, mask=exists, other=0.0)  # (BLOCK_M,)
        scores_t = tl.dot(k, tl.trans(q), input_precision="ieee")  # (BLOCK_N, BLOCK_M)
        log2_p_t = scores_t * scale_log2 - lse[None, :] * LOG2_E  # (BLOCK_N, BLOCK_M)
        if (query_start < full_start) | (query_start >= full_end):
            is_pair = _is_pair(
                offs_m[None, :], offs_n[:, None], window_size, num_sink_tokens, PAIRS
            )
            log2_p_t = tl.where(is_pair, log2_p_t, float("-inf"))
        p_t = tl.exp2(log2_p_t)  # (BLOCK_N, BLOCK_M)
        dv = tl.dot(p_t.to(dout.dtype), dout, dv, input_precision="ieee")
        dp_t = tl.dot(v, tl.trans(dout), input_precision="ieee")  # (BLOCK_N, BLOCK_M)
        ds_t = p_t * (dp_t - delta[None, :])  # (BLOCK_N, BLOCK_M)
        dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit(do_not_specialize=VARYING)
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, sink_dk_ptr, sink_dv_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    stride_dkb, stride_dkh, stride_dkn,
    num_kv_heads, group_size, seqlen, window_size, num_sink_tokens, softmax_scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Given, but for the ranges: dK and dV of BLOCK_N keys of one key/value head.

    Algorithm: start from what the sink pairs gave, which is zero for keys that are no sinks; for
    each query head of the group walk the query tiles whose windows reach these keys: the diagonal,
    full tiles, the right edge. Each program is the only writer of its tile: no atomics.
    For DESCRIPTORS see `_has_descriptors`.
    Grid: (batch * num_kv_heads, key tiles).
    Memory traffic: K, V, dK and dV once; Q and dout (window_size + BLOCK_N) / BLOCK_N times.
    Limits: BLOCK_M divides BLOCK_N; last dimensions contiguous; dk and dv share their strides.
    """
    batch = (tl.program_id(0) // num_kv_heads).to(tl.int64)
    kv_head = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    key_start = tl.program_id(1) * BLOCK_N
    first_head = kv_head * group_size
    q_ptr += batch * stride_qb + first_head * stride_qh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    dout_ptr += batch * stride_dob + first_head * stride_doh
    lse_ptr += (batch * num_kv_heads * group_size + first_head) * seqlen
    delta_ptr += (batch * num_kv_heads * group_size + first_head) * seqlen
    dk_ptr += batch * stride_dkb + kv_head * stride_dkh
    dv_ptr += batch * stride_dkb + kv_head * stride_dkh
    offs_n = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    k = _load_tile(k_ptr, key_start, stride_kn, seqlen, BLOCK_N, HEAD_DIM)
    v = _load_tile(v_ptr, key_start, stride_vn, seqlen, BLOCK_N, HEAD_DIM)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    if key_start < num_sink_tokens:
        sink_dk_ptr += (batch * num_kv_heads + kv_head) * num_sink_tokens * HEAD_DIM
        sink_dv_ptr += (batch * num_kv_heads + kv_head) * num_sink_tokens * HEAD_DIM
        dk = _load_tile(sink_dk_ptr, key_start, HEAD_DIM, num_sink_tokens, BLOCK_N, HEAD_DIM)
        dv = _load_tile(sink_dv_ptr, key_start, HEAD_DIM, num_sink_tokens, BLOCK_N, HEAD_DIM)
    diagonal_end, full_end, end_query = _query_ranges(
        key_start, seqlen, window_size, BLOCK_M, BLOCK_N
    )
    dk, dv = _dkdv_tiles(
        dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, offs_n, group_size,
        key_start, diagonal_end, full_end, end_query,
        stride_qh, stride_qm, stride_doh, stride_dom,
        seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, HEAD_DIM, DESCRIPTORS, WINDOW_PAIRS,
    )  # fmt: skip
    dk *= softmax_scale
    _store_tile(dk_ptr, key_start, stride_dkn, dk, seqlen, BLOCK_N, HEAD_DIM)
    _store_tile(dv_ptr, key_start, stride_dkn, dv, seqlen, BLOCK_N, HEAD_DIM)


@triton.jit(do_not_specialize=VARYING)
def _sink_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, partial_dk_ptr, partial_dv_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    num_kv_heads, group_size, seqlen, window_size, num_sink_tokens, chunk_size, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_SINK: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """What the sink pairs of one chunk of queries give to dK and dV of BLOCK_SINK sinks.

    Algorithm: every query from window_size on sees the sinks, too many for one program. Chunk c
    has chunk_size of them, from window_size + c * chunk_size on, and sums of its own, fp32
    (chunks, batch, num_kv_heads, num_sink_tokens, HEAD_DIM), which are added up afterwards in
    fixed order. The factor softmax_scale of dK comes in `_dkdv_kernel`.
    Grid: (batch * num_kv_heads, sink tiles, chunks).
    Memory traffic: Q and dout once per sink tile; two fp32 rows per sink and chunk written.
    Limits: BLOCK_M divides chunk_size; num_sink_tokens + window_size <= seqlen.
    """
    batch = (tl.program_id(0) // num_kv_heads).to(tl.int64)
    kv_head = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    key_start = tl.program_id(1) * BLOCK_SINK
    chunk = tl.program_id(2)
    first_head = kv_head * group_size
    q_ptr += batch * stride_qb + first_head * stride_qh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    dout_ptr += batch * stride_dob + first_head * stride_doh
    lse_ptr += (batch * num_kv_heads * group_size + first_head) * seqlen
    delta_ptr += (batch * num_kv_heads * group_size + first_head) * seqlen
    row = (chunk.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * num_sink_tokens
    partial_dk_ptr += row * HEAD_DIM
    partial_dv_ptr += row * HEAD_DIM
    offs_n = key_start + tl.arange(0, BLOCK_SINK)  # (BLOCK_SINK,)
    k = _load_tile(k_ptr, key_start, stride_kn, num_sink_tokens, BLOCK_SINK, HEAD_DIM)
    v = _load_tile(v_ptr, key_start, stride_vn, num_sink_tokens, BLOCK_SINK, HEAD_DIM)
    dk = tl.zeros((BLOCK_SINK, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_SINK, HEAD_DIM), tl.float32)
    # >>> step 3: one chunk of queries against one tile of sinks (about 8 lines)
    begin = window_size + chunk * chunk_size
    end = tl.minimum(begin + chunk_size, seqlen)
    dk, dv = _dkdv_tiles(
        dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, offs_n, group_size,
        begin, end, end, end,
        stride_qh, stride_qm, stride_doh, stride_dom,
        seqlen, window_size, num_sink_tokens, scale_log2,
        BLOCK_M, HEAD_DIM, DESCRIPTORS, SINK_PAIRS,
    )  # fmt: skip
    # <<< step 3
    _store_tile(partial_dk_ptr, key_start, HEAD_DIM, dk, num_sink_tokens, BLOCK_SINK, HEAD_DIM)
    _store_tile(partial_dv_ptr, key_start, HEAD_DIM, dv, num_sink_tokens, BLOCK_SINK, HEAD_DIM)


@triton.jit
def _dq_tiles(
    dq, q, dout, lse, delta, k_ptr, v_ptr, offs_m, begin, window_start, full_start, full_end, end,
    stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Given: add what the keys of the walk from begin to end give to dQ of one tile of queries."""
    for position in tl.range(begin, end, BLOCK_N, disable_licm=True):
        key_start = tl.where(position < window_start, position - begin, position)
        k = _load_tile(k_ptr, key_start, stride_kn, seqlen, BLOCK_N, HEAD_DIM)
        v = _load_tile(v_ptr, key_start, stride_vn, seqlen, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        log2_p = scores * scale_log2 - lse[:, None] * LOG2_E  # (BLOCK_M, BLOCK_N)
        if (position < full_start) | (position >= full_end):
            offs_n = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
            visible = _is_visible(
                offs_m[:, None], offs_n[None, :], seqlen, window_size, num_sink_tokens
            )
            log2_p = tl.where(visible, log2_p, float("-inf"))
        p = tl.exp2(log2_p)  # (BLOCK_M, BLOCK_N)
        dp = tl.dot(dout, tl.trans(v), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        ds = p * (dp - delta[:, None])  # (BLOCK_M, BLOCK_N)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    return dq


@triton.jit(do_not_specialize=VARYING)
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    stride_dqb, stride_dqh, stride_dqm,
    num_q_heads, group_size, seqlen, window_size, num_sink_tokens, softmax_scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dQ of BLOCK_M query rows of one head.

    Algorithm: the walk of the forward pass: sinks, left edge, full tiles, diagonal.
    Grid: (batch * num_q_heads, query tiles), the longest rows first.
    Memory traffic: Q, dout and dQ once; K and V (window_size + BLOCK_M) / BLOCK_M times, the tiles
    of the sinks once per query tile.
    Limits: BLOCK_N divides BLOCK_M; last dimensions contiguous.
    """
    batch = (tl.program_id(0) // num_q_heads).to(tl.int64)
    q_head = (tl.program_id(0) % num_q_heads).to(tl.int64)
    kv_head = q_head // group_size
    query_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    q_ptr += batch * stride_qb + q_head * stride_qh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    dout_ptr += batch * stride_dob + q_head * stride_doh
    lse_ptr += (batch * num_q_heads + q_head) * seqlen
    delta_ptr += (batch * num_q_heads + q_head) * seqlen
    dq_ptr += batch * stride_dqb + q_head * stride_dqh
    offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    q = _load_tile(q_ptr, query_start, stride_qm, seqlen, BLOCK_M, HEAD_DIM)
    dout = _load_tile(dout_ptr, query_start, stride_dom, seqlen, BLOCK_M, HEAD_DIM)
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < seqlen, other=float("inf"))  # (BLOCK_M,)
    delta = tl.load(delta_ptr + offs_m, mask=offs_m < seqlen, other=0.0)  # (BLOCK_M,)
    dq = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    begin, window_start, full_start, end_key = _key_ranges(
        query_start, seqlen, window_size, num_sink_tokens, BLOCK_M, BLOCK_N
    )
    # >>> step 4: dQ of one walk (about 5 lines)
    dq = _dq_tiles(
        dq, q, dout, lse, delta, k_ptr, v_ptr, offs_m,
        begin, window_start, full_start, query_start, end_key,
        stride_kn, stride_vn, seqlen, window_size, num_sink_tokens, scale_log2, BLOCK_N, HEAD_DIM,
    )  # fmt: skip
    # <<< step 4
    dq *= softmax_scale
    _store_tile(dq_ptr, query_start, stride_dqm, dq, seqlen, BLOCK_M, HEAD_DIM)


class _SinkWindowAttention(torch.autograd.Function):
    """Joins the kernels to autograd; what is kept for the backward pass holds no scores."""

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
        if dout.stride(3) != 1:
            # The gradient of out.sum() is one number with stride 0 in every dimension.
            dout = dout.contiguous()
        delta = _launch_delta(out, dout)
        # >>> step 5: the sums over the chunks (about 2 lines)
        partial_dk, partial_dv = _launch_sink_dkdv(q, k, v, dout, lse, delta, *ctx.options)
        sink_dk, sink_dv = partial_dk.sum(0), partial_dv.sum(0)
        # <<< step 5
        dk, dv = _launch_dkdv(q, k, v, dout, lse, delta, sink_dk, sink_dv, *ctx.options)
        dq = _launch_dq(q, k, v, dout, lse, delta, *ctx.options)
        dsink_logits = None
        if sink_logits is not None:
            dsink_logits = _sink_logits_gradient(sink_logits, lse, delta)
        return dq, dk, dv, dsink_logits, None, None, None


@triton.jit
def _initial_state(sink_logits_ptr, sink_offset, BLOCK_M: tl.constexpr):
    """running_max and running_sum of the forward pass before the first key, both (BLOCK_M,)."""
    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    if sink_logits_ptr is not None:
        sink = tl.load(sink_logits_ptr + sink_offset).to(tl.float32)
        # >>> step 6: the sink logit in the running state (about 2 lines)
        running_max = tl.maximum(running_max, sink * LOG2_E)
        running_sum += 1.0
        # <<< step 6
    return running_max, running_sum


def _sink_logits_gradient(sink_logits, lse, delta):
    """Gradient of sink_logits, its shape and dtype; lse and delta (batch, num_q_heads, seqlen)."""
    # >>> step 7: the gradient of the sink logits (about 2 lines)
    sink_p = torch.exp(sink_logits.float()[:, None] - lse)
    return -(sink_p * delta).sum((0, 2)).to(sink_logits.dtype)
    # <<< step 7


def sink_window_attention(
    q, k, v, *, window_size, num_sink_tokens=0, sink_logits=None, softmax_scale=None
):
    """Causal attention over sinks and window that can be differentiated by its tensors.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, any strides with the last
            dimension contiguous.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype of q, each with strides of its own;
            num_kv_heads divides num_q_heads.
        window_size: keys each query sees, itself included; any int >= 1.
        num_sink_tokens: first keys of the sequence, visible to every later query whatever the
            window; any int >= 0, default 0. Query i sees keys j <= i with i - window_size < j or
            j < num_sink_tokens.
        sink_logits: (num_q_heads,), dtype of q or fp32, any stride; exp(sink_logits[h]) is one
            more term in the softmax denominator of head h, not multiplied by softmax_scale.
            Default None: no term, as for -inf.
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense. Its backward pass takes dout with any strides and gives
            dense dq, dk, dv and dsink_logits, shape and dtype of their inputs. It cannot be
            differentiated twice.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Dao, FlashAttention-2, arXiv:2307.08691, algorithm 2, for the backward pass; Xiao et
    al., Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453, section 3, for
    sink tokens; OpenAI, gpt-oss-120b & gpt-oss-20b Model Card, arXiv:2508.10925, for sink logits.
    """
    _check_arguments(q, k, v, window_size, num_sink_tokens, sink_logits, softmax_scale)
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(q.shape[3])
    # >>> step 8: clamp window and sinks, and the differentiable call (about 5 lines)
    window_size = min(window_size, q.shape[2])
    num_sink_tokens = min(num_sink_tokens, q.shape[2] - window_size)
    return _SinkWindowAttention.apply(
        q, k, v, sink_logits, window_size, num_sink_tokens, float(softmax_scale)
    )
    # <<< step 8


def _launch_forward(q, k, v, sink_logits, window_size, num_sink_tokens, softmax_scale):
    """Given: out, dense, and lse (batch, num_q_heads, seqlen), fp32."""
    # The kernel scales the maximum in place of the scores, and so wants a scale above 0: the sign
    # moves to q, and a scale of 0 to a number that no score can make count (0 * -inf is NaN).
    if softmax_scale < 0:
        q, softmax_scale = -q, -softmax_scale
    softmax_scale = max(softmax_scale, 1e-30)
    batch, num_q_heads, seqlen, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    config = _launch_config(q.shape[3], q.dtype, q.device, window_size, num_sink_tokens)["forward"]
    grid = (batch * num_q_heads, triton.cdiv(seqlen, config["BLOCK_M"]))
    _forward_kernel[grid](
        q, k, v, sink_logits, out, lse,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        0 if sink_logits is None else sink_logits.stride(0),
        num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, num_sink_tokens,
        softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, **config,
    )  # fmt: skip
    return out, lse


def _launch_delta(out, dout):
    """Given: delta (batch, num_q_heads, seqlen), fp32."""
    batch, num_q_heads, seqlen, head_dim = out.shape
    delta = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=out.device)
    grid = (batch * num_q_heads, triton.cdiv(seqlen, 64))
    _delta_kernel[grid](
        out, dout, delta, *out.stride()[:3], *dout.stride()[:3],
        num_q_heads, seqlen, HEAD_DIM=head_dim, BLOCK_M=64, num_warps=4,
    )  # fmt: skip
    return delta


def _launch_sink_dkdv(q, k, v, dout, lse, delta, window_size, num_sink_tokens, softmax_scale):
    """Given: partial dK and dV, fp32 (chunks, batch, num_kv_heads, num_sink_tokens, head_dim).

    A chunk has 256 queries, or 4 per sink if that is more: the partial sums then have at most
    seqlen / 4 rows beside one row per sink, so memory stays linear in seqlen.
    """
    batch, num_kv_heads, seqlen, head_dim = k.shape
    descriptors = _has_descriptors(q, dout)
    if descriptors:
        triton.set_allocator(_descriptor_memory)
    options = (window_size, num_sink_tokens, descriptors)
    config = _launch_config(q.shape[3], q.dtype, q.device, *options)["sink"]
    chunk_size = triton.cdiv(max(256, 4 * num_sink_tokens), 64) * 64
    num_chunks = triton.cdiv(seqlen - window_size, chunk_size)
    shape = (num_chunks, batch, num_kv_heads, num_sink_tokens, head_dim)
    partial_dk = torch.empty(shape, dtype=torch.float32, device=k.device)
    partial_dv = torch.empty(shape, dtype=torch.float32, device=k.device)
    if num_sink_tokens > 0:
        num_tiles = triton.cdiv(num_sink_tokens, config["BLOCK_SINK"])
        _sink_dkdv_kernel[(batch * num_kv_heads, num_tiles, num_chunks)](
            q, k, v, dout, lse, delta, partial_dk, partial_dv,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
            num_kv_heads, q.shape[1] // num_kv_heads, seqlen, window_size, num_sink_tokens,
            chunk_size, softmax_scale * LOG2_E.value,
            HEAD_DIM=head_dim, DESCRIPTORS=descriptors, **config,
        )  # fmt: skip
    return partial_dk, partial_dv


def _launch_dkdv(
    q, k, v, dout, lse, delta, sink_dk, sink_dv, window_size, num_sink_tokens, softmax_scale
):
    """Given: dk and dv, dense, shape and dtype of k and v."""
    batch, num_kv_heads, seqlen, head_dim = k.shape
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    descriptors = _has_descriptors(q, dout)
    if descriptors:
        triton.set_allocator(_descriptor_memory)
    options = (window_size, num_sink_tokens, descriptors)
    config = _launch_config(q.shape[3], q.dtype, q.device, *options)["dkdv"]
    grid = (batch * num_kv_heads, triton.cdiv(seqlen, config["BLOCK_N"]))
    _dkdv_kernel[grid](
        q, k, v, dout, lse, delta, sink_dk, sink_dv, dk, dv,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3], *dk.stride()[:3],
        num_kv_heads, q.shape[1] // num_kv_heads, seqlen, window_size, num_sink_tokens,
        softmax_scale, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, DESCRIPTORS=descriptors, **config,
    )  # fmt: skip
    return dk, dv


def _launch_dq(q, k, v, dout, lse, delta, window_size, num_sink_tokens, softmax_scale):
    """Given: dq, dense, shape and dtype of q."""
    batch, num_q_heads, seqlen, head_dim = q.shape
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    config = _launch_config(q.shape[3], q.dtype, q.device, window_size, num_sink_tokens)["dq"]
    grid = (batch * num_q_heads, triton.cdiv(seqlen, config["BLOCK_M"]))
    _dq_kernel[grid](
        q, k, v, dout, lse, delta, dq,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3], *dq.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, num_sink_tokens,
        softmax_scale, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, **config,
    )  # fmt: skip
    return dq


def _has_descriptors(*tensors):
    """Given: whether the tensor memory accelerator of compute capability 9.0 can fetch their tiles.

    It takes one instruction for a tile and no registers for addresses; a row must begin at a
    multiple of 16 bytes.
    """
    return all(
        tensor.is_cuda
        and torch.cuda.get_device_capability(tensor.device) == (9, 0)
        and tensor.dtype != torch.float32
        and tensor.data_ptr() % 16 == 0
        and all(stride > 0 and stride % 8 == 0 for stride in tensor.stride()[:3])
        for tensor in tensors
    )


def _descriptor_memory(size, alignment, stream):
    """Given: memory in which a kernel writes its descriptors, as Triton asks for it."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _launch_config(head_dim, dtype, device, window_size, num_sink_tokens, descriptors=False):
    """Given: tile sizes, warps and pipeline stages of each kernel.

    BLOCK_M divides BLOCK_N for dK and dV, and 64 for the sinks; BLOCK_N divides BLOCK_M elsewhere.
    """
    shared_bytes = 160 * 1024
    if device.type == "cuda":
        shared_bytes = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
        if dtype == torch.float32:
            # IEEE dots run on the CUDA cores, operands in registers.
            shared_bytes = 0
    if shared_bytes >= 160 * 1024:
        # Of a tile's pairs a share of window_size / (window_size + 64) counts: not more than 64.
        forward_tile = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3}
        dkdv_tile = {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
        dq_tile = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3}
        sink_tile = {"BLOCK_M": 64, "BLOCK_SINK": 16, "num_warps": 2, "num_stages": 3}
        if window_size >= 512:
            forward_tile = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
        if head_dim == 128:
            sink_tile = {"BLOCK_M": 32, "BLOCK_SINK": 16, "num_warps": 2, "num_stages": 3}
            if window_size >= 512:
                dq_tile = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
            if descriptors:
                # Without addresses in registers there is room for scores of 64 queries.
                dkdv_tile = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
        if num_sink_tokens > 16:
            # Every tile of sinks reads all queries once more: few tiles.
            sink_tile = {"BLOCK_M": 32, "BLOCK_SINK": 64, "num_warps": 4, "num_stages": 3}
    elif shared_bytes >= 96 * 1024:
        # Compute capability 8.6, 8.9 and 12.0.
        forward_tile = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
        dkdv_tile = {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
        dq_tile = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
        sink_tile = {"BLOCK_M": 64, "BLOCK_SINK": 16, "num_warps": 4, "num_stages": 2}
    else:
        # fp32 anywhere, and fp16 on compute capability 7.5 with its 64 KiB.
        forward_tile = {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
        dkdv_tile = {"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 8, "num_stages": 1}
        dq_tile = {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
        sink_tile = {"BLOCK_M": 32, "BLOCK_SINK": 16, "num_warps": 4, "num_stages": 1}
    return {"forward": forward_tile, "dkdv": dkdv_tile, "sink": sink_tile, "dq": dq_tile}


def _check_arguments(q, k, v, window_size, num_sink_tokens, sink_logits, softmax_scale):
    """Given: raise ValueError, naming the argument, unless the kernels support this call."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(
                f"{name}: got {tensor.ndim} dimensions, expected 4: batch, heads, seqlen, head_dim"
            )
        if 0 in tensor.shape[:2]:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected none empty")
        if tensor.shape[2] == 0:
            raise ValueError(f"seqlen: got 0 in {name}, expected at least 1")
    if q.dtype not in DTYPES:
        raise ValueError(f"dtype: got {q.dtype}, expected one of float16, bfloat16, float32")
    if q.shape[3] not in HEAD_DIMS:
        raise ValueError(f"head_dim: got {q.shape[3]}, expected one of 16, 32, 64, 128")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name}: got {tensor.dtype}, expected the dtype of q, {q.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name}: got {tensor.device}, expected the device of q, {q.device}")
    if k.shape[2] != q.shape[2]:
        raise ValueError(f"seqlen: got {q.shape[2]} in q and {k.shape[2]} in k, expected the same")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise ValueError(
            f"k: got shape {tuple(k.shape)}, expected batch {q.shape[0]} and head_dim {q.shape[3]}"
        )
    if q.shape[1] % k.shape[1] != 0:
        raise ValueError(
            f"num_kv_heads: got {k.shape[1]}, expected a divisor of num_q_heads, {q.shape[1]}"
        )
    if v.shape != k.shape:
        raise ValueError(f"v: got shape {tuple(v.shape)}, expected that of k, {tuple(k.shape)}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(3) != 1:
            raise ValueError(f"{name}: got stride {tensor.stride(3)} in head_dim, expected 1")
    if not isinstance(window_size, int) or window_size < 1:
        raise ValueError(f"window_size: got {window_size}, expected an int of at least 1")
    if not isinstance(num_sink_tokens, int) or num_sink_tokens < 0:
        raise ValueError(f"num_sink_tokens: got {num_sink_tokens}, expected an int of at least 0")
    if sink_logits is not None:
        if tuple(sink_logits.shape) != (q.shape[1],):
            raise ValueError(
                f"sink_logits: got shape {tuple(sink_logits.shape)}, expected ({q.shape[1]},)"
            )
        if sink_logits.dtype not in (q.dtype, torch.float32):
            raise ValueError(
                f"sink_logits: got {sink_logits.dtype}, expected float32 or that of q, {q.dtype}"
            )
        if sink_logits.device != q.device:
            raise ValueError(
                f"sink_logits: got {sink_logits.device}, expected the device of q, {q.device}"
            )
    if softmax_scale is not None and not math.isfinite(softmax_scale):
        raise ValueError(f"softmax_scale: got {softmax_scale}, expected a finite number")
