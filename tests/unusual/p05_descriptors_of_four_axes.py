"""Host descriptors of padded tensors of four axes; the first query behind a pointer."""

from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _attn_fwd(
    Q, K, V, sm_scale, M, Out, Start_q, Z, H, N_Q_CTX, N_KV_CTX, REPEAT,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BLOCK_N <= HEAD_DIM or BLOCK_N <= 64)
    start_q = tl.load(Start_q).to(tl.int32)
    start_m = tl.program_id(0)
    off_hz = tl.program_id(1)
    off_z = off_hz // H
    off_h = off_hz % H
    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    q = Q.load([off_z, off_h, start_m * BLOCK_M, 0]).reshape([BLOCK_M, HEAD_DIM])
    hi = start_q + (start_m + 1) * BLOCK_M
    for start_n in tl.range(0, tl.minimum(hi, N_KV_CTX), BLOCK_N):
        start_n = tl.multiple_of(start_n, BLOCK_N)
        mask = (start_n + offs_n)[None, :] > (start_q + offs_m)[:, None]
        k = K.load([off_z, off_h // REPEAT, start_n, 0]).reshape([BLOCK_N, HEAD_DIM]).T
        qk = tl.dot(q, k, allow_tf32=False)
        qk = qk * sm_scale + tl.where(mask, -1.0e6, 0.0)
        m_ij = tl.maximum(m_i, tl.max(qk, 1))
        qk -= m_ij[:, None]
        p = tl.math.exp(qk)
        alpha = tl.math.exp(m_i - m_ij)
        l_ij = tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = V.load([off_z, off_h // REPEAT, start_n, 0]).reshape([BLOCK_N, HEAD_DIM])
        acc = tl.dot(p.to(v.dtype), v, acc, allow_tf32=False)
        l_i = l_i * alpha + l_ij
        m_i = m_ij
    acc = acc / l_i[:, None]
    tl.store(M + off_hz * N_Q_CTX + offs_m, m_i + tl.math.log(l_i), mask=offs_m < N_Q_CTX)
    Out.store([off_z, off_h, start_m * BLOCK_M, 0], acc.to(Out.dtype)[None, None, :, :])


def _pad_to(t, block):
    n = t.shape[2]
    full = triton.cdiv(n, block) * block
    out = torch.zeros((t.shape[0], t.shape[1], full, t.shape[3]), dtype=t.dtype, device=t.device)
    out[:, :, :n, :] = t
    return out


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    bs, n_heads, n_ctx, d = q.shape
    n_kv = k.shape[1]
    BLOCK_M, BLOCK_N = 64, 16 if d == 16 else 32
    q, k, v = _pad_to(q, BLOCK_M), _pad_to(k, BLOCK_N), _pad_to(v, BLOCK_N)
    o = torch.empty_like(q)
    M = torch.empty((bs, n_heads, n_ctx), device=q.device, dtype=torch.float32)
    start_q = torch.zeros(1, dtype=torch.int32, device=q.device)
    grid = (triton.cdiv(n_ctx, BLOCK_M), bs * n_heads, 1)
    _attn_fwd[grid](
        TensorDescriptor.from_tensor(q, [1, 1, BLOCK_M, d]),
        TensorDescriptor.from_tensor(k, [1, 1, BLOCK_N, d]),
        TensorDescriptor.from_tensor(v, [1, 1, BLOCK_N, d]), default_scale(softmax_scale, d), M,
        TensorDescriptor.from_tensor(o, [1, 1, BLOCK_M, d]), start_q, bs, n_heads, N_Q_CTX=n_ctx,
        N_KV_CTX=n_ctx, REPEAT=n_heads // n_kv, HEAD_DIM=d, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
    )  # fmt: skip
    return o[:, :, :n_ctx, :].contiguous(), M
