# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""The sink logit scales what the softmax gave; a program per query head adds to dK and dV."""


@triton.jit
def vis(i, j, W, S, N):
    return (j <= i) & ((i < j + W) | (j < S)) & (i < N) & (j < N)


@triton.jit
def _window_forward(
    Q, K, V, SINK, OUT, L, sq, sk, sv, ss, H, G, N, W, S, scale,
    HAS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    t, z = tl.program_id(0), tl.program_id(1)
    b, h = z // H, z % H
    m = t * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(
        Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d[None, :],
        mask=(m < N)[:, None],
        other=0.0,
    )
    m_i = tl.full([BM], float("-inf"), tl.float32)
    l_i = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    lo = tl.maximum(t * BM - W + 1, 0) // BN
    hi = tl.cdiv(tl.minimum((t + 1) * BM, N), BN)
    ns = tl.minimum(tl.cdiv(S, BN), lo)
    for it in range(0, ns + hi - lo):
        j0 = tl.where(it < ns, it, it - ns + lo) * BN
        n = j0 + tl.arange(0, BN)
        k = tl.load(
            K + b * sk[0] + (h // G) * sk[1] + n[:, None] * sk[2] + d[None, :],
            mask=(n < N)[:, None],
            other=0.0,
        )
        v = tl.load(
            V + b * sv[0] + (h // G) * sv[1] + n[:, None] * sv[2] + d[None, :],
            mask=(n < N)[:, None],
            other=0.0,
        )
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(vis(m[:, None], n[None, :], W, S, N), s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp(s - safe[:, None])
        a = tl.exp(m_i - safe)
        l_i = l_i * a + tl.sum(p, 1)
        acc = acc * a[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_new
    l_i = tl.where(m < N, l_i, 1.0)
    out = acc / l_i[:, None]
    lse = m_i + tl.log(l_i)
    if HAS:
        sink = tl.load(SINK + h * ss).to(tl.float32)
        big = tl.maximum(lse, sink)
        all_lse = big + tl.log(tl.exp(lse - big) + tl.exp(sink - big))
        out = out * tl.exp(lse - all_lse)[:, None]
        lse = all_lse
    tl.store(OUT + (z * N + m)[:, None] * D + d[None, :], out, mask=(m < N)[:, None])
    tl.store(L + z * N + m, lse, mask=m < N)


@triton.jit
def _window_dq(
    Q, K, V, DO, L, DELTA, DQ, SINK, DSINK, ss, sq, sk, sv, so, H, G, N, W, S, scale,
    HAS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    t, z = tl.program_id(0), tl.program_id(1)
    b, h = z // H, z % H
    m = t * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(
        Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d[None, :],
        mask=(m < N)[:, None],
        other=0.0,
    )
    do = tl.load(
        DO + b * so[0] + h * so[1] + m[:, None] * so[2] + d[None, :],
        mask=(m < N)[:, None],
        other=0.0,
    )
    lse = tl.load(L + z * N + m, mask=m < N, other=0.0)
    delta = tl.load(DELTA + z * N + m, mask=m < N, other=0.0)
    dq = tl.zeros([BM, D], tl.float32)
    lo = tl.maximum(t * BM - W + 1, 0) // BN
    hi = tl.cdiv(tl.minimum((t + 1) * BM, N), BN)
    ns = tl.minimum(tl.cdiv(S, BN), lo)
    for it in range(0, ns + hi - lo):
        j0 = tl.where(it < ns, it, it - ns + lo) * BN
        n = j0 + tl.arange(0, BN)
        k = tl.load(
            K + b * sk[0] + (h // G) * sk[1] + n[:, None] * sk[2] + d[None, :],
            mask=(n < N)[:, None],
            other=0.0,
        )
        v = tl.load(
            V + b * sv[0] + (h // G) * sv[1] + n[:, None] * sv[2] + d[None, :],
            mask=(n < N)[:, None],
            other=0.0,
        )
        p = tl.exp(tl.dot(q, tl.trans(k), input_precision="ieee") * scale - lse[:, None])
        p = tl.where(vis(m[:, None], n[None, :], W, S, N), p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    tl.store(DQ + (z * N + m)[:, None] * D + d[None, :], dq * scale, mask=(m < N)[:, None])
    if HAS:
        p_sink = tl.exp(tl.load(SINK + h * ss).to(tl.float32) - lse)
        tl.atomic_add(DSINK + h, -tl.sum(tl.where(m < N, p_sink * delta, 0.0), 0))


@triton.jit
def _window_dkv(
    Q, K, V, DO, L, DELTA, DK, DV, sq, sk, sv, so, HK, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    t, z = tl.program_id(0), tl.program_id(1)
    H = HK * G
    b, h = z // H, z % H
    hk = h // G
    n = t * BN + tl.arange(0, BN)
    d = tl.arange(0, D)
    k = tl.load(
        K + b * sk[0] + hk * sk[1] + n[:, None] * sk[2] + d[None, :],
        mask=(n < N)[:, None],
        other=0.0,
    )
    v = tl.load(
        V + b * sv[0] + hk * sv[1] + n[:, None] * sv[2] + d[None, :],
        mask=(n < N)[:, None],
        other=0.0,
    )
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    end = tl.where(t * BN < S, N, tl.minimum(t * BN + BN - 1 + W, N))
    row = z * N
    if True:
        for m0 in range(t * BN // BM * BM, end, BM):
            m = m0 + tl.arange(0, BM)
            q = tl.load(
                Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d[None, :],
                mask=(m < N)[:, None],
                other=0.0,
            )
            do = tl.load(
                DO + b * so[0] + h * so[1] + m[:, None] * so[2] + d[None, :],
                mask=(m < N)[:, None],
                other=0.0,
            )
            lse = tl.load(L + row + m, mask=m < N, other=0.0)
            delta = tl.load(DELTA + row + m, mask=m < N, other=0.0)
            p = tl.exp(tl.dot(q, tl.trans(k), input_precision="ieee") * scale - lse[:, None])
            p = tl.where(vis(m[:, None], n[None, :], W, S, N), p, 0.0)
            dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
            ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")
    place = ((b * HK + hk) * N + n)[:, None] * D + d[None, :]
    tl.atomic_add(DK + place, dk * scale, mask=(n < N)[:, None])
    tl.atomic_add(DV + place, dv, mask=(n < N)[:, None])


class SinkWindow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sinks, W, S, scale):
        B, H, N, D = q.shape
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        L = torch.empty((B, H, N), dtype=torch.float32, device=q.device)
        _window_forward[(triton.cdiv(N, 32), B * H)](
            q, k, v, sinks, o, L, q.stride()[:3], k.stride()[:3], v.stride()[:3],
            0 if sinks is None else sinks.stride(0), H, H // k.shape[1], N, W, S, scale,
            HAS=sinks is not None, D=D, BM=32, BN=32,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, o, L, sinks)
        ctx.W, ctx.S, ctx.scale = W, S, scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, L, sinks = ctx.saved_tensors
        do = do.contiguous()
        B, H, N, D = q.shape
        HK = k.shape[1]
        delta = (o.float() * do.float()).sum(-1)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk, dv = (torch.zeros(t.shape, dtype=torch.float32, device=t.device) for t in (k, v))
        dsinks = None if sinks is None else torch.zeros(H, dtype=torch.float32, device=q.device)
        st = q.stride()[:3], k.stride()[:3], v.stride()[:3], do.stride()[:3]
        _window_dq[(triton.cdiv(N, 32), B * H)](
            q, k, v, do, L, delta, dq, sinks, dsinks, 0 if sinks is None else sinks.stride(0), *st,
            H, H // HK, N, ctx.W, ctx.S, ctx.scale, HAS=sinks is not None, D=D, BM=32, BN=32,
        )  # fmt: skip
        _window_dkv[(triton.cdiv(N, 32), B * H)](
            q, k, v, do, L, delta, dk, dv, *st, HK, H // HK, N, ctx.W, ctx.S, ctx.scale,
            D=D, BM=32, BN=32,
        )  # fmt: skip
        if dsinks is not None:
            dsinks = dsinks.to(sinks.dtype)
        return dq, dk.to(k.dtype), dv.to(v.dtype), dsinks, None, None, None


def sink_window_attention(
    q, k, v, *, window_size, num_sink_tokens=0, sink_logits=None, softmax_scale=None
):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    check_sink_logits(sink_logits, q)
    N = q.shape[2]
    return SinkWindow.apply(
        q, k, v, sink_logits, min(window_size, N), min(num_sink_tokens, N),
        default_scale(softmax_scale, q.shape[-1]),
    )  # fmt: skip
