"""The sink logit enters after the loop; dsink_logits by atomics; dK and dV by atomics, heads apart.

Every key tile up to the diagonal is looked at, and left at once where no query of the tile sees it.
"""


@triton.jit
def _any_seen(n0, n1, m0, m1, W, S):
    return (n0 <= m1) & ((n1 > m0 - W) | (n0 < S))


@triton.jit
def _fwd(
    Q, K, V, SINK, OUT, LSE, sq, sk, sv, ss, H, G, T, W, S, sm_scale,
    HAS: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    m0 = tl.program_id(0) * BR
    r = m0 + tl.arange(0, BR)
    c = tl.arange(0, D)
    q = tl.load(
        Q + b * sq[0] + h * sq[1] + r[:, None] * sq[2] + c[None, :], (r < T)[:, None], other=0.0
    )
    mx = tl.full([BR], -1e30, tl.float32)
    z = tl.zeros([BR], tl.float32)
    o = tl.zeros([BR, D], tl.float32)
    for n0 in range(0, tl.minimum(m0 + BR, T), BC):
        if _any_seen(n0, n0 + BC - 1, m0, m0 + BR - 1, W, S):
            n = n0 + tl.arange(0, BC)
            kt = K + b * sk[0] + (h // G) * sk[1] + n[None, :] * sk[2] + c[:, None]
            vt = V + b * sv[0] + (h // G) * sv[1] + n[:, None] * sv[2] + c[None, :]
            k = tl.load(kt, mask=(n < T)[None, :], other=0.0)
            v = tl.load(vt, mask=(n < T)[:, None], other=0.0)
            s = tl.dot(q, k, input_precision="ieee") * sm_scale
            d = r[:, None] - n[None, :]
            see = (d >= 0) & ((d < W) | (n < S)[None, :])
            s = tl.where(see, s, -1e30)
            new = tl.maximum(mx, tl.max(s, 1))
            e = tl.where(see, tl.exp(s - new[:, None]), 0.0)
            a = tl.exp(mx - new)
            z = z * a + tl.sum(e, 1)
            o = o * a[:, None] + tl.dot(e.to(v.dtype), v, input_precision="ieee")
            mx = new
    if HAS:
        sink = tl.load(SINK + h * ss).to(tl.float32)
        new = tl.maximum(mx, sink)
        a = tl.exp(mx - new)
        z = z * a + tl.exp(sink - new)
        o = o * a[:, None]
        mx = new
    z = tl.where(r < T, z, 1.0)
    row = (b * H + h) * T + r
    tl.store(
        OUT + row[:, None] * D + c, (o / z[:, None]).to(OUT.dtype.element_ty), (r < T)[:, None]
    )
    tl.store(LSE + row, mx + tl.log(z), r < T)


@triton.jit
def _bwd(
    Q, K, V, SINK, OUT, DO, LSE, DQ, DK, DV, DS, sq, sk, sv, sdo, ss, H, G, T, W, S, sm_scale,
    HAS: tl.constexpr, D: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    m0 = tl.program_id(0) * BR
    r = m0 + tl.arange(0, BR)
    c = tl.arange(0, D)
    row = (b * H + h) * T + r
    live = (r < T)[:, None]
    q = tl.load(Q + b * sq[0] + h * sq[1] + r[:, None] * sq[2] + c[None, :], live, other=0.0)
    do = tl.load(DO + b * sdo[0] + h * sdo[1] + r[:, None] * sdo[2] + c[None, :], live, other=0.0)
    o = tl.load(OUT + row[:, None] * D + c[None, :], live, other=0.0)
    lse = tl.load(LSE + row, r < T, other=0.0)
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)
    if HAS:
        sink = tl.load(SINK + h * ss).to(tl.float32)
        share = tl.where(r < T, tl.exp(sink - lse) * delta, 0.0)
        tl.atomic_add(DS + h, -tl.sum(share, 0))
    dq = tl.zeros([BR, D], tl.float32)
    for n0 in range(0, tl.minimum(m0 + BR, T), BC):
        if _any_seen(n0, n0 + BC - 1, m0, m0 + BR - 1, W, S):
            n = n0 + tl.arange(0, BC)
            there = (n < T)[:, None]
            kt = K + b * sk[0] + (h // G) * sk[1] + n[:, None] * sk[2] + c[None, :]
            vt = V + b * sv[0] + (h // G) * sv[1] + n[:, None] * sv[2] + c[None, :]
            k = tl.load(kt, there, other=0.0)
            v = tl.load(vt, there, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * sm_scale
            d = r[:, None] - n[None, :]
            see = (d >= 0) & ((d < W) | (n < S)[None, :]) & live
            p = tl.where(see, tl.exp(s - lse[:, None]), 0.0)
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            ds = (p * (dp - delta[:, None]) * sm_scale).to(k.dtype)
            dq = tl.dot(ds, k, dq, input_precision="ieee")
            at = ((b * H + h) // G * T + n)[:, None] * D + c[None, :]
            tl.atomic_add(
                DV + at, tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee"), there
            )
            tl.atomic_add(DK + at, tl.dot(tl.trans(ds), q, input_precision="ieee"), there)
    tl.store(DQ + row[:, None] * D + c[None, :], dq.to(DQ.dtype.element_ty), live)


class _SinkWindow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, W, S, sm_scale):
        B, H, T, D = q.shape
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty((B, H, T), dtype=torch.float32, device=q.device)
        ss = 0 if sink is None else sink.stride(0)
        _fwd[(triton.cdiv(T, 32), H, B)](
            q, k, v, sink, out, lse, q.stride(), k.stride(), v.stride(), ss,
            H, H // k.shape[1], T, W, S, sm_scale,
            HAS=sink is not None, D=D, BR=32, BC=32, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, sink, out, lse)
        ctx.rest = (W, S, sm_scale)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, sink, out, lse = ctx.saved_tensors
        if do.stride(-1) != 1:
            do = do.contiguous()
        B, H, T, D = q.shape
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk = torch.zeros(k.shape, dtype=torch.float32, device=q.device)
        dv = torch.zeros(v.shape, dtype=torch.float32, device=q.device)
        dsink = None if sink is None else torch.zeros(H, dtype=torch.float32, device=q.device)
        ss = 0 if sink is None else sink.stride(0)
        _bwd[(triton.cdiv(T, 32), H, B)](
            q, k, v, sink, out, do, lse, dq, dk, dv, dsink,
            q.stride(), k.stride(), v.stride(), do.stride(), ss,
            H, H // k.shape[1], T, *ctx.rest,
            HAS=sink is not None, D=D, BR=32, BC=32, num_stages=1,
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
    T, D = q.shape[2:]
    sm_scale = D**-0.5 if softmax_scale is None else softmax_scale
    return _SinkWindow.apply(
        q, k, v, sink_logits, min(window_size, T), min(num_sink_tokens, T), sm_scale
    )
