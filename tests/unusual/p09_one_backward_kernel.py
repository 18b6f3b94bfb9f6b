"""All gradients in one kernel, a program per tile of queries: dK, dV and dsink by atomics."""


@triton.jit
def _key_tile(i, before, first, BN: tl.constexpr):
    return tl.where(i < before, i, first + i - before) * BN + tl.arange(0, BN)


@triton.jit
def _tiles_of(lo, N, W, S, BM: tl.constexpr, BN: tl.constexpr):
    first = tl.maximum(lo - W + 1, 0) // BN
    before = tl.minimum(tl.cdiv(S, BN), first)
    return first, before, before + tl.cdiv(tl.minimum(lo + BM, N), BN) - first


@triton.jit
def _forward_tiles(
    Q, K, V, SINK, OUT, L, sq, sk, sv, ss, H, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    lo = tl.program_id(0) * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d, m[:, None] < N, other=0.0)
    top = tl.full([BM], -1.0e30, tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    first, before, count = _tiles_of(lo, N, W, S, BM, BN)
    for i in range(count):
        n = _key_tile(i, before, first, BN)
        ok = n[:, None] < N
        k = tl.load(K + b * sk[0] + h // G * sk[1] + n[:, None] * sk[2] + d, ok, other=0.0)
        v = tl.load(V + b * sv[0] + h // G * sv[1] + n[:, None] * sv[2] + d, ok, other=0.0)
        gap = m[:, None] - n[None, :]
        seen = (gap >= 0) & ((gap < W) | (n < S)[None, :])
        s = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, -1.0e30)
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.where(seen, tl.exp(s - now[:, None]), 0.0)
        fade = tl.exp(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    if SINK is not None:  # the logit joins the sum when all keys are in
        logit = tl.load(SINK + h * ss).to(tl.float32)
        now = tl.maximum(top, logit)
        fade = tl.exp(top - now)
        den = den * fade + tl.exp(logit - now)
        acc *= fade[:, None]
        top = now
    row = bh * N + m
    den = tl.where(m < N, den, 1.0)
    tl.store(
        OUT + row[:, None] * D + d, (acc / den[:, None]).to(OUT.dtype.element_ty), m[:, None] < N
    )
    tl.store(L + row, top + tl.log(den), mask=m < N)


@triton.jit
def _backward(
    Q, K, V, SINK, OUT, DO, L, DQ, DK, DV, DSINK, sq, sk, sv, sd, ss, H, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    hk = h // G
    lo = tl.program_id(0) * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    inside = m[:, None] < N
    row = bh * N + m
    q = tl.load(Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d, inside, other=0.0)
    do = tl.load(DO + b * sd[0] + h * sd[1] + m[:, None] * sd[2] + d, inside, other=0.0)
    o = tl.load(OUT + row[:, None] * D + d, inside, other=0.0)
    lse = tl.load(L + row, m < N, other=0.0)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    if SINK is not None:
        weight = tl.exp(tl.load(SINK + h * ss).to(tl.float32) - lse)
        tl.atomic_add(DSINK + h, -tl.sum(tl.where(m < N, weight * delta, 0.0), 0))
    dq = tl.zeros([BM, D], tl.float32)
    first, before, count = _tiles_of(lo, N, W, S, BM, BN)
    for i in range(count):
        n = _key_tile(i, before, first, BN)
        ok = n[:, None] < N
        k = tl.load(K + b * sk[0] + hk * sk[1] + n[:, None] * sk[2] + d, ok, other=0.0)
        v = tl.load(V + b * sv[0] + hk * sv[1] + n[:, None] * sv[2] + d, ok, other=0.0)
        gap = m[:, None] - n[None, :]
        seen = (gap >= 0) & ((gap < W) | (n < S)[None, :]) & inside
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where(seen, tl.exp(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = (p * (dp - delta[:, None]) * scale).to(k.dtype)
        dq = tl.dot(ds, k, dq, input_precision="ieee")
        place = ((b * (H // G) + hk) * N + n)[:, None] * D + d
        dv = tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
        tl.atomic_add(DV + place, dv, mask=ok)
        tl.atomic_add(DK + place, tl.dot(tl.trans(ds), q, input_precision="ieee"), mask=ok)
    tl.store(DQ + row[:, None] * D + d, dq.to(DQ.dtype.element_ty), mask=inside)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, window, sinks, scale):
        b, h, n, d = q.shape
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
        _forward_tiles[(triton.cdiv(n, 64), b * h)](
            q, k, v, sink, out, lse, q.stride()[:3], k.stride()[:3], v.stride()[:3],
            0 if sink is None else sink.stride(0), h, h // k.shape[1], n, window, sinks, scale,
            D=d, BM=64, BN=16, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.rule = (window, sinks, scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, sink, out, lse = ctx.saved_tensors
        b, h, n, d = q.shape
        do = do if do.stride(-1) == 1 else do.clone(memory_format=torch.contiguous_format)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk, dv = (torch.zeros(k.shape, dtype=torch.float32, device=k.device) for _ in range(2))
        dsink = None
        if sink is not None:
            dsink = torch.zeros(h, dtype=torch.float32, device=q.device)
        _backward[(triton.cdiv(n, 32), b * h)](
            q, k, v, sink, out, do, lse, dq, dk, dv, dsink,
            q.stride()[:3], k.stride()[:3], v.stride()[:3], do.stride()[:3],
            0 if sink is None else sink.stride(0), h, h // k.shape[1], n, *ctx.rule,
            D=d, BM=32, BN=32, num_stages=1,
        )  # fmt: skip
        if sink is not None:
            dsink = dsink.to(sink.dtype)
        return dq, dk.to(k.dtype), dv.to(v.dtype), dsink, None, None, None


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
