"""Up to eight query heads of a group are the batch of tl.dot: (heads, queries, head_dim) tiles."""


@triton.jit
def _batched(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, HKV, N, scale,
    G: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    kv = tl.program_id(1).to(tl.int64)
    b, hk = kv // HKV, kv % HKV
    lo = tl.program_id(0) * BM
    g = tl.program_id(2) * GP + tl.arange(0, GP)
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    h = hk * G + g
    ok = (g < G)[:, None] & (m < N)[None, :]
    q_ptrs = Q + b * sqb + (h * sqh)[:, None, None] + (m * sqm)[None, :, None] + d[None, None, :]
    q = tl.load(q_ptrs, mask=ok[:, :, None], other=0.0)
    top = tl.full([GP, BM], float("-inf"), tl.float32)
    den = tl.zeros([GP, BM], tl.float32)
    acc = tl.zeros([GP, BM, D], tl.float32)
    for start in range(0, tl.minimum(lo + BM, N), BN):
        n = start + tl.arange(0, BN)
        k = tl.load(
            K + b * skb + hk * skh + n[None, :] * skn + d[:, None], n[None, :] < N, other=0.0
        )
        v = tl.load(
            V + b * svb + hk * svh + n[:, None] * svn + d[None, :], n[:, None] < N, other=0.0
        )
        s = tl.dot(q, tl.broadcast_to(k[None, :, :], (GP, D, BN)), input_precision="ieee") * scale
        s = tl.where((n[None, :] <= m[:, None])[None, :, :], s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 2))
        p = tl.exp(s - now[:, :, None])
        fade = tl.exp(top - now)
        den = den * fade + tl.sum(p, 2)
        wide = tl.broadcast_to(v[None, :, :], (GP, BN, D))
        acc = acc * fade[:, :, None] + tl.dot(p.to(v.dtype), wide, input_precision="ieee")
        top = now
    row = (b * HKV * G + h)[:, None] * N + m[None, :]
    out = (acc / den[:, :, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, :, None] * D + d[None, None, :], out, mask=ok[:, :, None])
    tl.store(L + row, top + tl.log(den), mask=ok)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    b, h, n, d = q.shape
    hkv, group = k.shape[1], h // k.shape[1]
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    heads = min(8, triton.next_power_of_2(group))
    _batched[(triton.cdiv(n, 16), b * hkv, triton.cdiv(group, heads))](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], hkv, n,
        d**-0.5 if softmax_scale is None else softmax_scale,
        G=group, GP=heads, D=d, BM=16, BN=32, num_stages=1,
    )  # fmt: skip
    return out, lse
