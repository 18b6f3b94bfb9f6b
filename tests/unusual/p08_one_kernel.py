"""dQ, dK and dV in one kernel, one program for each tile of keys of each query head: atomics."""


@triton.jit
def _all_gradients_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    num_q_heads, group_size, seqlen, scale,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch_head = tl.program_id(1).to(tl.int64)
    batch, q_head = batch_head // num_q_heads, batch_head % num_q_heads
    kv_head = q_head // group_size
    key_start = tl.program_id(0) * BLOCK
    keys = key_start + tl.arange(0, BLOCK)
    dims = tl.arange(0, HEAD_DIM)[None, :]
    q_ptr += batch * stride_qb + q_head * stride_qh
    dout_ptr += batch * stride_dob + q_head * stride_doh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    k = load_tile(k_ptr, key_start, stride_kn, seqlen, BLOCK, HEAD_DIM)
    v = load_tile(v_ptr, key_start, stride_vn, seqlen, BLOCK, HEAD_DIM)
    dk = tl.zeros((BLOCK, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK, HEAD_DIM), tl.float32)
    for query_start in range(key_start, seqlen, BLOCK):
        rows = query_start + tl.arange(0, BLOCK)
        q = load_tile(q_ptr, query_start, stride_qm, seqlen, BLOCK, HEAD_DIM)
        dout = load_tile(dout_ptr, query_start, stride_dom, seqlen, BLOCK, HEAD_DIM)
        row_ids = batch_head * seqlen + rows
        lse = tl.load(lse_ptr + row_ids, mask=rows < seqlen, other=0.0)
        delta = tl.load(delta_ptr + row_ids, mask=rows < seqlen, other=0.0)
        p = tl.exp(tl.dot(q, tl.trans(k), input_precision="ieee") * scale - lse[:, None])
        p = tl.where((keys[None, :] <= rows[:, None]) & (rows[:, None] < seqlen), p, 0.0)
        dp = tl.dot(dout, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None]) * scale
        dv += tl.dot(tl.trans(p.to(dout.dtype)), dout, input_precision="ieee")
        dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")
        dq = tl.dot(ds.to(k.dtype), k, input_precision="ieee")
        dq_ptrs = dq_ptr + row_ids[:, None] * HEAD_DIM + dims
        tl.atomic_add(dq_ptrs, dq, mask=rows[:, None] < seqlen, sem="relaxed")
    row_ids = (batch * (num_q_heads // group_size) + kv_head) * seqlen + keys
    offs = row_ids[:, None] * HEAD_DIM + dims
    tl.atomic_add(dk_ptr + offs, dk, mask=keys[:, None] < seqlen, sem="relaxed")
    tl.atomic_add(dv_ptr + offs, dv, mask=keys[:, None] < seqlen, sem="relaxed")


class _GqaAttention(torch.autograd.Function):
    """The kernels joined to autograd, delta in PyTorch."""

    @staticmethod
    def forward(ctx, q, k, v, softmax_scale):
        out, lse = gqa_forward(q, k, v, softmax_scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.softmax_scale = softmax_scale
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        if dout.stride(3) != 1:
            dout = dout.contiguous()
        delta = (out.float() * dout.float()).sum(-1)
        dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32).contiguous() for x in (q, k, v))
        batch, num_q_heads, seqlen, head_dim = q.shape
        _all_gradients_kernel[(triton.cdiv(seqlen, 32), batch * num_q_heads)](
            q, k, v, dout, lse, delta, dq, dk, dv,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
            num_q_heads, num_q_heads // k.shape[1], seqlen, ctx.softmax_scale,
            HEAD_DIM=head_dim, BLOCK=32, num_warps=4, num_stages=1,
        )  # fmt: skip
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), None
