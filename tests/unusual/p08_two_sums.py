"""dQ is the difference of two sums, P * dP times k and P times delta * k, in one loop."""


@triton.jit
def _rows(x_ptr, start, stride, length, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr):
    ids = start + tl.arange(0, ROWS)
    at = ids[:, None].to(tl.int64) * stride + tl.arange(0, HEAD_DIM)[None, :]
    return tl.load(x_ptr + at, mask=(ids < length)[:, None], other=0.0)


@triton.jit
def _two_sums_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr,
    q_strides, k_strides, v_strides, dout_strides,
    num_q_heads, group_size, seqlen, scale,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tile, head, batch = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    batch = batch.to(tl.int64)
    q_ptr += batch * q_strides[0] + head * q_strides[1]
    k_ptr += batch * k_strides[0] + head // group_size * k_strides[1]
    v_ptr += batch * v_strides[0] + head // group_size * v_strides[1]
    dout_ptr += batch * dout_strides[0] + head * dout_strides[1]
    first_row = (batch * num_q_heads + head) * seqlen
    start = tile * BLOCK
    rows = start + tl.arange(0, BLOCK)
    q = _rows(q_ptr, start, q_strides[2], seqlen, BLOCK, HEAD_DIM)
    dout = _rows(dout_ptr, start, dout_strides[2], seqlen, BLOCK, HEAD_DIM)
    lse = tl.load(lse_ptr + first_row + rows, mask=rows < seqlen, other=0.0)
    delta = tl.load(delta_ptr + first_row + rows, mask=rows < seqlen, other=0.0)
    of_dp = tl.zeros([BLOCK, HEAD_DIM], tl.float32)
    of_p = tl.zeros([BLOCK, HEAD_DIM], tl.float32)
    key_start = 0
    while key_start < tl.minimum(start + BLOCK, seqlen):
        keys = key_start + tl.arange(0, BLOCK)
        k = _rows(k_ptr, key_start, k_strides[2], seqlen, BLOCK, HEAD_DIM)
        v = _rows(v_ptr, key_start, v_strides[2], seqlen, BLOCK, HEAD_DIM)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where(keys[None, :] <= rows[:, None], tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(dout, tl.trans(v), input_precision="ieee")
        of_dp += tl.dot(p * dp, k.to(tl.float32), input_precision="ieee")
        of_p += tl.dot(p, k.to(tl.float32), input_precision="ieee")
        key_start += BLOCK
    dq = (of_dp - delta[:, None] * of_p) * scale
    at = (first_row + rows)[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(dq_ptr + at, dq.to(dq_ptr.dtype.element_ty), mask=(rows < seqlen)[:, None])


def _launch_dq(q, k, v, dout, lse, delta, softmax_scale):
    batch, num_q_heads, seqlen, head_dim = q.shape
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _two_sums_kernel[(triton.cdiv(seqlen, 32), num_q_heads, batch)](
        q, k, v, dout, lse, delta, dq,
        q.stride()[:3], k.stride()[:3], v.stride()[:3], dout.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen, softmax_scale,
        HEAD_DIM=head_dim, BLOCK=32, num_warps=4, num_stages=1,
    )  # fmt: skip
    return dq
