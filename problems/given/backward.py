"""What p08 taught of the backward pass, for the problem after it. Opens with p09."""

import torch
import triton
import triton.language as tl

from given.launch import VARYING
from given.tiles import load_tile

_BLOCK_M = 64


@triton.jit
def add_to_dq(dq, p, dout, delta, k, v):
    """Return dq with what one tile of keys gives to it, not yet times softmax_scale.

    Args:
        dq: (BLOCK_M, HEAD_DIM), fp32.
        p: (BLOCK_M, BLOCK_N), the probabilities, 0 where a key is not visible.
        dout: (BLOCK_M, HEAD_DIM), delta: (BLOCK_M,).
        k, v: (BLOCK_N, HEAD_DIM).
    """
    dp = tl.dot(dout, tl.trans(v), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
    ds = p * (dp - delta[:, None])  # (BLOCK_M, BLOCK_N)
    return tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")


@triton.jit
def add_to_dkdv(dk, dv, p_t, q, dout, delta, v):
    """Return dk and dv with what one tile of queries gives, dk not yet times softmax_scale.

    Args:
        dk, dv: (BLOCK_N, HEAD_DIM), fp32.
        p_t: (BLOCK_N, BLOCK_M), the probabilities transposed, 0 where a key is not visible.
        q, dout: (BLOCK_M, HEAD_DIM), delta: (BLOCK_M,).
        v: (BLOCK_N, HEAD_DIM).
    """
    dv = tl.dot(p_t.to(dout.dtype), dout, dv, input_precision="ieee")
    dp_t = tl.dot(v, tl.trans(dout), input_precision="ieee")  # (BLOCK_N, BLOCK_M)
    ds_t = p_t * (dp_t - delta[None, :])  # (BLOCK_N, BLOCK_M)
    dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


def row_delta(out, dout):
    """Return delta = rowsum(out * dout), (batch, num_q_heads, seqlen), fp32.

    Args:
        out, dout: (batch, num_q_heads, seqlen, head_dim), last dimension contiguous.
    """
    batch, num_q_heads, seqlen, head_dim = out.shape
    delta = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=out.device)
    _delta_kernel[(batch * num_q_heads, triton.cdiv(seqlen, _BLOCK_M))](
        out, dout, delta, out.stride()[:3], dout.stride()[:3], num_q_heads, seqlen,
        HEAD_DIM=head_dim, BLOCK_M=_BLOCK_M, num_warps=4,
    )  # fmt: skip
    return delta


@triton.jit(do_not_specialize=VARYING)
def _delta_kernel(
    out_ptr, dout_ptr, delta_ptr, out_strides, dout_strides, num_q_heads, seqlen,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """One program sums up BLOCK_M rows of one head.

    Grid: (batch * num_q_heads, query tiles).
    Memory traffic: out and dout once; one fp32 number per row written.
    """
    batch = (tl.program_id(0) // num_q_heads).to(tl.int64)
    q_head = (tl.program_id(0) % num_q_heads).to(tl.int64)
    query_start = tl.program_id(1) * BLOCK_M
    out_ptr += batch * out_strides[0] + q_head * out_strides[1]
    dout_ptr += batch * dout_strides[0] + q_head * dout_strides[1]
    delta_ptr += (batch * num_q_heads + q_head) * seqlen
    offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    out = load_tile(out_ptr, query_start, out_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    dout = load_tile(dout_ptr, query_start, dout_strides[2], seqlen, BLOCK_M, HEAD_DIM)
    delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)  # (BLOCK_M,)
    tl.store(delta_ptr + offs_m, delta, mask=offs_m < seqlen)
