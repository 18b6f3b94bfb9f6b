"""One mask for all tiles: first the window from the diagonal back, then the tiles of the sinks."""


@triton.jit
def _window_first(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    tiles = tl.cdiv(N, BM)
    bh = (pid // tiles).to(tl.int64)
    lo = pid % tiles * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + bh // H * sqb + bh % H * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    K += bh // H * skb + bh % H // G * skh
    V += bh // H * svb + bh % H // G * svh
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    last = (tl.minimum(lo + BM, N) - 1) // BN
    first = tl.maximum(lo - W + 1, 0) // BN
    sinks = tl.minimum(tl.cdiv(S, BN), first)
    tile = last
    done = 0
    while done < last - first + 1 + sinks:
        n = tile * BN + tl.arange(0, BN)
        k = tl.load(K + n[None, :] * skn + d[:, None], mask=n[None, :] < N, other=0.0)
        v = tl.load(V + n[:, None] * svn + d[None, :], mask=n[:, None] < N, other=0.0)
        s = tl.dot(q, k, input_precision="ieee") * scale
        hidden = (n[None, :] > m[:, None]) | ((n[None, :] <= m[:, None] - W) & (n[None, :] >= S))
        s = tl.where(hidden, float("-inf"), s)
        now = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(now == float("-inf"), 0.0, now)
        p = tl.exp(s - safe[:, None])
        fade = tl.exp(top - safe)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
        tile = tl.where(tile == first, sinks - 1, tile - 1)
        done += 1
    row = bh * N + m
    out = acc / den[:, None]
    tl.store(OUT + row[:, None] * D + d[None, :], out.to(OUT.dtype.element_ty), mask=m[:, None] < N)
    tl.store(L + row, top + tl.log(den), mask=m < N)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _window_first[(triton.cdiv(n, 64) * b * h,)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        h, h // k.shape[1], n, min(window_size, n), min(num_sink_tokens, n),
        d**-0.5 if softmax_scale is None else softmax_scale,
        D=d, BM=64, BN=16, num_warps=8, num_stages=1,
    )  # fmt: skip
    return out, lse
