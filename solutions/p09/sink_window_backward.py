"""Attention over sinks and window, with learned sink logits, that can be trained.

What lies outside the marked steps is given and correct.
One file holds forward and backward, since a submission is one file.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from given.arguments import (
    check_attention,
    check_sink_logits,
    check_window,
    default_scale,
    positive_scale,
)
from given.backward import add_to_dkdv, add_to_dq, row_delta
from given.launch import VARYING, program_of_longest_rows_first, sink_window_tiles
from given.sinks import is_visible, sink_window_bounds, sink_window_loop
from given.softmax import initial_state
from given.tiles import has_descriptors, load_rows, load_tile, rows_of_heads, store_tile
from given.units import LN_2, LOG2_E


@triton.jit(do_not_specialize=VARYING)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, sink_logits_ptr, out_ptr, lse_ptr,
    q_strides, k_strides, v_strides, out_strides, sink_stride,
    num_q_heads, group_size, seqlen, window_size, num_sink_tokens, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The forward pass of p07 with a sink logit: BLOCK_M query rows of one query head per program.

    Grid: (batch * num_q_heads, query tiles), longest rows first. BLOCK_N divides BLOCK_M.
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
    bounds = sink_window_bounds(query_start, seqlen, window_size, num_sink_tokens, BLOCK_M, BLOCK_N)
    begin, first_key, full_start, full_end, end_key = bounds

    running_max, running_sum, acc = initial_state(BLOCK_M, HEAD_DIM)
    # >>> step 1: the sink logit in the running state (about 4 lines)
    if sink_logits_ptr is not None:
        sink_logit = tl.load(sink_logits_ptr + q_head * sink_stride).to(tl.float32)
        running_max = tl.maximum(running_max, sink_logit * LOG2_E)
        running_sum += 1.0
    # <<< step 1
    running_max, running_sum, acc = sink_window_loop(
        q, k_ptr, v_ptr, k_strides[2], v_strides[2], queries,
        begin, first_key, full_start, full_end, end_key, seqlen, window_size, num_sink_tokens,
        running_max, running_sum, acc, scale_log2, HEAD_DIM, BLOCK_N,
    )  # fmt: skip

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    store_tile(out_ptr, query_start, out_strides[2], out, seqlen, BLOCK_M, HEAD_DIM)
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + offs_m, lse, mask=offs_m < seqlen)


@triton.jit(do_not_specialize=VARYING)
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr,
    q_strides, k_strides, v_strides, dout_strides, dq_strides,
    num_q_heads, group_size, seqlen, window_size, num_sink_tokens, softmax_scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dQ of BLOCK_M query rows of one query head per program.

    Algorithm: the loop of the forward pass: sinks, left edge, full tiles, diagonal.
    Grid: (batch * num_q_heads, query tiles), longest rows first. BLOCK_N divides BLOCK_M.
    Memory traffic: Q, dout and dQ once; of K and V window_size + BLOCK_M keys per query tile, and
    the tiles of the sinks.
    """
    place = program_of_longest_rows_first(num_q_heads, group_size, BLOCK_M)
    batch, q_head, kv_head, query_start = place
    q_ptr += batch * q_strides[0] + q_head * q_strides[1]
    k_ptr += batch * k_strides[0] + kv_head * k_strides[1]
    v_ptr += batch * v_strides[0] + kv_head * v_strides[1]
    dout_ptr += batch * dout_strides[0] + q_head * dout_strides[1]
    dq_ptr += batch * dq_strides[0] + q_head * dq_strides[1]
    lse_ptr += (batch * num_q_heads + q_head) * seqlen
    delta_ptr += (batch * num_q_heads + q_head) * seqlen
    offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    queries = offs_m[:, None]  # (BLOCK_M, 1)
    q = load_tile(q_ptr, query_start, q_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    dout = load_tile(dout_ptr, query_start, dout_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    # A query past the end has lse = +inf, so that its probabilities are 0.
    lse = tl.load(lse_ptr + offs_m, mask=offs_m < seqlen, other=float("inf"))  # (BLOCK_M,)
    delta = tl.load(delta_ptr + offs_m, mask=offs_m < seqlen, other=0.0)  # (BLOCK_M,)
    bounds = sink_window_bounds(query_start, seqlen, window_size, num_sink_tokens, BLOCK_M, BLOCK_N)
    begin, first_key, full_start, full_end, end_key = bounds

    dq = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    # >>> step 2: dQ, with the loop of the forward pass (about 12 lines)
    for position in tl.range(begin, end_key, BLOCK_N, disable_licm=True):
        key_start = tl.where(position < first_key, position - begin, position)
        k = load_tile(k_ptr, key_start, k_strides[2], seqlen, BLOCK_N, HEAD_DIM)
        v = load_tile(v_ptr, key_start, v_strides[2], seqlen, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        log2_p = scores * scale_log2 - lse[:, None] * LOG2_E  # (BLOCK_M, BLOCK_N)
        if (position < full_start) | (position >= full_end):  # full tiles pay for no mask
            keys = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
            visible = is_visible(queries, keys[None, :], seqlen, window_size, num_sink_tokens)
            log2_p = tl.where(visible, log2_p, float("-inf"))
        dq = add_to_dq(dq, tl.exp2(log2_p), dout, delta, k, v)
    # <<< step 2
    dq *= softmax_scale
    store_tile(dq_ptr, query_start, dq_strides[2], dq, seqlen, BLOCK_M, HEAD_DIM)


@triton.jit
def _query_ranges(key_start, seqlen, window_size, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return diagonal_end, full_end, end_query: where three ranges of queries end.

    The queries that form window pairs with the tile of keys at key_start: the diagonal, from there
    to diagonal_end; whole tiles of BLOCK_M queries that all see all these keys, to full_end; the
    right edge, to end_query: the queries whose windows hold only some of these keys.
    """
    diagonal_end, full_end, end_query = key_start, key_start, key_start  # until step 3, no query
    # >>> step 3: the queries whose windows reach a tile of keys (about 4 lines)
    diagonal_end = tl.minimum(key_start + BLOCK_N, seqlen)
    end_query = tl.minimum(key_start + BLOCK_N - 1 + window_size, seqlen)
    full_queries = tl.maximum(tl.minimum(key_start + window_size, seqlen) - diagonal_end, 0)
    full_end = diagonal_end + full_queries // BLOCK_M * BLOCK_M
    # <<< step 3
    return diagonal_end, full_end, end_query


@triton.jit
def _is_window_pair(queries, keys, window_size):
    """Whether each query and key form a window pair; queries (1, BLOCK_M), keys (BLOCK_N, 1)."""
    is_pair = keys <= queries  # until step 4, as if no key ever left the window
    # >>> step 4: the window pairs (about 1 line)
    is_pair = (keys <= queries) & (keys > queries - window_size)
    # <<< step 4
    return is_pair


@triton.jit
def _is_sink_pair(queries, keys, window_size, num_sink_tokens):
    """Whether each query and key form a sink pair; queries (1, BLOCK_M), keys (BLOCK_N, 1)."""
    is_pair = (keys < 0) & (queries < 0)  # until step 5, no pair
    # >>> step 5: the sink pairs (about 1 line)
    is_pair = (keys < num_sink_tokens) & (keys <= queries - window_size)
    # <<< step 5
    return is_pair


@triton.jit
def _add_queries(
    dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, key_start, group_size,
    begin, full_start, full_end, end, q_strides, dout_strides,
    seqlen, window_size, num_sink_tokens, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DESCRIPTORS: tl.constexpr, ARE_SINKS: tl.constexpr,
):  # fmt: skip
    """Return dk and dv with what the queries begin to end of a group's heads give to one key tile.

    Only sink pairs count with ARE_SINKS, only window pairs without. From full_start to full_end
    every pair counts, and no mask is needed. q_ptr, dout_ptr, lse_ptr and delta_ptr are those of
    the group's first head. One loop goes through all heads: a window leaves few tiles of each.
    """
    q_rows = rows_of_heads(
        q_ptr, group_size, seqlen, q_strides[1], q_strides[2], BLOCK_M, HEAD_DIM, DESCRIPTORS
    )
    dout_rows = rows_of_heads(
        dout_ptr, group_size, seqlen, dout_strides[1], dout_strides[2],
        BLOCK_M, HEAD_DIM, DESCRIPTORS,
    )  # fmt: skip
    keys = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    num_tiles = tl.cdiv(end - begin, BLOCK_M)
    # disable_licm: loop-invariant values hoisted out of the loop would take registers.
    for index in tl.range(0, group_size * num_tiles, disable_licm=True):
        member = index // num_tiles
        query_start = begin + (index - member * num_tiles) * BLOCK_M
        offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
        q = load_rows(
            q_rows, member, query_start, q_strides[1], q_strides[2], seqlen,
            BLOCK_M, HEAD_DIM, DESCRIPTORS,
        )  # fmt: skip
        dout = load_rows(
            dout_rows, member, query_start, dout_strides[1], dout_strides[2], seqlen,
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
            if ARE_SINKS:
                is_pair = _is_sink_pair(
                    offs_m[None, :], keys[:, None], window_size, num_sink_tokens
                )
            else:
                is_pair = _is_window_pair(offs_m[None, :], keys[:, None], window_size)
            log2_p_t = tl.where(is_pair, log2_p_t, float("-inf"))
        dk, dv = add_to_dkdv(dk, dv, tl.exp2(log2_p_t), q, dout, delta, v)
    return dk, dv


@triton.jit(do_not_specialize=VARYING)
def _sink_dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, partial_dk_ptr, partial_dv_ptr,
    q_strides, k_strides, v_strides, dout_strides,
    num_kv_heads, group_size, seqlen, window_size, num_sink_tokens, chunk_size, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """What the sink pairs of one chunk of queries give to dK and dV of BLOCK_N sinks, per program.

    The sums are fp32, (chunks, batch, num_kv_heads, num_sink_tokens, HEAD_DIM); dK still lacks its
    factor softmax_scale.
    Grid: (batch * num_kv_heads, sink tiles, chunks). BLOCK_M divides chunk_size.
    Memory traffic: Q and dout once per sink tile; two fp32 rows per sink and chunk written.
    """
    batch = (tl.program_id(0) // num_kv_heads).to(tl.int64)
    kv_head = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    key_start = tl.program_id(1) * BLOCK_N
    chunk = tl.program_id(2)
    first_head = kv_head * group_size
    q_ptr += batch * q_strides[0] + first_head * q_strides[1]
    k_ptr += batch * k_strides[0] + kv_head * k_strides[1]
    v_ptr += batch * v_strides[0] + kv_head * v_strides[1]
    dout_ptr += batch * dout_strides[0] + first_head * dout_strides[1]
    lse_ptr += (batch * num_kv_heads * group_size + first_head) * seqlen
    delta_ptr += (batch * num_kv_heads * group_size + first_head) * seqlen
    row = (chunk.to(tl.int64) * tl.num_programs(0) + tl.program_id(0)) * num_sink_tokens
    partial_dk_ptr += row * HEAD_DIM
    partial_dv_ptr += row * HEAD_DIM
    k = load_tile(k_ptr, key_start, k_strides[2], num_sink_tokens, BLOCK_N, HEAD_DIM)
    v = load_tile(v_ptr, key_start, v_strides[2], num_sink_tokens, BLOCK_N, HEAD_DIM)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    # Until step 6, every program takes the first chunk.
    begin, end = window_size, tl.minimum(window_size + chunk_size, seqlen)
    # >>> step 6: one chunk of queries (about 2 lines)
    begin = window_size + chunk * chunk_size
    end = tl.minimum(begin + chunk_size, seqlen)
    # <<< step 6
    dk, dv = _add_queries(
        dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, key_start, group_size,
        begin, end, end, end, q_strides, dout_strides,  # every tile is masked
        seqlen, window_size, num_sink_tokens, scale_log2,
        HEAD_DIM, BLOCK_M, BLOCK_N, DESCRIPTORS, True,
    )  # fmt: skip
    store_tile(partial_dk_ptr, key_start, HEAD_DIM, dk, num_sink_tokens, BLOCK_N, HEAD_DIM)
    store_tile(partial_dv_ptr, key_start, HEAD_DIM, dv, num_sink_tokens, BLOCK_N, HEAD_DIM)


@triton.jit(do_not_specialize=VARYING)
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, sink_dk_ptr, sink_dv_ptr, dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, dout_strides, dk_strides,
    num_kv_heads, group_size, seqlen, window_size, num_sink_tokens, softmax_scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """dK and dV of BLOCK_N keys of one kv head per program, without atomics.

    Algorithm: start from the sums of the sink pairs, 0 for keys that are not sinks; for each query
    head of the group add the window pairs of three ranges of queries, see `_query_ranges`.
    Grid: (batch * num_kv_heads, key tiles). BLOCK_M divides BLOCK_N.
    Memory traffic: K, V, dK and dV once; of Q and dout window_size + BLOCK_N rows per key tile.
    """
    batch = (tl.program_id(0) // num_kv_heads).to(tl.int64)
    kv_head = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    key_start = tl.program_id(1) * BLOCK_N
    first_head = kv_head * group_size
    q_ptr += batch * q_strides[0] + first_head * q_strides[1]
    k_ptr += batch * k_strides[0] + kv_head * k_strides[1]
    v_ptr += batch * v_strides[0] + kv_head * v_strides[1]
    dout_ptr += batch * dout_strides[0] + first_head * dout_strides[1]
    lse_ptr += (batch * num_kv_heads * group_size + first_head) * seqlen
    delta_ptr += (batch * num_kv_heads * group_size + first_head) * seqlen
    dk_ptr += batch * dk_strides[0] + kv_head * dk_strides[1]
    dv_ptr += batch * dk_strides[0] + kv_head * dk_strides[1]
    k = load_tile(k_ptr, key_start, k_strides[2], seqlen, BLOCK_N, HEAD_DIM)
    v = load_tile(v_ptr, key_start, v_strides[2], seqlen, BLOCK_N, HEAD_DIM)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    if key_start < num_sink_tokens:
        sink_dk_ptr += (batch * num_kv_heads + kv_head) * num_sink_tokens * HEAD_DIM
        sink_dv_ptr += (batch * num_kv_heads + kv_head) * num_sink_tokens * HEAD_DIM
        dk = load_tile(sink_dk_ptr, key_start, HEAD_DIM, num_sink_tokens, BLOCK_N, HEAD_DIM)
        dv = load_tile(sink_dv_ptr, key_start, HEAD_DIM, num_sink_tokens, BLOCK_N, HEAD_DIM)
    ranges = _query_ranges(key_start, seqlen, window_size, BLOCK_M, BLOCK_N)
    diagonal_end, full_end, end_query = ranges
    dk, dv = _add_queries(
        dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, key_start, group_size,
        key_start, diagonal_end, full_end, end_query, q_strides, dout_strides,
        seqlen, window_size, num_sink_tokens, scale_log2,
        HEAD_DIM, BLOCK_M, BLOCK_N, DESCRIPTORS, False,
    )  # fmt: skip
    dk *= softmax_scale
    store_tile(dk_ptr, key_start, dk_strides[2], dk, seqlen, BLOCK_N, HEAD_DIM)
    store_tile(dv_ptr, key_start, dk_strides[2], dv, seqlen, BLOCK_N, HEAD_DIM)


def _sink_logits_gradient(sink_logits, lse, delta):
    """Gradient of sink_logits, its shape and dtype; lse and delta (batch, num_q_heads, seqlen)."""
    dsink_logits = torch.zeros_like(sink_logits)
    # >>> step 7: the gradient of the sink logits (about 2 lines)
    sink_p = torch.exp(sink_logits.float()[:, None] - lse)
    dsink_logits = -(sink_p * delta).sum((0, 2)).to(sink_logits.dtype)
    # <<< step 7
    return dsink_logits


class _SinkWindowAttention(torch.autograd.Function):
    """Joins the kernels to autograd; what is kept for the backward pass holds no scores."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, window_size, num_sink_tokens, softmax_scale):
        ctx.options = (window_size, num_sink_tokens, softmax_scale)
        out, lse = _forward(q, k, v, sink_logits, *ctx.options)
        ctx.save_for_backward(q, k, v, sink_logits, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, sink_logits, out, lse = ctx.saved_tensors
        if dout.stride(3) != 1:
            # The gradient of out.sum() is one number with stride 0 in every dimension.
            dout = dout.contiguous()
        delta = row_delta(out, dout)
        sink_dk, sink_dv = _sink_dkdv(q, k, v, dout, lse, delta, *ctx.options)
        dk, dv = _dkdv(q, k, v, dout, lse, delta, sink_dk, sink_dv, *ctx.options)
        dq = _dq(q, k, v, dout, lse, delta, *ctx.options)
        dsink_logits = None
        if sink_logits is not None:
            dsink_logits = _sink_logits_gradient(sink_logits, lse, delta)
        return dq, dk, dv, dsink_logits, None, None, None


def sink_window_attention(
    q, k, v, *, window_size, num_sink_tokens=0, sink_logits=None, softmax_scale=None
):
    """Causal attention over sinks and window that can be differentiated by its tensors.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, last dimension contiguous.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype and device of q, same rule for strides.
        window_size: keys each query sees, itself included; any int >= 1.
        num_sink_tokens: any int >= 0. Query i sees the keys j <= i with i - window_size < j or
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
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    check_sink_logits(sink_logits, q)
    softmax_scale = default_scale(softmax_scale, q.shape[3])
    # >>> step 8: clamp window and sinks (about 2 lines)
    window_size = min(window_size, q.shape[2])
    num_sink_tokens = min(num_sink_tokens, q.shape[2] - window_size)
    # <<< step 8
    return _SinkWindowAttention.apply(
        q, k, v, sink_logits, window_size, num_sink_tokens, softmax_scale
    )


def _forward(q, k, v, sink_logits, window_size, num_sink_tokens, softmax_scale):
    """Launch `_forward_kernel`: out, dense, and lse (batch, num_q_heads, seqlen), fp32."""
    q, softmax_scale = positive_scale(q, softmax_scale)
    batch, num_q_heads, seqlen, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    tiles = sink_window_tiles(q, window_size, num_sink_tokens)["forward"]
    _forward_kernel[(batch * num_q_heads, triton.cdiv(seqlen, tiles["BLOCK_M"]))](
        q, k, v, sink_logits, out, lse,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], out.stride()[:3],
        0 if sink_logits is None else sink_logits.stride(0),
        num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, num_sink_tokens,
        softmax_scale * LOG2_E.value, HEAD_DIM=head_dim, **tiles,
    )  # fmt: skip
    return out, lse


def _dq(q, k, v, dout, lse, delta, window_size, num_sink_tokens, softmax_scale):
    """Launch `_dq_kernel`: dq, dense, shape and dtype of q."""
    batch, num_q_heads, seqlen, head_dim = q.shape
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tiles = sink_window_tiles(q, window_size, num_sink_tokens)["dq"]
    _dq_kernel[(batch * num_q_heads, triton.cdiv(seqlen, tiles["BLOCK_M"]))](
        q, k, v, dout, lse, delta, dq,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], dout.stride()[:3], dq.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, num_sink_tokens,
        softmax_scale, softmax_scale * LOG2_E.value, HEAD_DIM=head_dim, **tiles,
    )  # fmt: skip
    return dq


def _sink_dkdv(q, k, v, dout, lse, delta, window_size, num_sink_tokens, softmax_scale):
    """Launch `_sink_dkdv_kernel`: what sink pairs give to dK and dV of the sinks, in fp32.

    A chunk has 256 queries, or 4 per sink if that is more: the sums of all chunks then have at most
    seqlen / 4 rows beside one row per sink, so that memory stays linear in seqlen.
    """
    batch, num_kv_heads, seqlen, head_dim = k.shape
    chunk_size = triton.cdiv(max(256, 4 * num_sink_tokens), 64) * 64
    num_chunks = triton.cdiv(max(seqlen - window_size, 0), chunk_size)
    shape = (num_chunks, batch, num_kv_heads, num_sink_tokens, head_dim)
    partial_dk = torch.empty(shape, dtype=torch.float32, device=k.device)
    partial_dv = torch.empty(shape, dtype=torch.float32, device=k.device)
    if num_sink_tokens > 0:
        descriptors = has_descriptors(q, dout)
        tiles = sink_window_tiles(q, window_size, num_sink_tokens, descriptors)["sink"]
        num_tiles = triton.cdiv(num_sink_tokens, tiles["BLOCK_N"])
        _sink_dkdv_kernel[(batch * num_kv_heads, num_tiles, num_chunks)](
            q, k, v, dout, lse, delta, partial_dk, partial_dv,
            q.stride()[:3], k.stride()[:3], v.stride()[:3], dout.stride()[:3],
            num_kv_heads, q.shape[1] // num_kv_heads, seqlen, window_size, num_sink_tokens,
            chunk_size, softmax_scale * LOG2_E.value,
            HEAD_DIM=head_dim, DESCRIPTORS=descriptors, **tiles,
        )  # fmt: skip
    return partial_dk.sum(0), partial_dv.sum(0)  # in fixed order: the same result in every run


def _dkdv(q, k, v, dout, lse, delta, sink_dk, sink_dv, window_size, num_sink_tokens, softmax_scale):
    """Launch `_dkdv_kernel`: dk and dv, dense, shape and dtype of k and v."""
    batch, num_kv_heads, seqlen, head_dim = k.shape
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    descriptors = has_descriptors(q, dout)
    tiles = sink_window_tiles(q, window_size, num_sink_tokens, descriptors)["dkdv"]
    _dkdv_kernel[(batch * num_kv_heads, triton.cdiv(seqlen, tiles["BLOCK_N"]))](
        q, k, v, dout, lse, delta, sink_dk, sink_dv, dk, dv,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], dout.stride()[:3], dk.stride()[:3],
        num_kv_heads, q.shape[1] // num_kv_heads, seqlen, window_size, num_sink_tokens,
        softmax_scale, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, DESCRIPTORS=descriptors, **tiles,
    )  # fmt: skip
    return dk, dv
