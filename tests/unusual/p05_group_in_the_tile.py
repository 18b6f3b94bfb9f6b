"""The query heads of a group share a tile: row r is position r // group of head r % group."""


@triton.jit
def _packed(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, HKV, G, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    kv = tl.program_id(1).to(tl.int64)
    b, hk = kv // HKV, kv % HKV
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    m = r // G
    h = hk * G + r % G
    d = tl.arange(0, D)
    ok = (m < N)[:, None]
    q = tl.load(Q + b * sqb + (h * sqh + m * sqm)[:, None] + d[None, :], mask=ok, other=0.0)
    K += b * skb + hk * skh
    V += b * svb + hk * svh
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = tl.minimum((tl.program_id(0) * BM + BM - 1) // G + 1, N)
    for start in range(0, end, BN):
        n = start + tl.arange(0, BN)
        k = tl.load(K + n[:, None] * skn + d[None, :], mask=(n < N)[:, None], other=0.0)
        v = tl.load(V + n[:, None] * svn + d[None, :], mask=(n < N)[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(n[None, :] <= m[:, None], s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        fade = tl.exp2(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    row = (b * HKV * G + h) * N + m
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + d[None, :], out, mask=ok)
    tl.store(L + row, (top + tl.log2(den)) * 0.6931471805599453, mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    b, h, n, d = q.shape
    hkv = k.shape[1]
    scale = 1.4426950408889634 * (d**-0.5 if softmax_scale is None else softmax_scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _packed[(triton.cdiv(n * (h // hkv), 64), b * hkv)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        hkv, h // hkv, n, scale, D=d, BM=64, BN=32, num_stages=1,
    )  # fmt: skip
    return out, lse
