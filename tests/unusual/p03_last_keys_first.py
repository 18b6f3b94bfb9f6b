"""Key tiles from the last to the first, all of them masked; heads on the second grid axis."""


@triton.jit
def _backwards_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    num_q_heads, seqlen_q, seqlen_k, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    batch_head = tl.program_id(1).to(tl.int64)
    batch, head = batch_head // num_q_heads, batch_head % num_q_heads
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    row_exists = rows < seqlen_q
    q_ptrs = q_ptr + batch * stride_qb + head * stride_qh + rows[:, None] * stride_qm + dims
    q = tl.load(q_ptrs, mask=row_exists[:, None], other=0.0)
    q = tl.where(scale_log2 < 0, -q, q)
    scale_log2 = tl.maximum(tl.abs(scale_log2), 1e-30)
    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    num_tiles = tl.cdiv(seqlen_k, BLOCK_N)
    for done in range(0, num_tiles):
        keys = ((num_tiles - 1 - done) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
        exists = keys < seqlen_k
        k_ptrs = k_ptr + batch * stride_kb + head * stride_kh + keys[:, None] * stride_kn + dims
        v_ptrs = v_ptr + batch * stride_vb + head * stride_vh + keys[:, None] * stride_vn + dims
        k = tl.load(k_ptrs, mask=exists[:, None], other=0.0)
        v = tl.load(v_ptrs, mask=exists[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        scores = tl.where(exists[None, :], scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)
        rescale = tl.exp2(running_max - new_max)
        p = tl.exp2(scores * scale_log2 - new_max[:, None])
        running_sum = running_sum * rescale + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
        running_max = new_max
    out = acc / running_sum[:, None]
    row_ids = batch_head * seqlen_q + rows
    out_ptrs = out_ptr + row_ids[:, None] * HEAD_DIM + dims
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=row_exists[:, None])
    lse = (running_max + tl.log2(running_sum)) * LN_2
    tl.store(lse_ptr + row_ids, lse, mask=row_exists)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _backwards_kernel[(triton.cdiv(seqlen_q, 32), batch * num_q_heads)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        num_q_heads, seqlen_q, k.shape[2], scale * LOG2_E.value,
        HEAD_DIM=head_dim, BLOCK_M=32, BLOCK_N=32, num_warps=4,
    )  # fmt: skip
    return out, lse
