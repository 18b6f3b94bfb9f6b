"""Window pairs, then sink pairs: two launches of one kernel, and the second adds to dK and dV."""


@triton.jit
def _set_of_pairs(
    Q, K, V, DO, L, DELTA, DQ, DK, DV, sq, sk, sv, sd, H, G, N, W, S, scale,
    SINKS: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    start, bh = tl.program_id(0) * B, tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    n, d = start + tl.arange(0, B), tl.arange(0, D)
    k = load_tile(K + b * sk[0] + h // G * sk[1], start, sk[2], N, B, D)
    v = load_tile(V + b * sv[0] + h // G * sv[1], start, sv[2], N, B, D)
    dk = tl.zeros([B, D], tl.float32)
    dv = tl.zeros([B, D], tl.float32)
    if SINKS:
        first, end = (start + W) // B * B, N
    else:
        first, end = start, tl.minimum(start + B - 1 + W, N)
    for r in range(first, end, B):
        m = r + tl.arange(0, B)
        q = load_tile(Q + b * sq[0] + h * sq[1], r, sq[2], N, B, D)
        do = load_tile(DO + b * sd[0] + h * sd[1], r, sd[2], N, B, D)
        lse = tl.load(L + bh * N + m, mask=m < N, other=float("inf"))
        delta = tl.load(DELTA + bh * N + m, mask=m < N, other=0.0)
        far = m[:, None] - n[None, :]
        pairs = (far >= W) & (n < S)[None, :] if SINKS else (far >= 0) & (far < W)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where(pairs, tl.exp(s - lse[:, None]), 0.0)
        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None]) * scale
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
        dq = tl.dot(ds.to(k.dtype), k, input_precision="ieee")
        tl.atomic_add(DQ + (bh * N + m)[:, None] * D + d, dq, mask=m[:, None] < N)
    at = (bh * N + n)[:, None] * D + d
    if SINKS:
        dk += tl.load(DK + at, mask=n[:, None] < N, other=0.0)
        dv += tl.load(DV + at, mask=n[:, None] < N, other=0.0)
    tl.store(DK + at, dk, mask=n[:, None] < N)
    tl.store(DV + at, dv, mask=n[:, None] < N)


@triton.jit
def _shares(OUT, DO, L, SINK, DELTA, PART, so, sd, H, N, D: tl.constexpr, B: tl.constexpr):
    bh = tl.program_id(1).to(tl.int64)
    m, d = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, D)
    inside = m[:, None] < N
    OUT += bh // H * so[0] + bh % H * so[1]
    DO += bh // H * sd[0] + bh % H * sd[1]
    o = tl.load(OUT + m[:, None] * so[2] + d, mask=inside, other=0.0).to(tl.float32)
    do = tl.load(DO + m[:, None] * sd[2] + d * sd[3], mask=inside, other=0.0).to(tl.float32)
    delta = tl.sum(o * do, 1)
    tl.store(DELTA + bh * N + m, delta, mask=m < N)
    if SINK is not None:
        lse = tl.load(L + bh * N + m, mask=m < N, other=float("inf"))
        share = tl.exp(tl.load(SINK + bh % H).to(tl.float32) - lse)
        tl.store(PART + bh * tl.num_programs(0) + tl.program_id(0), -tl.sum(share * delta, 0))


class _SinkWindowAttention(_SinkWindowAttention):
    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, sink, out, lse = ctx.saved_tensors
        (b, h, n, d), g = q.shape, q.shape[1] // k.shape[1]
        window, sinks, _ = ctx.options
        tiles = triton.cdiv(n, 32)
        delta, part = torch.empty_like(lse), lse.new_empty((b, h, tiles))
        sink = None if sink is None else sink.contiguous()
        strides = (out.stride(), dout.stride())
        _shares[(tiles, b * h)](out, dout, lse, sink, delta, part, *strides, h, n, D=d, B=32)
        dout = dout if dout.stride(3) == 1 else dout.contiguous()
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = torch.empty_like(dq), torch.empty_like(dq)
        strides = (q.stride(), k.stride(), v.stride(), dout.stride())
        given = (q, k, v, dout, lse, delta, dq, dk, dv, *strides, h, g, n, *ctx.options)
        _set_of_pairs[(tiles, b * h)](*given, SINKS=False, D=d, B=32, num_stages=1)
        if sinks > 0 and window < n:
            grid = (triton.cdiv(sinks, 32), b * h)
            _set_of_pairs[grid](*given, SINKS=True, D=d, B=32, num_stages=1)
        dk, dv = (x.view(b, h // g, g, n, d).sum(2) for x in (dk, dv))
        dsink = None if sink is None else part.sum((0, 2)).to(sink.dtype)
        return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype), dsink, None, None, None
