"""Sinks and window are one list of keys: each lane looks its key up, and tiles may hold both."""


@triton.jit
def _gathered(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    lo = tl.program_id(0) * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    K += b * skb + h // G * skh
    V += b * svb + h // G * svh
    top = tl.full([BM], -1.0e30, tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    first = tl.maximum(lo - W + 1, 0)
    before = tl.minimum(S, first)
    count = before + tl.minimum(lo + BM, N) - first
    for start in range(0, count, BN):
        lane = start + tl.arange(0, BN)
        n = tl.where(lane < before, lane, lane - before + first)
        ok = lane < count
        k = tl.load(K + n[None, :] * skn + d[:, None], mask=ok[None, :], other=0.0)
        v = tl.load(V + n[:, None] * svn + d[None, :], mask=ok[:, None], other=0.0)
        s = tl.dot(q, k, input_precision="ieee") * scale
        near = m[:, None] - n[None, :] < W
        seen = (m[:, None] >= n[None, :]) & (near | (n[None, :] < S)) & ok[None, :]
        s = tl.where(seen, s, -1.0e30)
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.where(seen, tl.exp2(s - now[:, None]), 0.0)
        fade = tl.exp2(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    row = bh * N + m
    out = acc / tl.where(den > 0.0, den, 1.0)[:, None]
    tl.store(OUT + row[:, None] * D + d[None, :], out.to(OUT.dtype.element_ty), mask=m[:, None] < N)
    tl.store(L + row, (top + tl.log2(den)) / 1.4426950408889634, mask=m < N)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    b, h, n, d = q.shape
    scale = 1.4426950408889634 * (d**-0.5 if softmax_scale is None else softmax_scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _gathered[(triton.cdiv(n, 32), b * h)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        h, h // k.shape[1], n, min(window_size, n), min(num_sink_tokens, n), scale,
        D=d, BM=32, BN=64, num_stages=1,
    )  # fmt: skip
    return out, lse
