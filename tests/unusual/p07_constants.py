"""Window, sinks and length are constants of the kernel; a loop for the sinks, one for the rest."""


@triton.jit
def _fold(
    q, k_ptr, v_ptr, rows, keys, first, stride_kn, stride_vn, m, total, acc, scale,
    SEQLEN: tl.constexpr, WINDOW: tl.constexpr, SINKS: tl.constexpr, HEAD_DIM: tl.constexpr,
    IS_SINK: tl.constexpr,
):  # fmt: skip
    dims = tl.arange(0, HEAD_DIM)[None, :]
    exists = keys[:, None] < SEQLEN
    k = tl.load(k_ptr + keys[:, None] * stride_kn + dims, mask=exists, other=0.0)
    v = tl.load(v_ptr + keys[:, None] * stride_vn + dims, mask=exists, other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    in_window = keys[None, :] > rows[:, None] - WINDOW
    if IS_SINK:  # those at or behind `first` come with the window
        visible = (keys[None, :] < SINKS) & (keys[None, :] < first)
    else:
        visible = in_window | (keys[None, :] < SINKS)
    visible = visible & (keys[None, :] <= rows[:, None])
    s = tl.where(visible, s, -1.0e9)
    m_new = tl.maximum(m, tl.max(s, 1))
    p = tl.where(visible, tl.exp(s - m_new[:, None]), 0.0)
    alpha = tl.exp(m - m_new)
    acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
    return m_new, total * alpha + tl.sum(p, 1), acc


@triton.jit
def _constants_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr, stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn, stride_vb, stride_vh, stride_vn, scale,
    NUM_Q_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr, SEQLEN: tl.constexpr,
    WINDOW: tl.constexpr, SINKS: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip  # fmt: skip
    batch = (tl.program_id(1) // NUM_Q_HEADS).to(tl.int64)
    head = (tl.program_id(1) % NUM_Q_HEADS).to(tl.int64)
    row_start = tl.program_id(0) * BLOCK_M
    rows = row_start + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)[None, :]
    exists = rows[:, None] < SEQLEN
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head // GROUP_SIZE * stride_kh
    v_ptr += batch * stride_vb + head // GROUP_SIZE * stride_vh
    q = tl.load(q_ptr + rows[:, None] * stride_qm + dims, mask=exists, other=0.0)
    m = tl.full((BLOCK_M,), -1.0e9, tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    first = tl.maximum(row_start - WINDOW + 1, 0)
    for key_start in range(0, tl.minimum(SINKS, first), BLOCK_N):
        keys = key_start + tl.arange(0, BLOCK_N)
        m, total, acc = _fold(
            q, k_ptr, v_ptr, rows, keys, first, stride_kn, stride_vn, m, total, acc, scale,
            SEQLEN, WINDOW, SINKS, HEAD_DIM, True,
        )  # fmt: skip
    for key_start in range(first, tl.minimum(row_start + BLOCK_M, SEQLEN), BLOCK_N):
        keys = key_start + tl.arange(0, BLOCK_N)
        m, total, acc = _fold(
            q, k_ptr, v_ptr, rows, keys, first, stride_kn, stride_vn, m, total, acc, scale,
            SEQLEN, WINDOW, SINKS, HEAD_DIM, False,
        )  # fmt: skip
    row_ids = tl.program_id(1).to(tl.int64) * SEQLEN + rows
    out = (acc / (total + 1e-6)[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row_ids[:, None] * HEAD_DIM + dims, out, mask=exists)
    tl.store(lse_ptr + row_ids, m + tl.log(total), mask=rows < SEQLEN)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    batch, num_q_heads, seqlen, head_dim = q.shape
    scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    _constants_kernel[(triton.cdiv(seqlen, 64), batch * num_q_heads)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], scale,
        num_q_heads, num_q_heads // k.shape[1], seqlen,
        min(window_size, seqlen), min(num_sink_tokens, seqlen),
        HEAD_DIM=head_dim, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out, lse
