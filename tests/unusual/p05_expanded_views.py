"""K and V are expanded on the host, with stride 0 over the group; the kernel knows no groups."""


@triton.jit
def _expanded(
    Q, K, V, OUT, L, sqb, sqh, sqg, sqm, skb, skh, skg, skn, svb, svh, svg, svn, HKV, G, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    g, hk, b = tl.program_id(0) % G, tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    tile = tl.num_programs(0) // G - 1 - tl.program_id(0) // G
    start_m = tile * BM
    m = start_m + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(
        Q + b * sqb + hk * sqh + g * sqg + m[:, None] * sqm + d[None, :], m[:, None] < N, other=0.0
    )
    K += b * skb + hk * skh + g * skg
    V += b * svb + hk * svh + g * svg
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    # The tile on the diagonal first: every row has a finite maximum from then on.
    diagonal = start_m // BN
    for i in range(0, tl.cdiv(tl.minimum(start_m + BM, N), BN)):
        j = tl.where(i == 0, diagonal, tl.where(i <= diagonal, i - 1, i))
        n = j * BN + tl.arange(0, BN)
        k = tl.load(K + n[None, :] * skn + d[:, None], mask=(n < N)[None, :], other=0.0)
        v = tl.load(V + n[:, None] * svn + d[None, :], mask=(n < N)[:, None], other=0.0)
        s = tl.dot(q, k, input_precision="ieee") * scale
        s = tl.where(n[None, :] <= m[:, None], s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        fade = tl.exp(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    row = ((b * HKV + hk) * G + g) * N + m
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + d[None, :], out, mask=m[:, None] < N)
    tl.store(L + row, top + tl.log(den), mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    b, h, n, d = q.shape
    hkv, group = k.shape[1], h // k.shape[1]
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    q5 = q.unflatten(1, (hkv, group))
    k5 = k.unsqueeze(2).expand(-1, -1, group, -1, -1)
    v5 = v.unsqueeze(2).expand(-1, -1, group, -1, -1)
    _expanded[(group * triton.cdiv(n, 32), hkv, b)](
        q5, k5, v5, out, lse, *q5.stride()[:4], *k5.stride()[:4], *v5.stride()[:4],
        hkv, group, n, scale, D=d, BM=32, BN=32, num_stages=1,
    )  # fmt: skip
    return out, lse
