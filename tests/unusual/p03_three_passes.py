"""No online softmax: one pass for the maximum, one for the sum, one for the output."""


@triton.jit
def _scores(
    q, k_ptr, key_start, stride_kn, seqlen_k, scale, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr
):
    keys = key_start + tl.arange(0, BLOCK_N)
    offs = keys[:, None] * stride_kn + tl.arange(0, HEAD_DIM)[None, :]
    k = tl.load(k_ptr + offs, mask=keys[:, None] < seqlen_k, other=0.0)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    return tl.where(keys[None, :] < seqlen_k, scores, float("-inf"))


@triton.jit
def _three_passes_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, seqlen_q, seqlen_k, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip  # fmt: skip
    batch, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head * stride_kh
    v_ptr += batch * stride_vb + head * stride_vh
    exists = rows[:, None] < seqlen_q
    q = tl.load(q_ptr + rows[:, None] * stride_qm + dims[None, :], mask=exists, other=0.0)
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    for key_start in range(0, seqlen_k, BLOCK_N):
        scores = _scores(q, k_ptr, key_start, stride_kn, seqlen_k, scale, HEAD_DIM, BLOCK_N)
        largest = tl.maximum(largest, tl.max(scores, 1))
    total = tl.zeros((BLOCK_M,), tl.float32)
    for key_start in range(0, seqlen_k, BLOCK_N):
        scores = _scores(q, k_ptr, key_start, stride_kn, seqlen_k, scale, HEAD_DIM, BLOCK_N)
        total += tl.sum(tl.exp(scores - largest[:, None]), 1)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for key_start in range(0, seqlen_k, BLOCK_N):
        scores = _scores(q, k_ptr, key_start, stride_kn, seqlen_k, scale, HEAD_DIM, BLOCK_N)
        p = tl.exp(scores - largest[:, None]) / total[:, None]
        keys = key_start + tl.arange(0, BLOCK_N)
        offs = keys[:, None] * stride_vn + dims[None, :]
        v = tl.load(v_ptr + offs, mask=keys[:, None] < seqlen_k, other=0.0)
        acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
    row_ids = (batch * tl.num_programs(1) + head) * seqlen_q + rows
    out_ptrs = out_ptr + row_ids[:, None] * HEAD_DIM + dims[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=exists)
    tl.store(lse_ptr + row_ids, largest + tl.log(total), mask=rows < seqlen_q)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _three_passes_kernel[(triton.cdiv(seqlen_q, 64), num_q_heads, batch)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        seqlen_q, k.shape[2], scale,
        HEAD_DIM=head_dim, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out, lse
