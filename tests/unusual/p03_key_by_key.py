"""One key at a time for a tile of queries: products are sums and outer products, none is a dot."""


@triton.jit
def _key_by_key_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, q_strides, k_strides, v_strides, seqlen_q, seqlen_k,
    scale, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    batch, head = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    rows, dims = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEAD_DIM)
    q_ptr += batch * q_strides[0] + head * q_strides[1]
    k_ptr += batch * k_strides[0] + head * k_strides[1]
    v_ptr += batch * v_strides[0] + head * v_strides[1]
    exists = rows < seqlen_q
    offsets = rows[:, None] * q_strides[2] + dims[None, :]
    q = tl.load(q_ptr + offsets, mask=exists[:, None], other=0.0).to(tl.float32) * scale
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total, acc = tl.zeros((BLOCK_M,), tl.float32), tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for _ in range(seqlen_k):
        k, v = tl.load(k_ptr + dims).to(tl.float32), tl.load(v_ptr + dims).to(tl.float32)
        scores = tl.sum(q * k[None, :], 1)
        larger = tl.maximum(largest, scores)
        p, shrunk = tl.exp(scores - larger), tl.exp(largest - larger)
        acc = acc * shrunk[:, None] + p[:, None] * v[None, :]
        total = total * shrunk + p
        largest = larger
        k_ptr += k_strides[2]
        v_ptr += v_strides[2]
    row_ids = (batch * tl.num_programs(1) + head) * seqlen_q + rows
    out_ptrs = out_ptr + row_ids[:, None] * HEAD_DIM + dims[None, :]
    out = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptrs, out, mask=exists[:, None])
    tl.store(lse_ptr + row_ids, largest + tl.log(total), mask=exists)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _key_by_key_kernel[(triton.cdiv(seqlen_q, 64), num_q_heads, batch)](
        q, k, v, out, lse, q.stride()[:3], k.stride()[:3], v.stride()[:3], seqlen_q, k.shape[2],
        scale, HEAD_DIM=head_dim, BLOCK_M=64,
    )  # fmt: skip
    return out, lse
