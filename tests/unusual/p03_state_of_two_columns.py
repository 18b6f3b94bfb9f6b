"""Attention whose running state is one tile with two columns: maximum and sum."""

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _fade(state, top):
    m, den = tl.split(state)
    new = tl.maximum(m, top)
    return new, tl.exp2(m - new), den


@triton.jit
def _lse_rows(X, L, cols, sx, BN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    state = tl.join(tl.full([1], float("-inf"), tl.float32), tl.zeros([1], tl.float32))
    for c in range(0, cols, BN):
        n = c + tl.arange(0, BN)
        x = tl.load(X + row * sx + n, mask=n < cols, other=float("-inf")).to(tl.float32) * LOG2E
        x = x[None, :]
        new, f, den = _fade(state, tl.max(x, 1))
        state = tl.join(new, den * f + tl.sum(tl.exp2(x - new[:, None]), 1))
    m, den = tl.split(state)
    tl.store(L + row + tl.arange(0, 1), (m + tl.log2(den)) / LOG2E)


def row_logsumexp(x):
    lse = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    _lse_rows[(x.shape[0],)](x, lse, x.shape[1], x.stride(0), BN=64)
    return lse


@triton.jit
def _attn(
    Q, K, V, OUT, L, sqz, sqh, sqm, skz, skh, skn, svz, svh, svn, H, M, N, qk_scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    z = (tl.program_id(1) // H).to(tl.int64)
    h = (tl.program_id(1) % H).to(tl.int64)
    m_ids = tile * BM + tl.arange(0, BM)
    n_ids = tl.arange(0, BN)
    d = tl.arange(0, D)
    q = tl.load(
        Q + z * sqz + h * sqh + m_ids.to(tl.int64)[:, None] * sqm + d[None, :],
        mask=m_ids[:, None] < M,
        other=0.0,
    )
    kp = K + z * skz + h * skh + n_ids[None, :] * skn + d[:, None]
    vp = V + z * svz + h * svh + n_ids[:, None] * svn + d[None, :]
    state = tl.join(tl.full([BM], float("-inf"), tl.float32), tl.zeros([BM], tl.float32))
    acc = tl.zeros([BM, D], tl.float32)
    for start in tl.range(0, N, BN, num_stages=2):
        here = start + n_ids < N
        k = tl.load(kp, mask=here[None, :], other=0.0)
        v = tl.load(vp, mask=here[:, None], other=0.0)
        s = tl.dot(q, k, input_precision="ieee") * qk_scale
        s += tl.where(here, 0.0, float("-inf"))[None, :]
        new, f, den = _fade(state, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        acc = acc * f[:, None]
        acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
        state = tl.join(new, den * f + tl.sum(p, 1))
        kp += BN * skn
        vp += BN * svn
    m, den = tl.split(state)
    base = (z * H + h) * M
    tl.store(
        OUT + (base + m_ids)[:, None] * D + d[None, :],
        (acc / den[:, None]).to(OUT.dtype.element_ty),
        mask=m_ids[:, None] < M,
    )
    tl.store(L + base + m_ids, (m + tl.log2(den)) / LOG2E, mask=m_ids < M)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    B, H, M, D = q.shape
    N = k.shape[2]
    scale = default_scale(softmax_scale, D) * LOG2E.value
    o = torch.empty((B, H, M, D), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H, M), dtype=torch.float32, device=q.device)
    _attn[(triton.cdiv(M, 32), B * H)](
        q, k, v, o, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], H, M, N, scale, D=D,
        BM=32, BN=32, num_warps=4,
    )  # fmt: skip
    return o, lse
