"""Keys split among programs, as in flash-decoding; a second kernel combines the partial results."""

_NUM_SPLITS = 4


@triton.jit
def _split_kernel(
    q_ptr, k_ptr, v_ptr, partial_ptr, partial_lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    num_q_heads, seqlen_q, seqlen_k, keys_per_split, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    batch_head = tl.program_id(0).to(tl.int64)
    batch, head = batch_head // num_q_heads, batch_head % num_q_heads
    split = tl.program_id(2)
    rows = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    row_exists = rows < seqlen_q
    q_ptrs = q_ptr + batch * stride_qb + head * stride_qh + rows[:, None] * stride_qm + dims
    q = tl.load(q_ptrs, mask=row_exists[:, None], other=0.0)
    q = tl.where(scale_log2 < 0, -q, q)
    scale_log2 = tl.maximum(tl.abs(scale_log2), 1e-30)
    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    end = tl.minimum((split + 1) * keys_per_split, seqlen_k)
    for key_start in range(split * keys_per_split, end, BLOCK_N):
        keys = (key_start + tl.arange(0, BLOCK_N)).to(tl.int64)
        exists = keys < end
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
    # A split without keys has weight 0: its lse is -inf, its partial result 0.
    empty = running_sum == 0.0
    acc = acc / tl.where(empty, 1.0, running_sum)[:, None]
    lse = tl.where(empty, float("-inf"), running_max + tl.log2(tl.where(empty, 1.0, running_sum)))
    row_ids = (split * tl.num_programs(0) + batch_head) * seqlen_q + rows
    partial_ptrs = partial_ptr + row_ids[:, None] * HEAD_DIM + dims
    tl.store(partial_ptrs, acc, mask=row_exists[:, None])
    tl.store(partial_lse_ptr + row_ids, lse, mask=row_exists)


@triton.jit
def _combine_kernel(
    partial_ptr, partial_lse_ptr, out_ptr, lse_ptr, num_rows,
    HEAD_DIM: tl.constexpr, NUM_SPLITS: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    exists = rows < num_rows
    dims = tl.arange(0, HEAD_DIM)[None, :]
    # Split 0 always has keys: the maximum is finite from the first step on.
    largest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    for split in range(NUM_SPLITS):
        row_ids = split * num_rows + rows
        lse = tl.load(partial_lse_ptr + row_ids, mask=exists, other=0.0)
        partial = tl.load(
            partial_ptr + row_ids[:, None] * HEAD_DIM + dims, mask=exists[:, None], other=0.0
        )
        new_largest = tl.maximum(largest, lse)
        rescale = tl.exp2(largest - new_largest)
        weight = tl.exp2(lse - new_largest)
        acc = acc * rescale[:, None] + partial * weight[:, None]
        total = total * rescale + weight
        largest = new_largest
    out = acc / total[:, None]
    out_ptrs = out_ptr + rows[:, None] * HEAD_DIM + dims
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=exists[:, None])
    tl.store(lse_ptr + rows, (largest + tl.log2(total)) * LN_2, mask=exists)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    seqlen_k = k.shape[2]
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    num_heads, num_rows = batch * num_q_heads, batch * num_q_heads * seqlen_q
    partial = torch.empty((_NUM_SPLITS, num_rows, head_dim), device=q.device)
    partial_lse = torch.empty((_NUM_SPLITS, num_rows), device=q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], device=q.device)
    _split_kernel[(num_heads, triton.cdiv(seqlen_q, 64), _NUM_SPLITS)](
        q, k, v, partial, partial_lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        num_q_heads, seqlen_q, seqlen_k, triton.cdiv(seqlen_k, _NUM_SPLITS), scale * LOG2_E.value,
        HEAD_DIM=head_dim, BLOCK_M=64, BLOCK_N=32, num_warps=4,
    )  # fmt: skip
    _combine_kernel[(triton.cdiv(num_rows, 64),)](
        partial, partial_lse, out, lse, num_rows,
        HEAD_DIM=head_dim, NUM_SPLITS=_NUM_SPLITS, BLOCK_M=64,
    )  # fmt: skip
    return out, lse
