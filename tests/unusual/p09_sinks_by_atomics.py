"""Sinks add up by atomics, other keys are stored; the gradient of the logit comes with dQ."""

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _tile(p, ids, stride, T, D: tl.constexpr):
    return tl.load(
        p + ids.to(tl.int64)[:, None] * stride + tl.arange(0, D)[None, :],
        mask=(ids < T)[:, None],
        other=0.0,
    )


@triton.jit
def _fwd(
    Q, K, V, Z, OUT, LSE, sq, sk, sv, sz, H, G, T, W, S, scale, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    K += b * sk[0] + h // G * sk[1]
    V += b * sv[0] + h // G * sv[1]
    m = i * BM + tl.arange(0, BM)
    q = _tile(Q + b * sq[0] + h * sq[1], m, sq[2], T, D)
    mx = tl.full([BM], float("-inf"), tl.float32)
    sm = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = tl.minimum(i * BM + BM, T)
    left = tl.maximum(i * BM - W + 1, 0) // BN * BN
    sink_end = tl.minimum(S, left)
    for start in range(0, sink_end, BN):
        n = start + tl.arange(0, BN)
        k = _tile(K, n, sk[2], T, D)
        v = _tile(V, n, sv[2], T, D)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        s = tl.where((n < sink_end)[None, :], s, float("-inf"))
        new = tl.maximum(mx, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        f = tl.exp(mx - new)
        sm = sm * f + tl.sum(p, 1)
        acc = acc * f[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        mx = new
    for start in range(left, end, BN):
        n = start + tl.arange(0, BN)
        k = _tile(K, n, sk[2], T, D)
        v = _tile(V, n, sv[2], T, D)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        gap = m[:, None] - n[None, :]
        s = tl.where((gap >= 0) & ((gap < W) | (n < S)[None, :]), s, float("-inf"))
        new = tl.maximum(mx, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp(s - safe[:, None])
        f = tl.exp(mx - safe)
        sm = sm * f + tl.sum(p, 1)
        acc = acc * f[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        mx = new
    if Z is not None:
        z = tl.load(Z + h * sz).to(tl.float32)
        new = tl.maximum(mx, z)
        f = tl.exp(mx - new)
        sm = sm * f + tl.exp(z - new)
        acc *= f[:, None]
        mx = new
    tl.store(
        OUT + (bh * T + m)[:, None] * D + tl.arange(0, D)[None, :],
        (acc / sm[:, None]).to(OUT.dtype.element_ty),
        mask=(m < T)[:, None],
    )
    tl.store(LSE + bh * T + m, mx + tl.log(sm), mask=m < T)


@triton.jit
def _dq_dz(
    Q, K, V, Z, OUT, DO, LSE, DELTA, DQ, DZ, SK, SV, sq, sk, sv, so, sd, sz, H, G, T, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """dQ, delta, the gradient of the logit, and what sinks before the window get."""
    i = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    kv = bh // H * (H // G) + h // G
    K += b * sk[0] + h // G * sk[1]
    V += b * sv[0] + h // G * sv[1]
    m = i * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = _tile(Q + b * sq[0] + h * sq[1], m, sq[2], T, D)
    o = _tile(OUT + b * so[0] + h * so[1], m, so[2], T, D)
    do = _tile(DO + b * sd[0] + h * sd[1], m, sd[2], T, D)
    lse = tl.load(LSE + bh * T + m, mask=m < T, other=float("inf"))
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(DELTA + bh * T + m, delta, mask=m < T)
    if Z is not None:
        z = tl.load(Z + h * sz).to(tl.float32)
        tl.atomic_add(DZ + h, -tl.sum(tl.exp(z - lse) * delta, 0))
    dq = tl.zeros([BM, D], tl.float32)
    left = tl.maximum(i * BM - W + 1, 0) // BN * BN
    for start in range(left, tl.minimum(i * BM + BM, T), BN):
        n = start + tl.arange(0, BN)
        k = _tile(K, n, sk[2], T, D)
        v = _tile(V, n, sv[2], T, D)
        gap = m[:, None] - n[None, :]
        see = (gap >= 0) & ((gap < W) | (n < S)[None, :])
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        p = tl.where(see, tl.exp(s - lse[:, None]), 0.0)
        ds = p * (tl.dot(do, v.T, input_precision="ieee") - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    for start in range(0, tl.minimum(S, left), BN):
        n = start + tl.arange(0, BN)
        k = _tile(K, n, sk[2], T, D)
        v = _tile(V, n, sv[2], T, D)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        p = tl.where((n < tl.minimum(S, left))[None, :], tl.exp(s - lse[:, None]), 0.0)
        ds = p * (tl.dot(do, v.T, input_precision="ieee") - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    tl.store(
        DQ + (bh * T + m)[:, None] * D + d[None, :],
        (dq * scale).to(DQ.dtype.element_ty),
        mask=(m < T)[:, None],
    )
    for start in range(0, tl.minimum(S, end_of_far(i, BM, W)), BN):
        n = start + tl.arange(0, BN)
        k = _tile(K, n, sk[2], T, D)
        v = _tile(V, n, sv[2], T, D)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        far = (n < S)[None, :] & (m[:, None] - n[None, :] >= W)
        p = tl.where(far, tl.exp(s - lse[:, None]), 0.0)
        ds = p * (tl.dot(do, v.T, input_precision="ieee") - delta[:, None])
        at = (kv * S + n)[:, None] * D + d[None, :]
        tl.atomic_add(
            SV + at, tl.dot(p.to(do.dtype).T, do, input_precision="ieee"), mask=(n < S)[:, None]
        )
        tl.atomic_add(
            SK + at, tl.dot(ds.to(q.dtype).T, q, input_precision="ieee"), mask=(n < S)[:, None]
        )


@triton.jit
def end_of_far(i, BM: tl.constexpr, W):
    return tl.maximum(i * BM + BM - W, 0)


@triton.jit
def _dkdv(
    Q, K, V, DO, LSE, DELTA, SK, SV, DK, DV, sq, sk, sv, sd, H, G, T, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    HKV = H // G
    d = tl.arange(0, D)
    j = tl.program_id(0)
    bk = tl.program_id(1).to(tl.int64)
    b, hk = bk // HKV, bk % HKV
    n = j * BN + tl.arange(0, BN)
    k = _tile(K + b * sk[0] + hk * sk[1], n, sk[2], T, D)
    v = _tile(V + b * sv[0] + hk * sv[1], n, sv[2], T, D)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    lo = j * BN // BM * BM
    steps = tl.cdiv(tl.minimum(j * BN + BN - 1 + W, T) - lo, BM)
    for t in range(G * steps):
        h = hk * G + t // steps
        m = lo + t % steps * BM + tl.arange(0, BM)
        row = (b * H + h) * T
        q = _tile(Q + b * sq[0] + h * sq[1], m, sq[2], T, D)
        do = _tile(DO + b * sd[0] + h * sd[1], m, sd[2], T, D)
        lse = tl.load(LSE + row + m, mask=m < T, other=float("inf"))
        delta = tl.load(DELTA + row + m, mask=m < T, other=0.0)
        gap = m[None, :] - n[:, None]
        st = tl.dot(k, q.T, input_precision="ieee") * scale
        pt = tl.where((gap >= 0) & (gap < W), tl.exp(st - lse[None, :]), 0.0)
        dv += tl.dot(pt.to(do.dtype), do, input_precision="ieee")
        dst = pt * (tl.dot(v, do.T, input_precision="ieee") - delta[None, :])
        dk += tl.dot(dst.to(q.dtype), q, input_precision="ieee")
    if j * BN < S:
        at = (bk * S + n)[:, None] * D + d[None, :]
        dk += tl.load(SK + at, mask=(n < S)[:, None], other=0.0)
        dv += tl.load(SV + at, mask=(n < S)[:, None], other=0.0)
    at = (bk * T + n)[:, None] * D + d[None, :]
    tl.store(DK + at, (dk * scale).to(DK.dtype.element_ty), mask=(n < T)[:, None])
    tl.store(DV + at, dv.to(DV.dtype.element_ty), mask=(n < T)[:, None])


class _Attn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, z, W, S, scale):
        b, h, t, d = q.shape
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty((b, h, t), dtype=torch.float32, device=q.device)
        sz = 0 if z is None else z.stride(0)
        _fwd[(triton.cdiv(t, 32), b * h)](
            q, k, v, z, o, lse, q.stride(), k.stride(), v.stride(), sz, h, h // k.shape[1], t, W,
            S, scale, D=d, BM=32, BN=16, num_warps=4,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, z, o, lse)
        ctx.args = W, S, scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, z, o, lse = ctx.saved_tensors
        W, S, scale = ctx.args
        if do.stride(-1) != 1:
            do = do.contiguous()
        b, h, t, d = q.shape
        hk = k.shape[1]
        delta = torch.empty_like(lse)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        dz = torch.zeros(h, dtype=torch.float32, device=q.device)
        sums = torch.zeros((2, b * hk, S, d), dtype=torch.float32, device=q.device)
        sz = 0 if z is None else z.stride(0)
        _dq_dz[(triton.cdiv(t, 32), b * h)](
            q, k, v, z, o, do, lse, delta, dq, dz, sums[0], sums[1], q.stride(), k.stride(),
            v.stride(), o.stride(), do.stride(), sz, h, h // hk, t, W, S, scale, D=d, BM=32,
            BN=16, num_warps=4, num_stages=1,
        )  # fmt: skip
        _dkdv[(triton.cdiv(t, 32), b * hk)](
            q, k, v, do, lse, delta, sums[0], sums[1], dk, dv, q.stride(), k.stride(), v.stride(),
            do.stride(), h, h // hk, t, W, S, scale, D=d, BM=16, BN=32, num_warps=4, num_stages=1,
        )  # fmt: skip
        return dq, dk, dv, None if z is None else dz.to(z.dtype), None, None, None


def sink_window_attention(
    q, k, v, *, window_size, num_sink_tokens=0, sink_logits=None, softmax_scale=None
):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    check_sink_logits(sink_logits, q)
    t = q.shape[2]
    return _Attn.apply(
        q, k, v, sink_logits, min(window_size, t), min(num_sink_tokens, t),
        default_scale(softmax_scale, q.shape[3]),
    )  # fmt: skip
