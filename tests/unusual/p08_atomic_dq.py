"""dQ is added up with atomics in fp32, one program for each tile of keys of each query head."""


@triton.jit
def _atomic_dq_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dq_ptr, stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom, num_q_heads, group_size, seqlen, softmax_scale, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip  # fmt: skip
    batch_head = tl.program_id(0).to(tl.int64)
    batch, q_head = batch_head // num_q_heads, batch_head % num_q_heads
    kv_head = q_head // group_size
    key_start = tl.program_id(1) * BLOCK
    keys = key_start + tl.arange(0, BLOCK)
    q_ptr += batch * stride_qb + q_head * stride_qh
    dout_ptr += batch * stride_dob + q_head * stride_doh
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    k = load_tile(k_ptr, key_start, stride_kn, seqlen, BLOCK, HEAD_DIM)
    v = load_tile(v_ptr, key_start, stride_vn, seqlen, BLOCK, HEAD_DIM)
    for query_start in range(key_start, seqlen, BLOCK):
        rows = query_start + tl.arange(0, BLOCK)
        exists = rows < seqlen
        q = load_tile(q_ptr, query_start, stride_qm, seqlen, BLOCK, HEAD_DIM)
        dout = load_tile(dout_ptr, query_start, stride_dom, seqlen, BLOCK, HEAD_DIM)
        row_ids = batch_head * seqlen + rows
        lse = tl.load(lse_ptr + row_ids, mask=exists, other=float("inf"))
        delta = tl.load(delta_ptr + row_ids, mask=exists, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        scores = tl.where(keys[None, :] <= rows[:, None], scores, float("-inf"))
        p = tl.exp2(scores - lse[:, None] * LOG2_E)
        ds = p * (tl.dot(dout, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, input_precision="ieee") * softmax_scale
        dq_ptrs = dq_ptr + row_ids[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
        tl.atomic_add(dq_ptrs, dq, mask=exists[:, None], sem="relaxed")


def _launch_dq(q, k, v, dout, lse, delta, softmax_scale):
    batch, num_q_heads, seqlen, head_dim = q.shape
    dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    _atomic_dq_kernel[(batch * num_q_heads, triton.cdiv(seqlen, 32))](
        q, k, v, dout, lse, delta, dq,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
        num_q_heads, num_q_heads // k.shape[1], seqlen,
        softmax_scale, softmax_scale * LOG2_E.value,
        HEAD_DIM=head_dim, BLOCK=32, num_warps=4,
    )  # fmt: skip
    return dq.to(q.dtype)
