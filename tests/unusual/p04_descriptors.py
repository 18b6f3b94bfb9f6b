"""Tiles loaded and stored through tensor descriptors, which mask by themselves what is outside."""


@triton.jit
def _descriptor_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    num_q_heads, seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    batch_head = tl.program_id(0).to(tl.int64)
    batch, head = batch_head // num_q_heads, batch_head % num_q_heads
    query_start = tl.program_id(1) * BLOCK_M
    rows = query_start + tl.arange(0, BLOCK_M)
    q_tiles = tl.make_tensor_descriptor(
        q_ptr + batch * stride_qb + head * stride_qh,
        [seqlen, HEAD_DIM], [stride_qm, 1], [BLOCK_M, HEAD_DIM],
    )  # fmt: skip
    k_tiles = tl.make_tensor_descriptor(
        k_ptr + batch * stride_kb + head * stride_kh,
        [seqlen, HEAD_DIM], [stride_kn, 1], [BLOCK_N, HEAD_DIM],
    )  # fmt: skip
    v_tiles = tl.make_tensor_descriptor(
        v_ptr + batch * stride_vb + head * stride_vh,
        [seqlen, HEAD_DIM], [stride_vn, 1], [BLOCK_N, HEAD_DIM],
    )  # fmt: skip
    out_tiles = tl.make_tensor_descriptor(
        out_ptr + batch_head * seqlen * HEAD_DIM,
        [seqlen, HEAD_DIM], [HEAD_DIM, 1], [BLOCK_M, HEAD_DIM],
    )  # fmt: skip
    q = q_tiles.load([query_start, 0])
    q = tl.where(scale_log2 < 0, -q, q)
    scale_log2 = tl.maximum(tl.abs(scale_log2), 1e-30)
    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for key_start in range(0, tl.minimum(query_start + BLOCK_M, seqlen), BLOCK_N):
        k = k_tiles.load([key_start, 0])
        v = v_tiles.load([key_start, 0])
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        visible = (key_start + tl.arange(0, BLOCK_N))[None, :] <= rows[:, None]
        scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)
        running_sum, acc = add_tile(scores, v, running_max, new_max, running_sum, acc, scale_log2)
        running_max = new_max
    out = acc / running_sum[:, None]
    out_tiles.store([query_start, 0], out.to(out_ptr.dtype.element_ty))
    lse = (running_max + tl.log2(running_sum)) * LN_2
    tl.store(lse_ptr + batch_head * seqlen + rows, lse, mask=rows < seqlen)


def _allocate(size, alignment, stream):
    return torch.empty(size, device="cuda", dtype=torch.int8)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    batch, num_q_heads, seqlen, head_dim = q.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    triton.set_allocator(_allocate)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _descriptor_kernel[(batch * num_q_heads, triton.cdiv(seqlen, 32))](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        num_q_heads, seqlen, scale * LOG2_E.value,
        HEAD_DIM=head_dim, BLOCK_M=32, BLOCK_N=32, num_warps=4,
    )  # fmt: skip
    return out, lse
