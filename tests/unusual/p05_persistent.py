"""Eight programs, each of which takes one tile of queries after the other, whatever the head."""


@triton.jit
def _persistent_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    batch, num_q_heads, num_kv_heads, seqlen, scale,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(seqlen, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)[None, :]
    for work in range(tl.program_id(0), batch * num_q_heads * tiles, tl.num_programs(0)):
        row_start = (work % tiles) * BLOCK_M
        head = ((work // tiles) % num_q_heads).to(tl.int64)
        entry = (work // (tiles * num_q_heads)).to(tl.int64)
        kv_head = head * num_kv_heads // num_q_heads
        rows = (row_start + tl.arange(0, BLOCK_M))[:, None]
        q_ptrs = q_ptr + entry * stride_qb + head * stride_qh + rows * stride_qm + dims
        q = tl.load(q_ptrs, mask=rows < seqlen, other=0.0)
        m = tl.full((BLOCK_M,), -1.0e30, tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
        for key_start in range(0, tl.minimum(row_start + BLOCK_M, seqlen), BLOCK_N):
            keys = key_start + tl.arange(0, BLOCK_N)
            exists = keys[:, None] < seqlen
            k_ptrs = k_ptr + entry * stride_kb + kv_head * stride_kh + keys[:, None] * stride_kn
            v_ptrs = v_ptr + entry * stride_vb + kv_head * stride_vh + keys[:, None] * stride_vn
            k = tl.load(k_ptrs + dims, mask=exists, other=0.0)
            v = tl.load(v_ptrs + dims, mask=exists, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            s = tl.where((keys[None, :] <= rows) & (keys[None, :] < seqlen), s, -1.0e6)
            m_new = tl.maximum(m, tl.max(s, 1))
            p = tl.exp(s - m_new[:, None])
            alpha = tl.exp(m - m_new)
            total = total * alpha + tl.sum(p, 1)
            acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
            m = m_new
        row_ids = (entry * num_q_heads + head) * seqlen + rows
        out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
        tl.store(out_ptr + row_ids * HEAD_DIM + dims, out, mask=rows < seqlen)
        tl.store(lse_ptr + row_ids, (m + tl.log(total))[:, None], mask=rows < seqlen)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    batch, num_q_heads, seqlen, head_dim = q.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _persistent_kernel[(8,)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        batch, num_q_heads, k.shape[1], seqlen, scale,
        HEAD_DIM=head_dim, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out, lse
