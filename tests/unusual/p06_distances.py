"""A fixed number of tiles per program, counted on the host; the mask is one of distances."""


@triton.jit
def _by_distance(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, G, N, W, rounds, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    m = tile * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    K += b * skb + h // G * skh
    V += b * svb + h // G * svh
    top = tl.full([BM], -1.0e30, tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    last = (tl.minimum(tile * BM + BM, N) - 1) // BN
    for i in range(rounds):
        n = (last - i) * BN + tl.arange(0, BN)
        # The first programs have fewer tiles than the others: what lies before key 0 is masked.
        if (last - i >= 0) & ((last - i) * BN + BN > tile * BM - W + 1):
            ok = (n >= 0) & (n < N)
            k = tl.load(K + n[None, :] * skn + d[:, None], mask=ok[None, :], other=0.0)
            v = tl.load(V + n[:, None] * svn + d[None, :], mask=ok[:, None], other=0.0)
            distance = m[:, None] - n[None, :]
            seen = (distance >= 0) & (distance < W)
            s = tl.where(seen, tl.dot(q, k, input_precision="ieee") * scale, -1.0e30)
            now = tl.maximum(top, tl.max(s, 1))
            p = tl.where(seen, tl.exp(s - now[:, None]), 0.0)
            fade = tl.exp(top - now)
            den = den * fade + tl.sum(p, 1)
            acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
            top = now
    row = (b * H + h) * N + m
    den = tl.where(m < N, den, 1.0)
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + d[None, :], out, mask=m[:, None] < N)
    tl.store(L + row, top + tl.log(den), mask=m < N)


def attention(q, k, v, *, window_size, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    BM, BN = 64, 32
    window = min(window_size, n)
    rounds = triton.cdiv(BM + window - 1, BN) + 1
    _by_distance[(triton.cdiv(n, BM), b * h)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        h, h // k.shape[1], n, window, rounds,
        d**-0.5 if softmax_scale is None else softmax_scale, D=d, BM=BM, BN=BN, num_stages=1,
    )  # fmt: skip
    return out, lse
