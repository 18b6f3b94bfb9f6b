"""Tiles through block pointers, which Triton had up to 3.8."""


@triton.jit
def _block_pointer_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    num_q_heads, seqlen_q, seqlen_k, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    batch_head = tl.program_id(1).to(tl.int64)
    batch, head = batch_head // num_q_heads, batch_head % num_q_heads
    query_start = tl.program_id(0) * BLOCK_M
    q_tiles = tl.make_block_ptr(
        q_ptr + batch * stride_qb + head * stride_qh,
        (seqlen_q, HEAD_DIM), (stride_qm, 1), (query_start, 0), (BLOCK_M, HEAD_DIM), (1, 0),
    )  # fmt: skip
    k_tiles = tl.make_block_ptr(  # transposed: keys are columns
        k_ptr + batch * stride_kb + head * stride_kh,
        (HEAD_DIM, seqlen_k), (1, stride_kn), (0, 0), (HEAD_DIM, BLOCK_N), (0, 1),
    )  # fmt: skip
    v_tiles = tl.make_block_ptr(
        v_ptr + batch * stride_vb + head * stride_vh,
        (seqlen_k, HEAD_DIM), (stride_vn, 1), (0, 0), (BLOCK_N, HEAD_DIM), (1, 0),
    )  # fmt: skip
    out_tiles = tl.make_block_ptr(
        out_ptr + batch_head * seqlen_q * HEAD_DIM,
        (seqlen_q, HEAD_DIM), (HEAD_DIM, 1), (query_start, 0), (BLOCK_M, HEAD_DIM), (1, 0),
    )  # fmt: skip
    q = tl.load(q_tiles, boundary_check=(0,), padding_option="zero")
    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for key_start in range(0, seqlen_k, BLOCK_N):
        k = tl.load(k_tiles, boundary_check=(1,), padding_option="zero")
        v = tl.load(v_tiles, boundary_check=(0,), padding_option="zero")
        scores = tl.dot(q, k, input_precision="ieee") * scale_log2
        exists = key_start + tl.arange(0, BLOCK_N) < seqlen_k
        scores = tl.where(exists[None, :], scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1))
        rescale = tl.exp2(running_max - new_max)
        p = tl.exp2(scores - new_max[:, None])
        running_sum = running_sum * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        running_max = new_max
        k_tiles = tl.advance(k_tiles, (0, BLOCK_N))
        v_tiles = tl.advance(v_tiles, (BLOCK_N, 0))
    out = acc / running_sum[:, None]
    tl.store(out_tiles, out.to(out_ptr.dtype.element_ty), boundary_check=(0,))
    rows = query_start + tl.arange(0, BLOCK_M)
    lse = (running_max + tl.log2(running_sum)) * LN_2
    tl.store(lse_ptr + batch_head * seqlen_q + rows, lse, mask=rows < seqlen_q)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _block_pointer_kernel[(triton.cdiv(seqlen_q, 64), batch * num_q_heads)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        num_q_heads, seqlen_q, k.shape[2], scale * LOG2_E.value,
        HEAD_DIM=head_dim, BLOCK_M=64, BLOCK_N=32, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out, lse
