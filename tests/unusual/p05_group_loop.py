"""A program keeps no head: it goes through the query heads of a group, one after the other."""


@triton.jit
def _fold(q, k, v, hidden, top, den, acc, scale):
    s = tl.dot(q, k, input_precision="ieee") * scale
    s = tl.where(hidden, float("-inf"), s)
    now = tl.maximum(top, tl.max(s, 1))
    p = tl.exp2(s - now[:, None])
    fade = tl.exp2(top - now)
    return (
        now,
        den * fade + tl.sum(p, 1),
        acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee"),
    )


@triton.jit
def _looped(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, N, scale,
    HKV: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    tiles = tl.cdiv(N, BM)
    tile, kv = pid % tiles, pid // tiles
    b, hk = (kv // HKV).to(tl.int64), (kv % HKV).to(tl.int64)
    m = tile * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    for g in range(G):
        h = hk * G + g
        q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
        top = tl.full([BM], float("-inf"), tl.float32)
        den = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, D], tl.float32)
        k_ptrs = K + b * skb + hk * skh + tl.arange(0, BN)[None, :] * skn + d[:, None]
        v_ptrs = V + b * svb + hk * svh + tl.arange(0, BN)[:, None] * svn + d[None, :]
        for start in range(0, tl.minimum(tile * BM + BM, N), BN):
            n = start + tl.arange(0, BN)
            k = tl.load(k_ptrs, mask=n[None, :] < N, other=0.0)
            v = tl.load(v_ptrs, mask=n[:, None] < N, other=0.0)
            top, den, acc = _fold(q, k, v, n[None, :] > m[:, None], top, den, acc, scale)
            k_ptrs += BN * skn
            v_ptrs += BN * svn
        row = (b * HKV * G + h) * N + m
        out = (acc / den[:, None]).to(OUT.dtype.element_ty)
        tl.store(OUT + row[:, None] * D + d, out, mask=m[:, None] < N)
        tl.store(L + row, (top + tl.log2(den)) / 1.4426950408889634, mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    b, h, n, d = q.shape
    hkv = k.shape[1]
    scale = 1.4426950408889634 * (d**-0.5 if softmax_scale is None else softmax_scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _looped[(triton.cdiv(n, 128) * b * hkv,)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], n, scale,
        HKV=hkv, G=h // hkv, D=d, BM=128, BN=32, num_warps=8, num_stages=1,
    )  # fmt: skip
    return out, lse
