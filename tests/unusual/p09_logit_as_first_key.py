"""The sink logit begins the softmax as a key of value 0; dQ, and dK with dV, in two kernels."""


@triton.jit
def _seen(m, n, W, S):
    return (n <= m) & ((m - n < W) | (n < S))


@triton.jit
def _skipped(start_n, lo_m, W, S, BN: tl.constexpr):
    """Whether no query from lo_m on sees a key of this tile."""
    return (start_n + BN - 1 <= lo_m - W) & (start_n >= S)


@triton.jit
def _forward_tiles(
    Q, K, V, SINK, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, ss, H, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, HAS_SINK: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    lo = tl.program_id(0) * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    if HAS_SINK:
        top = tl.zeros([BM], tl.float32) + tl.load(SINK + h * ss).to(tl.float32)
        den = tl.full([BM], 1.0, tl.float32)
    else:
        top = tl.full([BM], -1.0e30, tl.float32)
        den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, tl.minimum(lo + BM, N), BN):
        if not _skipped(start, lo, W, S, BN):
            n = start + tl.arange(0, BN)
            ok = n[:, None] < N
            k = tl.load(K + b * skb + h // G * skh + n[:, None] * skn + d, ok, other=0.0)
            v = tl.load(V + b * svb + h // G * svh + n[:, None] * svn + d, ok, other=0.0)
            seen = _seen(m[:, None], n[None, :], W, S)
            s = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, -1.0e30)
            now = tl.maximum(top, tl.max(s, 1))
            p = tl.where(seen, tl.exp(s - now[:, None]), 0.0)
            fade = tl.exp(top - now)
            den = den * fade + tl.sum(p, 1)
            acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
            top = now
    row = bh * N + m
    den = tl.where(m < N, den, 1.0)
    tl.store(
        OUT + row[:, None] * D + d, (acc / den[:, None]).to(OUT.dtype.element_ty), m[:, None] < N
    )
    tl.store(L + row, top + tl.log(den), mask=m < N)


@triton.jit
def _backward_q(
    Q, K, V, DO, L, DELTA, DQ,
    sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, sdb, sdh, sdm, H, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    lo = tl.program_id(0) * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    inside = m[:, None] < N
    row = bh * N + m
    q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, inside, other=0.0)
    do = tl.load(DO + b * sdb + h * sdh + m[:, None] * sdm + d, inside, other=0.0)
    lse = tl.load(L + row, m < N, other=0.0)
    delta = tl.load(DELTA + row, m < N, other=0.0)
    dq = tl.zeros([BM, D], tl.float32)
    start = 0
    while start < tl.minimum(lo + BM, N):
        if not _skipped(start, lo, W, S, BN):
            n = start + tl.arange(0, BN)
            ok = n[:, None] < N
            k = tl.load(K + b * skb + h // G * skh + n[:, None] * skn + d, ok, other=0.0)
            v = tl.load(V + b * svb + h // G * svh + n[:, None] * svn + d, ok, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            p = tl.where(_seen(m[:, None], n[None, :], W, S), tl.exp(s - lse[:, None]), 0.0)
            ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
            dq = tl.dot((ds * scale).to(k.dtype), k, dq, input_precision="ieee")
        start += BN
    tl.store(DQ + row[:, None] * D + d, dq.to(DQ.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kv(
    Q, K, V, DO, L, DELTA, DK, DV,
    sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, sdb, sdh, sdm, HKV, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bk = tl.program_id(1).to(tl.int64)
    b, hk = bk // HKV, bk % HKV
    lo = tl.program_id(0) * BN
    n = lo + tl.arange(0, BN)
    d = tl.arange(0, D)
    ok = n[:, None] < N
    k = tl.load(K + b * skb + hk * skh + n[:, None] * skn + d, ok, other=0.0)
    v = tl.load(V + b * svb + hk * svh + n[:, None] * svn + d, ok, other=0.0)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    first = lo // BM
    # A tile with a sink is seen by all queries to the end.
    end = tl.where(lo < S, N, tl.minimum(N, lo + BN - 1 + W))
    rounds = tl.cdiv(end, BM) - first
    for i in range(rounds * G):
        h = hk * G + i // rounds
        m = (first + i % rounds) * BM + tl.arange(0, BM)
        inside = m[:, None] < N
        row = (b * HKV * G + h) * N + m
        q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, inside, other=0.0)
        do = tl.load(DO + b * sdb + h * sdh + m[:, None] * sdm + d, inside, other=0.0)
        lse = tl.load(L + row, m < N, other=0.0)
        delta = tl.load(DELTA + row, m < N, other=0.0)
        s_t = tl.dot(k, tl.trans(q), input_precision="ieee") * scale
        seen = _seen(m[None, :], n[:, None], W, S) & (m < N)[None, :]
        p_t = tl.where(seen, tl.exp(s_t - lse[None, :]), 0.0)
        dv = tl.dot(p_t.to(do.dtype), do, dv, input_precision="ieee")
        ds_t = p_t * (tl.dot(v, tl.trans(do), input_precision="ieee") - delta[None, :])
        dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision="ieee")
    row = bk * N + n
    tl.store(DK + row[:, None] * D + d, (dk * scale).to(DK.dtype.element_ty), mask=ok)
    tl.store(DV + row[:, None] * D + d, dv.to(DV.dtype.element_ty), mask=ok)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, window, sinks, scale):
        b, h, n, d = q.shape
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
        _forward_tiles[(triton.cdiv(n, 64), b * h)](
            q, k, v, sink, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            0 if sink is None else sink.stride(0), h, h // k.shape[1], n, window, sinks, scale,
            D=d, BM=64, BN=32, HAS_SINK=sink is not None, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.rule = (window, sinks, scale)
        return out

    @staticmethod
    def backward(ctx, do):
        q, k, v, sink, out, lse = ctx.saved_tensors
        b, h, n, d = q.shape
        hk = k.shape[1]
        if do.stride(3) != 1:
            do = do.contiguous()
        delta = (out.float() * do.float()).sum(3)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *do.stride()[:3])
        _backward_q[(triton.cdiv(n, 32), b * h)](
            q, k, v, do, lse, delta, dq, *strides, h, h // hk, n, *ctx.rule,
            D=d, BM=32, BN=32, num_stages=1,
        )  # fmt: skip
        _backward_kv[(triton.cdiv(n, 32), b * hk)](
            q, k, v, do, lse, delta, dk, dv, *strides, hk, h // hk, n, *ctx.rule,
            D=d, BM=32, BN=32, num_stages=1,
        )  # fmt: skip
        dsink = None
        if sink is not None:
            weight = (sink.float().view(1, h, 1) - lse).exp()
            dsink = -(weight * delta).sum(dim=(0, 2)).to(sink.dtype)
        return dq, dk, dv, dsink, None, None, None


def sink_window_attention(
    q, k, v, *, window_size, num_sink_tokens=0, sink_logits=None, softmax_scale=None
):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    check_sink_logits(sink_logits, q)
    n, d = q.shape[2:]
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    return _Attention.apply(
        q, k, v, sink_logits, min(window_size, n), min(num_sink_tokens, n), scale
    )
