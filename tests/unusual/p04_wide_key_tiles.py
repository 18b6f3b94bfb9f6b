"""Tiles of 32 queries by 128 keys; finite masks, heuristics, and tiles swizzled over the grid."""


@triton.heuristics({"EVEN": lambda args: args["N"] % args["BN"] == 0})
@triton.jit
def _wide(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    tile, bh = tl.swizzle2d(
        tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1), 2
    )
    bh = bh.to(tl.int64)
    start_m = tile * BM
    m = start_m + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + bh // H * sqb + bh % H * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    q = (q * scale).to(q.dtype) if q.dtype == tl.float32 else q
    factor = 1.0 if q.dtype == tl.float32 else scale
    K += bh // H * skb + bh % H * skh
    V += bh // H * svb + bh % H * svh
    top = tl.full([BM], -1.0e30, tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for i in range(0, start_m // BN + 1):
        n = i * BN + tl.arange(0, BN)
        if EVEN:
            k = tl.load(K + n[None, :] * skn + d[:, None])
            v = tl.load(V + n[:, None] * svn + d[None, :])
        else:
            k = tl.load(K + n[None, :] * skn + d[:, None], mask=n[None, :] < N, other=0.0)
            v = tl.load(V + n[:, None] * svn + d[None, :], mask=n[:, None] < N, other=0.0)
        s = tl.dot(q, k, input_precision="ieee") * factor
        s = tl.where(n[None, :] > m[:, None], -1.0e30, s)
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        fade = tl.exp(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = now
    row = bh * N + m
    out = acc * (1 / den)[:, None]
    tl.store(OUT + row[:, None] * D + d[None, :], out.to(OUT.dtype.element_ty), mask=m[:, None] < N)
    tl.store(L + row, top + tl.log(den), mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _wide[lambda meta: (triton.cdiv(n, meta["BM"]), b * h)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], h, n,
        d**-0.5 if softmax_scale is None else softmax_scale,
        D=d, BM=32, BN=128, num_warps=8, num_stages=1,
    )  # fmt: skip
    return out, lse
