"""Causal grouped-query attention that can be trained: the backward pass in three Triton kernels.

What lies outside the marked steps is given and correct.
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
VARYING = ("num_q_heads", "num_kv_heads", "group_size")
LOG2_E = tl.constexpr(math.log2(math.e))
LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _load_tile(ptr, start, stride, seqlen, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Given: rows start to start + BLOCK of one head, zero past the end of the sequence."""
    rows = tl.arange(0, BLOCK)
    offsets = rows[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
    ptrs = ptr + tl.cast(start, tl.int64) * stride + offsets
    return tl.load(ptrs, mask=start + rows[:, None] < seqlen, other=0.0)  # (BLOCK, HEAD_DIM)


@triton.jit
def _rows(
    ptr, seqlen, stride, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, DESCRIPTORS: tl.constexpr
):
    """Given: where `_load_rows` finds the rows of one head: a pointer, or a descriptor of them."""
    if DESCRIPTORS:
        rows = tl.make_tensor_descriptor(
            ptr, [seqlen, HEAD_DIM], [tl.cast(stride, tl.int64), 1], [BLOCK, HEAD_DIM]
        )
    else:
        rows = ptr
    return rows


@triton.jit
def _load_rows(
    rows, start, stride, seqlen,
    BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Given: `_load_tile` of what `_rows` returned."""
    if DESCRIPTORS:
        tile = rows.load([start, 0])
    else:
        tile = _load_tile(rows, start, stride, seqlen, BLOCK, HEAD_DIM)
    return tile  # (BLOCK, HEAD_DIM)


@triton.jit
def _store_tile(ptr, start, stride, tile, seqlen, BLOCK: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Given: store a tile in the tensor's dtype, without the rows past the end."""
    rows = tl.arange(0, BLOCK)
    offsets = rows[:, None] * stride + tl.arange(0, HEAD_DIM)[None, :]
    ptrs = ptr + tl.cast(start, tl.int64) * stride + offsets
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=start + rows[:, None] < seqlen)


@triton.jit
def _forward_tiles(
    acc, running_max, running_sum, q, k_ptr, v_ptr, offs_m, begin, end,
    stride_kn, stride_vn, seqlen, scale_log2,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, IS_DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Given: fold the keys begin to end into the running state of one tile of queries."""
    rows = tl.arange(0, BLOCK_N)
    k_offs = rows[:, None] * stride_kn + tl.arange(0, HEAD_DIM)[None, :]
    v_offs = rows[:, None] * stride_vn + tl.arange(0, HEAD_DIM)[None, :]
    # Pointers that move from tile to tile take fewer registers than addresses made for each tile.
    k_ptr += tl.cast(begin, tl.int64) * stride_kn
    v_ptr += tl.cast(begin, tl.int64) * stride_vn
    for key_start in range(begin, end, BLOCK_N):
        offs_n = key_start + rows  # (BLOCK_N,)
        if IS_DIAGONAL:
            exists = offs_n[:, None] < seqlen  # (BLOCK_N, 1)
            k = tl.load(k_ptr + k_offs, mask=exists, other=0.0)  # (BLOCK_N, HEAD_DIM)
            v = tl.load(v_ptr + v_offs, mask=exists, other=0.0)  # (BLOCK_N, HEAD_DIM)
        else:
            k = tl.load(k_ptr + k_offs)  # (BLOCK_N, HEAD_DIM)
            v = tl.load(v_ptr + v_offs)  # (BLOCK_N, HEAD_DIM)
        k_ptr += BLOCK_N * stride_kn
        v_ptr += BLOCK_N * stride_vn
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        if IS_DIAGONAL:
            scores = tl.where(offs_n[None, :] <= offs_m[:, None], scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
        rescale = tl.exp2(running_max - new_max)  # (BLOCK_M,)
        p = tl.exp2(scores * scale_log2 - new_max[:, None])  # (BLOCK_M, BLOCK_N)
        running_sum = running_sum * rescale + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        running_max = new_max
    return acc, running_max, running_sum


@triton.jit(do_not_specialize=VARYING)
def _forward_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om,
    num_q_heads, group_size, seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Given: the forward pass of p05, one tile of queries of one head a program.

    Grid: (query heads of a section, query tiles, sections), the longest rows of a section first.
    BLOCK_N divides BLOCK_M.
    """
    batch_head = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    batch = (batch_head // num_q_heads).to(tl.int64)
    q_head = (batch_head % num_q_heads).to(tl.int64)
    kv_head = q_head // group_size
    query_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    q_ptr += batch * stride_qb + q_head * stride_qh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    out_ptr += batch * stride_ob + q_head * stride_oh
    lse_ptr += (batch * num_q_heads + q_head) * seqlen
    offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    q = _load_tile(q_ptr, query_start, stride_qm, seqlen, BLOCK_M, HEAD_DIM)

    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    acc, running_max, running_sum = _forward_tiles(
        acc, running_max, running_sum, q, k_ptr, v_ptr, offs_m, 0, query_start,
        stride_kn, stride_vn, seqlen, scale_log2, BLOCK_N, HEAD_DIM, False,
    )  # fmt: skip
    diagonal_end = tl.minimum(query_start + BLOCK_M, seqlen)
    acc, running_max, running_sum = _forward_tiles(
        acc, running_max, running_sum, q, k_ptr, v_ptr, offs_m, query_start, diagonal_end,
        stride_kn, stride_vn, seqlen, scale_log2, BLOCK_N, HEAD_DIM, True,
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
    """delta = rowsum(out * dout) in fp32, one tile of queries of one head a program.

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
    # >>> step 1: delta of one tile of queries (about 4 lines)
    out = _load_tile(out_ptr, query_start, stride_om, seqlen, BLOCK_M, HEAD_DIM)
    dout = _load_tile(dout_ptr, query_start, stride_dom, seqlen, BLOCK_M, HEAD_DIM)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)  # (BLOCK_M,)
    tl.store(delta_ptr + offs_m, delta, mask=offs_m < seqlen)
    # <<< step 1


@triton.jit
def _dkdv_tiles(
    dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, offs_n, begin, end,
    stride_qm, stride_dom, seqlen, scale_log2,
    BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Add what the queries begin to end of one head give to dK and dV of one tile of keys.

    Scores are held transposed, keys down and queries across: P^T and dS^T are then the left
    operands of their products and go from registers to the tensor cores.
    Every tile is masked, though only those on the diagonal need it: two loops would not leave the
    registers that one needs, and a branch would cost more than the mask.
    """
    q_rows = _rows(q_ptr, seqlen, stride_qm, BLOCK_M, HEAD_DIM, DESCRIPTORS)
    dout_rows = _rows(dout_ptr, seqlen, stride_dom, BLOCK_M, HEAD_DIM, DESCRIPTORS)
    # Moved out of the loop, what is the same in every round would take registers and spill others.
    for query_start in tl.range(begin, end, BLOCK_M, disable_licm=True):
        offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
        q = _load_rows(q_rows, query_start, stride_qm, seqlen, BLOCK_M, HEAD_DIM, DESCRIPTORS)
        dout = _load_rows(
            dout_rows, query_start, stride_dom, seqlen, BLOCK_M, HEAD_DIM, DESCRIPTORS
        )
        # A query past the end has lse = +inf: its probabilities are 0 and it adds nothing.
        lse = tl.load(lse_ptr + offs_m, mask=offs_m < seqlen, other=float("inf"))  # (BLOCK_M,)
        delta = tl.load(delta_ptr + offs_m, mask=offs_m < seqlen, other=0.0)  # (BLOCK_M,)
        # >>> step 2: transposed probabilities of one tile (about 3 lines)
        scores_t = tl.dot(k, tl.trans(q), input_precision="ieee")  # (BLOCK_N, BLOCK_M)
        # Scaled and shifted in one instruction; a mask in between would make it two.
        log2_p_t = scores_t * scale_log2 - lse[None, :] * LOG2_E
        p_t = tl.exp2(tl.where(offs_n[:, None] <= offs_m[None, :], log2_p_t, float("-inf")))
        # <<< step 2
        # >>> step 3: dV and dK of one tile (about 4 lines)
        dv = tl.dot(p_t.to(dout.dtype), dout, dv, input_precision="ieee")
        dp_t = tl.dot(v, tl.trans(dout), input_precision="ieee")  # (BLOCK_N, BLOCK_M)
        ds_t = p_t * (dp_t - delta[None, :])  # (BLOCK_N, BLOCK_M)
        dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision="ieee")
        # <<< step 3
    return dk, dv


@triton.jit(do_not_specialize=VARYING)
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    stride_dkb, stride_dkh, stride_dkn,
    num_kv_heads, group_size, seqlen, softmax_scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """dK and dV of BLOCK_N keys of one key/value head.

    Algorithm: hold the K and V tile; for each query head of the group walk the query tiles from
    these keys to the end of the sequence, the ones on the diagonal first. Each program is
    the only writer of its tile: the group is summed in registers, no atomics are needed, and the
    result does not depend on the order in which programs run.
    Grid: (kv heads of a section, key tiles, sections), the longest columns of a section first.
    Memory traffic: K, V, dK and dV once; Q and dout half a time per key tile.
    Limits: BLOCK_M divides BLOCK_N; last dimensions contiguous; dk and dv share their strides;
    for DESCRIPTORS see `_has_descriptors`.
    """
    batch_head = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    batch = (batch_head // num_kv_heads).to(tl.int64)
    kv_head = (batch_head % num_kv_heads).to(tl.int64)
    key_start = tl.program_id(1) * BLOCK_N
    q_ptr += batch * stride_qb
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    dout_ptr += batch * stride_dob
    lse_ptr += batch * num_kv_heads * group_size * seqlen
    delta_ptr += batch * num_kv_heads * group_size * seqlen
    dk_ptr += batch * stride_dkb + kv_head * stride_dkh
    dv_ptr += batch * stride_dkb + kv_head * stride_dkh
    offs_n = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    k = _load_tile(k_ptr, key_start, stride_kn, seqlen, BLOCK_N, HEAD_DIM)
    v = _load_tile(v_ptr, key_start, stride_vn, seqlen, BLOCK_N, HEAD_DIM)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    # >>> step 4: the query heads of the group and their query tiles (about 11 lines)
    for member in range(group_size):
        q_head = kv_head * group_size + member
        head_q_ptr = q_ptr + q_head * stride_qh
        head_dout_ptr = dout_ptr + q_head * stride_doh
        head_lse_ptr = lse_ptr + q_head * seqlen
        head_delta_ptr = delta_ptr + q_head * seqlen
        dk, dv = _dkdv_tiles(
            dk, dv, k, v, head_q_ptr, head_dout_ptr, head_lse_ptr, head_delta_ptr, offs_n,
            key_start, seqlen,
            stride_qm, stride_dom, seqlen, scale_log2, BLOCK_M, HEAD_DIM, DESCRIPTORS,
        )  # fmt: skip
    dk *= softmax_scale
    # <<< step 4
    _store_tile(dk_ptr, key_start, stride_dkn, dk, seqlen, BLOCK_N, HEAD_DIM)
    _store_tile(dv_ptr, key_start, stride_dkn, dv, seqlen, BLOCK_N, HEAD_DIM)


@triton.jit
def _dq_tiles(
    dq, q, dout, lse, delta, k_ptr, v_ptr, offs_m, begin, end,
    stride_kn, stride_vn, seqlen, scale_log2,
    BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr, IS_DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Add what the keys begin to end give to dQ of one tile of queries."""
    rows = tl.arange(0, BLOCK_N)
    k_offs = rows[:, None] * stride_kn + tl.arange(0, HEAD_DIM)[None, :]
    v_offs = rows[:, None] * stride_vn + tl.arange(0, HEAD_DIM)[None, :]
    k_ptr += tl.cast(begin, tl.int64) * stride_kn
    v_ptr += tl.cast(begin, tl.int64) * stride_vn
    for key_start in range(begin, end, BLOCK_N):
        offs_n = key_start + rows  # (BLOCK_N,)
        if IS_DIAGONAL:
            exists = offs_n[:, None] < seqlen  # (BLOCK_N, 1)
            k = tl.load(k_ptr + k_offs, mask=exists, other=0.0)  # (BLOCK_N, HEAD_DIM)
            v = tl.load(v_ptr + v_offs, mask=exists, other=0.0)  # (BLOCK_N, HEAD_DIM)
        else:
            k = tl.load(k_ptr + k_offs)  # (BLOCK_N, HEAD_DIM)
            v = tl.load(v_ptr + v_offs)  # (BLOCK_N, HEAD_DIM)
        k_ptr += BLOCK_N * stride_kn
        v_ptr += BLOCK_N * stride_vn
        # >>> step 5: dQ of one tile (about 7 lines)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2  # (BLOCK_M, BLOCK_N)
        if IS_DIAGONAL:
            scores = tl.where(offs_n[None, :] <= offs_m[:, None], scores, float("-inf"))
        p = tl.exp2(scores - lse[:, None] * LOG2_E)  # (BLOCK_M, BLOCK_N)
        dp = tl.dot(dout, tl.trans(v), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        ds = p * (dp - delta[:, None])  # (BLOCK_M, BLOCK_N)
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
        # <<< step 5
    return dq


@triton.jit(do_not_specialize=VARYING)
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    stride_dqb, stride_dqh, stride_dqm,
    num_q_heads, group_size, seqlen, softmax_scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """dQ of BLOCK_M query rows of one head.

    Algorithm: the walk of the forward pass, full key tiles and then those on the diagonal.
    Grid: (query heads of a section, query tiles, sections), the longest rows of a section first.
    Memory traffic: Q, dout and dQ once; K and V half a time per query tile.
    Limits: BLOCK_N divides BLOCK_M; last dimensions contiguous.
    """
    batch_head = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    batch = (batch_head // num_q_heads).to(tl.int64)
    q_head = (batch_head % num_q_heads).to(tl.int64)
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
    dq = _dq_tiles(
        dq, q, dout, lse, delta, k_ptr, v_ptr, offs_m, 0, query_start,
        stride_kn, stride_vn, seqlen, scale_log2, BLOCK_N, HEAD_DIM, False,
    )  # fmt: skip
    diagonal_end = tl.minimum(query_start + BLOCK_M, seqlen)
    dq = _dq_tiles(
        dq, q, dout, lse, delta, k_ptr, v_ptr, offs_m, query_start, diagonal_end,
        stride_kn, stride_vn, seqlen, scale_log2, BLOCK_N, HEAD_DIM, True,
    )  # fmt: skip
    # >>> step 6: scale and store dQ (about 2 lines)
    dq *= softmax_scale
    _store_tile(dq_ptr, query_start, stride_dqm, dq, seqlen, BLOCK_M, HEAD_DIM)
    # <<< step 6


class _GqaAttention(torch.autograd.Function):
    """Joins the kernels to autograd; what is kept for the backward pass holds no scores."""

    @staticmethod
    def forward(ctx, q, k, v, softmax_scale):
        out, lse = _launch_forward(q, k, v, softmax_scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.softmax_scale = softmax_scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        softmax_scale = ctx.softmax_scale
        if dout.stride(3) != 1:
            # The gradient of out.sum() is one number with stride 0 in every dimension.
            dout = dout.contiguous()
        # >>> step 7: the three launches, in order (about 4 lines)
        delta = _launch_delta(out, dout)
        dk, dv = _launch_dkdv(q, k, v, dout, lse, delta, softmax_scale)
        dq = _launch_dq(q, k, v, dout, lse, delta, softmax_scale)
        return dq, dk, dv, None
        # <<< step 7


def gqa_attention(q, k, v, *, softmax_scale=None):
    """Causal grouped-query attention that can be differentiated by q, k and v.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, any strides with the last
            dimension contiguous.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype of q, each with strides of its own;
            num_kv_heads divides num_q_heads.
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense. Its backward pass takes dout with any strides and gives
            dense dq, dk and dv, shape and dtype of q, k and v. It cannot be differentiated twice.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Dao et al., FlashAttention, arXiv:2205.14135, appendix B; Dao, FlashAttention-2,
    arXiv:2307.08691, algorithm 2; Ainslie et al., GQA, arXiv:2305.13245.
    """
    _check_arguments(q, k, v, softmax_scale)
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(q.shape[3])
    # >>> step 8: the differentiable call (about 1 line)
    return _GqaAttention.apply(q, k, v, float(softmax_scale))
    # <<< step 8


def _launch_forward(q, k, v, softmax_scale):
    """Given: out, dense, and lse (batch, num_q_heads, seqlen), fp32."""
    # The kernel scales the maximum in place of the scores, and so wants a scale above 0: the sign
    # moves to q, and a scale of 0 to a number that no score can make count (0 * -inf is NaN).
    if softmax_scale < 0:
        q, softmax_scale = -q, -softmax_scale
    softmax_scale = max(softmax_scale, 1e-30)
    batch, num_q_heads, seqlen, head_dim = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    config = _launch_config(q.shape[3], q.dtype, q.device)["forward"]
    grid = _grid_of_queries(q, k, config["BLOCK_M"])
    _forward_kernel[grid](
        q, k, v, out, lse,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, **config,
    )  # fmt: skip
    return out, lse


def _launch_delta(out, dout):
    """Given: delta (batch, num_q_heads, seqlen), fp32."""
    batch, num_q_heads, seqlen, head_dim = out.shape
    delta = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=out.device)
    config = _launch_config(out.shape[3], out.dtype, out.device)["delta"]
    grid = (batch * num_q_heads, triton.cdiv(seqlen, config["BLOCK_M"]))
    _delta_kernel[grid](
        out, dout, delta, *out.stride()[:3], *dout.stride()[:3],
        num_q_heads, seqlen, HEAD_DIM=head_dim, **config,
    )  # fmt: skip
    return delta


def _launch_dkdv(q, k, v, dout, lse, delta, softmax_scale):
    """Given: dk and dv, dense, shape and dtype of k and v."""
    batch, num_kv_heads, seqlen, head_dim = k.shape
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    descriptors = _has_descriptors(q, dout)
    num_keys = batch * num_kv_heads * seqlen
    config = _launch_config(q.shape[3], q.dtype, q.device, descriptors, num_keys)["dkdv"]
    if descriptors:
        triton.set_allocator(_descriptor_memory)
    num_heads, num_tiles = batch * num_kv_heads, triton.cdiv(seqlen, config["BLOCK_N"])
    group_bytes = 2 * (q.shape[1] // num_kv_heads) * seqlen * head_dim * q.element_size()
    section = _section_size(num_heads, group_bytes, num_tiles)
    grid = (section, num_tiles, num_heads // section)
    _dkdv_kernel[grid](
        q, k, v, dout, lse, delta, dk, dv,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3], *dk.stride()[:3],
        num_kv_heads, q.shape[1] // num_kv_heads, seqlen,
        softmax_scale, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, DESCRIPTORS=descriptors, **config,
    )  # fmt: skip
    return dk, dv


def _launch_dq(q, k, v, dout, lse, delta, softmax_scale):
    """Given: dq, dense, shape and dtype of q."""
    _, num_q_heads, seqlen, head_dim = q.shape
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    config = _launch_config(q.shape[3], q.dtype, q.device)["dq"]
    grid = _grid_of_queries(q, k, config["BLOCK_M"])
    _dq_kernel[grid](
        q, k, v, dout, lse, delta, dq,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3], *dq.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen,
        softmax_scale, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, **config,
    )  # fmt: skip
    return dq


def _grid_of_queries(q, k, block_m):
    """Given: the grid of a kernel with one program for each tile of queries of each query head."""
    batch, num_q_heads, seqlen, head_dim = q.shape
    num_kv_heads = k.shape[1]
    group_size = num_q_heads // num_kv_heads
    num_tiles = triton.cdiv(seqlen, block_m)
    section = group_size * _section_size(
        batch * num_kv_heads, 2 * seqlen * head_dim * k.element_size(), group_size * num_tiles
    )
    return section, num_tiles, batch * num_q_heads // section


def _section_size(num_heads, head_bytes, num_tiles):
    """Given: heads whose programs start together; the next section starts when these have.

    Given num_heads in all, head_bytes that the programs of one head read again and again, and
    num_tiles programs for each head. Few enough that what they read stays in L2 cache, 16 MiB of
    it; enough for 512 programs, so that no multiprocessor waits; then down to a divisor of
    num_heads.
    """
    size = max(16 * 2**20 // head_bytes, triton.cdiv(512, num_tiles), 1)
    if triton.knobs.runtime.interpret:
        size = 2  # so that in the interpreter small inputs have several sections as well
    size = min(size, num_heads)
    while num_heads % size != 0:
        size -= 1
    # 65535 is the most that a grid can have on axis 2.
    return size if num_heads // size < 65536 else num_heads


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


def _launch_config(head_dim, dtype, device, descriptors=False, num_keys=0):
    """Given: tile sizes, warps and pipeline stages of each kernel.

    dK and dV of 64 keys fill half the registers of 4 warps at head_dim 128; a tile of scores and
    one of dP with 64 queries fit beside them only where descriptors leave addresses out.
    """
    shared_bytes = 160 * 1024
    if device.type == "cuda":
        shared_bytes = torch.cuda.get_device_properties(device).shared_memory_per_block_optin
        if dtype == torch.float32:
            # IEEE dots run on the CUDA cores, operands in registers.
            shared_bytes = 0
    if shared_bytes >= 160 * 1024:
        forward_tile = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}
        dkdv_tile = {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
        dq_tile = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}
        if descriptors and num_keys >= 512 * 128:
            # Enough keys for 512 programs; with fewer, smaller tiles keep more of the GPU busy.
            dkdv_tile = {"BLOCK_M": 32, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3}
        if head_dim == 128:
            # Small enough that two programs share a multiprocessor.
            forward_tile = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}
            if descriptors:
                dkdv_tile = {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    elif shared_bytes >= 96 * 1024:
        # Compute capability 8.6, 8.9 and 12.0.
        forward_tile = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
        dkdv_tile = {"BLOCK_M": 32, "BLOCK_N": 64, "num_warps": 8, "num_stages": 2}
        dq_tile = {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 2}
    else:
        # fp32 anywhere, and fp16 on compute capability 7.5 with its 64 KiB.
        forward_tile = {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
        dkdv_tile = {"BLOCK_M": 16, "BLOCK_N": 32, "num_warps": 8, "num_stages": 1}
        dq_tile = {"BLOCK_M": 32, "BLOCK_N": 16, "num_warps": 8, "num_stages": 1}
    delta_tile = {"BLOCK_M": 64, "num_warps": 4}
    return {"forward": forward_tile, "delta": delta_tile, "dkdv": dkdv_tile, "dq": dq_tile}


def _check_arguments(q, k, v, softmax_scale):
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
    if softmax_scale is not None and not math.isfinite(softmax_scale):
        raise ValueError(f"softmax_scale: got {softmax_scale}, expected a finite number")
