"""Window and sinks each have a softmax state of their own; the two are merged at the end."""


@triton.jit
def _fold(q, K, V, skn, svn, n, N, seen, top, den, acc, scale, D: tl.constexpr):
    d = tl.arange(0, D)
    k = tl.load(K + n[:, None] * skn + d[None, :], mask=(n < N)[:, None], other=0.0)
    v = tl.load(V + n[:, None] * svn + d[None, :], mask=(n < N)[:, None], other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    s = tl.where(seen, s, float("-inf"))
    now = tl.maximum(top, tl.max(s, 1))
    p = tl.where(seen, tl.exp(s - now[:, None]), 0.0)
    fade = tl.where(top == now, 1.0, tl.exp(top - now))
    acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
    return now, den * fade + tl.sum(p, 1), acc


@triton.jit
def _two_states(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BS: tl.constexpr,
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
    hi = tl.minimum(lo + BM, N)
    for start in range(tl.maximum(lo - W + 1, 0) // BN * BN, hi, BN):
        n = start + tl.arange(0, BN)
        distance = m[:, None] - n[None, :]
        seen = (distance >= 0) & (distance < W)
        top, den, acc = _fold(q, K, V, skn, svn, n, N, seen, top, den, acc, scale, D)
    sink_top = tl.full([BM], -1.0e30, tl.float32)
    sink_den = tl.zeros([BM], tl.float32)
    sink_acc = tl.zeros([BM, D], tl.float32)
    # A sink belongs here where the query's window does not reach back to it.
    for start in range(0, tl.minimum(S, hi - W), BS):
        n = start + tl.arange(0, BS)
        seen = (n[None, :] < S) & (m[:, None] - n[None, :] >= W)
        sink_top, sink_den, sink_acc = _fold(
            q, K, V, skn, svn, n, N, seen, sink_top, sink_den, sink_acc, scale, D
        )
    both = tl.maximum(top, sink_top)
    a, c = tl.exp(top - both), tl.exp(sink_top - both)
    total = a * den + c * sink_den
    total = tl.where(m < N, total, 1.0)
    out = (acc * a[:, None] + sink_acc * c[:, None]) / total[:, None]
    row = bh * N + m
    tl.store(OUT + row[:, None] * D + d[None, :], out.to(OUT.dtype.element_ty), mask=m[:, None] < N)
    tl.store(L + row, both + tl.log(total), mask=m < N)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _two_states[(triton.cdiv(n, 64), b * h)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        h, h // k.shape[1], n, min(window_size, n), min(num_sink_tokens, n),
        d**-0.5 if softmax_scale is None else softmax_scale,
        D=d, BM=64, BN=32, BS=16, num_stages=1,
    )  # fmt: skip
    return out, lse
