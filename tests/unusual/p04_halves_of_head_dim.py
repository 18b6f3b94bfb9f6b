"""head_dim in two halves: scores are the sum of two products, and out has two accumulators."""


@triton.jit
def _halves(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    HALF: tl.constexpr = D // 2 if D > 16 else D
    bh = tl.program_id(1).to(tl.int64)
    lo = tl.program_id(0) * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, HALF)
    Q += bh // H * sqb + bh % H * sqh
    K += bh // H * skb + bh % H * skh
    V += bh // H * svb + bh % H * svh
    inside = m[:, None] < N
    upper: tl.constexpr = D > HALF
    q0 = tl.load(Q + m[:, None] * sqm + d, inside, other=0.0)
    q1 = tl.load(Q + m[:, None] * sqm + HALF + d, inside & upper, other=0.0)
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc0 = tl.zeros([BM, HALF], tl.float32)
    acc1 = tl.zeros([BM, HALF], tl.float32)
    for start in range(0, tl.minimum(lo + BM, N), BN):
        n = start + tl.arange(0, BN)
        ok = n[:, None] < N
        k0 = tl.load(K + n[:, None] * skn + d, ok, other=0.0)
        s = tl.dot(q0, tl.trans(k0), input_precision="ieee")
        if upper:
            k1 = tl.load(K + n[:, None] * skn + HALF + d, ok, other=0.0)
            s = tl.dot(q1, tl.trans(k1), s, input_precision="ieee")
        s = tl.where(n[None, :] <= m[:, None], s * scale, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        fade = tl.exp2(top - now)
        den = den * fade + tl.sum(p, 1)
        v0 = tl.load(V + n[:, None] * svn + d, ok, other=0.0)
        acc0 = tl.dot(p.to(v0.dtype), v0, acc0 * fade[:, None], input_precision="ieee")
        if upper:
            v1 = tl.load(V + n[:, None] * svn + HALF + d, ok, other=0.0)
            acc1 = tl.dot(p.to(v1.dtype), v1, acc1 * fade[:, None], input_precision="ieee")
        top = now
    row = bh * N + m
    tl.store(
        OUT + row[:, None] * D + d, (acc0 / den[:, None]).to(OUT.dtype.element_ty), mask=inside
    )
    if upper:
        out1 = (acc1 / den[:, None]).to(OUT.dtype.element_ty)
        tl.store(OUT + row[:, None] * D + HALF + d, out1, mask=inside)
    tl.store(L + row, (top + tl.log2(den)) / 1.4426950408889634, mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    b, h, n, d = q.shape
    scale = 1.4426950408889634 * (d**-0.5 if softmax_scale is None else softmax_scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _halves[(triton.cdiv(n, 64), b * h)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], h, n, scale,
        D=d, BM=64, BN=32, num_stages=1,
    )  # fmt: skip
    return out, lse
