"""Causal grouped-query attention that can be trained: its gradients in PyTorch, then in Triton.

What lies outside the marked steps is given and correct.
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

from given.arguments import check_attention, default_scale
from given.forward import gqa_forward
from given.launch import VARYING, backward_tiles, batch_and_head, grid_of_keys, grid_of_queries
from given.tiles import has_descriptors, head_rows, load_head_rows, load_keys, load_tile, store_tile
from given.units import LOG2_E

TILE = 128  # keys that `attention_gradients` takes at a time


def attention_gradients(q, k, v, out, lse, dout, *, softmax_scale=None):
    """Gradients of causal grouped-query attention in PyTorch, one tile of keys after the other.

    Args:
        q, k, v, softmax_scale: as for `gqa_attention`.
        out, lse: what its forward pass gives: out like q, lse (batch, num_q_heads, seqlen), fp32.
        dout: gradient of the loss with respect to out, shape and dtype of out.

    Returns:
        dq, dk, dv: shape and dtype of q, k and v.
    """
    check_attention(q, k, v, softmax_scale, grouped=True)
    scale, seqlen = default_scale(softmax_scale, q.shape[3]), q.shape[2]
    # The query heads of a group get a dimension of their own, of size 1 in K and V:
    # (batch, num_kv_heads, group_size, seqlen, head_dim), lse without head_dim.
    group_shape = (k.shape[1], q.shape[1] // k.shape[1])
    rows = [x.float().unflatten(1, group_shape) for x in (q, out, dout, lse)]
    keys, values = k.float()[:, :, None], v.float()[:, :, None]
    dq, dk, dv = (torch.zeros_like(x) for x in (rows[0], keys, values))
    positions = torch.arange(seqlen, device=q.device)
    for start in range(0, seqlen, TILE):
        end = min(start + TILE, seqlen)
        k_tile, v_tile = keys[..., start:end, :], values[..., start:end, :]
        # Queries before `start` see no key of the tile.
        q_tile, out_tile, dout_tile, lse_tile = (x[:, :, :, start:] for x in rows)
        hidden = positions[start:end] > positions[start:, None]  # (queries, keys of the tile)
        # >>> step 1: the gradients of one tile of keys, in PyTorch (about 8 lines)
        # After it: rows `start` to `end` of `dk` and `dv` are finished, summed over the query heads
        # of the group, which are dimension 2; what these keys give is added to `dq`. `p` comes from
        # the scores and `lse_tile`: a softmax would need all keys of a row.
        raise NotImplementedError(
            "p08 step 1: the gradients of one tile of keys, in PyTorch; see problems/p08/README.md"
        )
        # <<< step 1
    return dq.flatten(1, 2).to(q.dtype), dk[:, :, 0].to(k.dtype), dv[:, :, 0].to(v.dtype)


class _GqaAttention(torch.autograd.Function):
    """Joins the kernels to autograd; what is kept for the backward pass holds no scores."""

    @staticmethod
    def forward(ctx, q, k, v, softmax_scale):
        """Return out, and keep what `backward` reads."""
        # >>> step 2: the forward pass, and what it keeps (about 4 lines)
        # After it: `out` is returned, and `ctx` holds what `backward` reads from `ctx`, but nothing
        # of the size of the scores.
        # <<< step 2

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        if dout.stride(3) != 1:
            # The gradient of out.sum() is one number with stride 0 in every dimension.
            dout = dout.contiguous()
        delta = _launch_delta(out, dout)
        dq = _launch_dq(q, k, v, dout, lse, delta, ctx.softmax_scale)
        dk, dv = _launch_dkdv(q, k, v, dout, lse, delta, ctx.softmax_scale)
        return dq, dk, dv, None


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
    check_attention(q, k, v, softmax_scale, grouped=True)
    return _GqaAttention.apply(q, k, v, default_scale(softmax_scale, q.shape[3]))


@triton.jit(do_not_specialize=VARYING)
def _delta_kernel(
    out_ptr, dout_ptr, delta_ptr, out_strides, dout_strides, num_q_heads, seqlen,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """delta = rowsum(out * dout) in fp32 for BLOCK_M rows of one query head.

    Grid: (batch * num_q_heads, query tiles).
    Memory traffic: out and dout once; one fp32 number per row written.
    """
    batch = (tl.program_id(0) // num_q_heads).to(tl.int64)
    q_head = (tl.program_id(0) % num_q_heads).to(tl.int64)
    query_start = tl.program_id(1) * BLOCK_M
    out_ptr += batch * out_strides[0] + q_head * out_strides[1]
    dout_ptr += batch * dout_strides[0] + q_head * dout_strides[1]
    delta_ptr += (batch * num_q_heads + q_head) * seqlen
    queries = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    out = load_tile(out_ptr, query_start, out_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    dout = load_tile(dout_ptr, query_start, dout_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)  # (BLOCK_M,)
    tl.store(delta_ptr + queries, delta, mask=queries < seqlen)


@triton.jit
def _dq_tiles(
    dq, q, dout, lse, delta, k_ptr, v_ptr, stride_kn, stride_vn, queries, begin, end,
    seqlen, scale_log2, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, IS_DIAGONAL: tl.constexpr,
):  # fmt: skip
    """Add what the keys from begin to end give to dQ of one tile of queries."""
    rows = tl.arange(0, BLOCK_N)
    k_offs = rows[:, None] * stride_kn + tl.arange(0, HEAD_DIM)[None, :]  # (BLOCK_N, HEAD_DIM)
    v_offs = rows[:, None] * stride_vn + tl.arange(0, HEAD_DIM)[None, :]  # (BLOCK_N, HEAD_DIM)
    k_ptr += tl.cast(begin, tl.int64) * stride_kn
    v_ptr += tl.cast(begin, tl.int64) * stride_vn
    for key_start in range(begin, end, BLOCK_N):
        keys = key_start + rows  # (BLOCK_N,)
        k = load_keys(k_ptr + k_offs, keys, seqlen, not IS_DIAGONAL)
        v = load_keys(v_ptr + v_offs, keys, seqlen, not IS_DIAGONAL)
        k_ptr += BLOCK_N * stride_kn
        v_ptr += BLOCK_N * stride_vn
        # >>> step 3: dQ of one tile (about 7 lines)
        # After it: this tile's dS K, not yet scaled, is added to `dq`. With IS_DIAGONAL, keys after
        # the query are hidden. `lse` is a natural logarithm, while tl.exp2 wants one to base 2; the
        # operands of a dot have the same dtype.
        # <<< step 3
    return dq


@triton.jit(do_not_specialize=VARYING)
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr,
    q_strides, k_strides, v_strides, dout_strides, dq_strides,
    num_q_heads, group_size, seqlen, softmax_scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program computes dQ of BLOCK_M query rows of one query head.

    Algorithm: visit the key tiles of the forward pass: full tiles, then those on the diagonal.
    Grid: (query heads of an L2 group, query tiles, L2 groups), see `grid_of_queries`; longest rows
    first.
    Memory traffic: Q, dout and dQ once; on average half of K and V per query tile.
    Limits: BLOCK_N divides BLOCK_M; last dimensions contiguous.
    """
    batch, q_head = batch_and_head(num_q_heads)
    kv_head = q_head // group_size
    query_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    q_ptr += batch * q_strides[0] + q_head * q_strides[1]
    k_ptr += batch * k_strides[0] + kv_head * k_strides[1]
    v_ptr += batch * v_strides[0] + kv_head * v_strides[1]
    dout_ptr += batch * dout_strides[0] + q_head * dout_strides[1]
    lse_ptr += (batch * num_q_heads + q_head) * seqlen
    delta_ptr += (batch * num_q_heads + q_head) * seqlen
    dq_ptr += batch * dq_strides[0] + q_head * dq_strides[1]
    queries = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    q = load_tile(q_ptr, query_start, q_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    dout = load_tile(dout_ptr, query_start, dout_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    lse = tl.load(lse_ptr + queries, mask=queries < seqlen, other=float("inf"))  # (BLOCK_M,)
    delta = tl.load(delta_ptr + queries, mask=queries < seqlen, other=0.0)  # (BLOCK_M,)

    dq = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    dq = _dq_tiles(
        dq, q, dout, lse, delta, k_ptr, v_ptr, k_strides[2], v_strides[2], queries,
        0, query_start, seqlen, scale_log2, HEAD_DIM, BLOCK_N, False,
    )  # fmt: skip
    end_key = tl.minimum(query_start + BLOCK_M, seqlen)
    dq = _dq_tiles(
        dq, q, dout, lse, delta, k_ptr, v_ptr, k_strides[2], v_strides[2], queries,
        query_start, end_key, seqlen, scale_log2, HEAD_DIM, BLOCK_N, True,
    )  # fmt: skip
    dq *= softmax_scale
    store_tile(dq_ptr, query_start, dq_strides[2], dq, seqlen, BLOCK_M, HEAD_DIM)


@triton.jit
def _dkdv_tiles(
    dk, dv, k, v, q_ptr, dout_ptr, lse_ptr, delta_ptr, stride_qm, stride_dom, keys, begin, end,
    seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """Add what the queries from begin to end of one head give to dK and dV of one tile of keys.

    Scores are held transposed, keys down and queries across: P^T and dS^T are then the left
    operands of their products and go from registers to the tensor cores.
    """
    q_rows = head_rows(q_ptr, seqlen, stride_qm, BLOCK_M, HEAD_DIM, DESCRIPTORS)
    dout_rows = head_rows(dout_ptr, seqlen, stride_dom, BLOCK_M, HEAD_DIM, DESCRIPTORS)
    # disable_licm: loop-invariant values hoisted out of the loop would take registers.
    for query_start in tl.range(begin, end, BLOCK_M, disable_licm=True):
        queries = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
        q = load_head_rows(q_rows, query_start, stride_qm, seqlen, BLOCK_M, HEAD_DIM, DESCRIPTORS)
        dout = load_head_rows(
            dout_rows, query_start, stride_dom, seqlen, BLOCK_M, HEAD_DIM, DESCRIPTORS
        )
        # A query past the end has lse = +inf: its probabilities are 0 and it adds nothing.
        lse = tl.load(lse_ptr + queries, mask=queries < seqlen, other=float("inf"))  # (BLOCK_M,)
        delta = tl.load(delta_ptr + queries, mask=queries < seqlen, other=0.0)  # (BLOCK_M,)
        # >>> step 4: P transposed and dV of one tile (about 4 lines)
        # After it: `p_t` is P transposed, (BLOCK_N, BLOCK_M), fp32, 0 where a key comes after its
        # query; this tile's P^T dO is added to `dv`. Every tile is masked, without a branch.
        # <<< step 4
        # >>> step 5: dS transposed and dK of one tile (about 3 lines)
        # After it: this tile's dS^T Q, not yet scaled, is added to `dk`.
        # <<< step 5
    return dk, dv


@triton.jit(do_not_specialize=VARYING)
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    q_strides, k_strides, v_strides, dout_strides, dk_strides,
    num_kv_heads, group_size, seqlen, softmax_scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
):  # fmt: skip
    """One program computes dK and dV of BLOCK_N keys of one kv head.

    Algorithm: hold the K and V tile; for each query head of the group visit the query tiles from
    these keys to the end of the sequence. Each program is the only writer of its tile: the group is
    summed in registers, without atomics, and the result does not depend on the order of programs.
    Every tile is masked, though only those on the diagonal need it: two loops would need
    too many registers, and a branch would cost more than the mask.
    Grid: (kv heads of an L2 group, key tiles, L2 groups), see `grid_of_keys`; long columns first.
    Memory traffic: K, V, dK and dV once; on average half of Q and dout per key tile.
    Limits: BLOCK_M divides BLOCK_N; last dimensions contiguous; dk and dv share their strides;
    for DESCRIPTORS see `has_descriptors`.
    """
    batch, kv_head = batch_and_head(num_kv_heads)
    key_start = tl.program_id(1) * BLOCK_N
    q_ptr += batch * q_strides[0]
    k_ptr += batch * k_strides[0] + kv_head * k_strides[1]
    v_ptr += batch * v_strides[0] + kv_head * v_strides[1]
    dout_ptr += batch * dout_strides[0]
    lse_ptr += batch * num_kv_heads * group_size * seqlen
    delta_ptr += batch * num_kv_heads * group_size * seqlen
    dk_ptr += batch * dk_strides[0] + kv_head * dk_strides[1]
    dv_ptr += batch * dk_strides[0] + kv_head * dk_strides[1]
    keys = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    k = load_tile(k_ptr, key_start, k_strides[2], seqlen, BLOCK_N, HEAD_DIM)
    v = load_tile(v_ptr, key_start, v_strides[2], seqlen, BLOCK_N, HEAD_DIM)
    dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)
    for member in range(group_size):
        head_q_ptr, head_dout_ptr = q_ptr, dout_ptr  # until step 6, query head 0 alone
        head_lse_ptr, head_delta_ptr = lse_ptr, delta_ptr
        # >>> step 6: the query heads of the group (about 5 lines)
        # After it: the four `head_` pointers lead to the first row of query head `member` of the
        # group that shares `kv_head`; q_ptr and the others lead to query head 0 of the batch entry.
        # <<< step 6
        begin = 0  # until step 7, every query tile is visited
        # >>> step 7: where the visible queries begin (about 1 line)
        # After it: `begin` is the first query that sees one of the program's keys.
        # <<< step 7
        dk, dv = _dkdv_tiles(
            dk, dv, k, v, head_q_ptr, head_dout_ptr, head_lse_ptr, head_delta_ptr,
            q_strides[2], dout_strides[2], keys, begin, seqlen, seqlen, scale_log2,
            HEAD_DIM, BLOCK_M, DESCRIPTORS,
        )  # fmt: skip
    dk *= softmax_scale
    store_tile(dk_ptr, key_start, dk_strides[2], dk, seqlen, BLOCK_N, HEAD_DIM)
    store_tile(dv_ptr, key_start, dk_strides[2], dv, seqlen, BLOCK_N, HEAD_DIM)


def _launch_delta(out, dout):
    """Return delta (batch, num_q_heads, seqlen), fp32."""
    batch, num_q_heads, seqlen, head_dim = out.shape
    delta = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=out.device)
    _delta_kernel[(batch * num_q_heads, triton.cdiv(seqlen, 64))](
        out, dout, delta, out.stride()[:3], dout.stride()[:3], num_q_heads, seqlen,
        HEAD_DIM=head_dim, BLOCK_M=64, num_warps=4,
    )  # fmt: skip
    return delta


def _launch_dq(q, k, v, dout, lse, delta, softmax_scale):
    """Return dq, dense, shape and dtype of q."""
    _, num_q_heads, seqlen, head_dim = q.shape
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tiles = backward_tiles(q, k, descriptors=False)["dq"]
    _dq_kernel[grid_of_queries(q, k, tiles["BLOCK_M"])](
        q, k, v, dout, lse, delta, dq,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], dout.stride()[:3], dq.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen,
        softmax_scale, softmax_scale * LOG2_E.value, HEAD_DIM=head_dim, **tiles,
    )  # fmt: skip
    return dq


def _launch_dkdv(q, k, v, dout, lse, delta, softmax_scale):
    """Return dk and dv, dense, shape and dtype of k and v."""
    _, num_kv_heads, seqlen, head_dim = k.shape
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    descriptors = has_descriptors(q, dout)
    tiles = backward_tiles(q, k, descriptors=descriptors)["dkdv"]
    _dkdv_kernel[grid_of_keys(q, k, tiles["BLOCK_N"])](
        q, k, v, dout, lse, delta, dk, dv,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], dout.stride()[:3], dk.stride()[:3],
        num_kv_heads, q.shape[1] // num_kv_heads, seqlen,
        softmax_scale, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, DESCRIPTORS=descriptors, **tiles,
    )  # fmt: skip
    return dk, dv
