# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""Delta is summed with dQ, from the weights; the group lies inside the loop over queries."""

from torch.amp import custom_bwd, custom_fwd


@triton.jit
def p_and_dp(q, do, kp, vp, lse, m, n, skn, svn, N, scale, D: tl.constexpr):
    d = tl.arange(0, D)
    k = tl.load(kp + n[:, None] * skn + d[None, :], mask=n[:, None] < N, other=0.0)
    v = tl.load(vp + n[:, None] * svn + d[None, :], mask=n[:, None] < N, other=0.0)
    s = tl.dot(q, k.T, input_precision="ieee") * scale
    p = tl.where((m[:, None] >= n[None, :]) & (m < N)[:, None], tl.exp(s - lse[:, None]), 0.0)
    dp = tl.dot(do, v.T, input_precision="ieee")
    return k, p, dp


@triton.jit
def dq_kernel(
    Q,
    K,
    V,
    DO,
    LSE,
    DELTA,
    DQ,
    sq,
    sk,
    sv,
    sdo,
    H,
    G,
    N,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    t, z = tl.program_id(0), tl.program_id(1)
    b, h = z // H, z % H
    m = t * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(
        Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d[None, :], mask=m[:, None] < N, other=0.0
    )
    do = tl.load(
        DO + b * sdo[0] + h * sdo[1] + m[:, None] * sdo[2] + d[None, :],
        mask=m[:, None] < N,
        other=0.0,
    )
    lse = tl.load(LSE + z * N + m, mask=m < N, other=0.0)
    kp = K + b * sk[0] + (h // G) * sk[1]
    vp = V + b * sv[0] + (h // G) * sv[1]
    # one pass: sum(p * dp * k) and sum(p * k) and sum(p * dp)
    dq = tl.zeros([BM, D], tl.float32)
    pk = tl.zeros([BM, D], tl.float32)
    delta = tl.zeros([BM], tl.float32)
    for n0 in range(0, tl.minimum(t * BM + BM, N), BN):
        n = n0 + tl.arange(0, BN)
        k, p, dp = p_and_dp(q, do, kp, vp, lse, m, n, sk[2], sv[2], N, scale, D)
        delta += tl.sum(p * dp, 1)
        dq += tl.dot(p * dp, k.to(tl.float32), input_precision="ieee")
        pk += tl.dot(p, k.to(tl.float32), input_precision="ieee")
    dq = (dq - pk * delta[:, None]) * scale
    tl.store(DELTA + z * N + m, delta, mask=m < N)
    tl.store(DQ + (z * N + m[:, None]) * D + d[None, :], dq, mask=m[:, None] < N)


@triton.jit
def dkv_kernel(
    Q,
    K,
    V,
    DO,
    LSE,
    DELTA,
    DK,
    DV,
    sq,
    sk,
    sv,
    sdo,
    HK,
    G,
    N,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    t, z = tl.program_id(0), tl.program_id(1)
    b, hk = z // HK, z % HK
    n = t * BN + tl.arange(0, BN)
    d = tl.arange(0, D)
    k = tl.load(
        K + b * sk[0] + hk * sk[1] + n[:, None] * sk[2] + d[None, :], mask=n[:, None] < N, other=0.0
    )
    v = tl.load(
        V + b * sv[0] + hk * sv[1] + n[:, None] * sv[2] + d[None, :], mask=n[:, None] < N, other=0.0
    )
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    for m0 in range(t * BN // BM * BM, N, BM):
        m = m0 + tl.arange(0, BM)
        ok = (m < N)[:, None]
        for g in range(G):
            h = hk * G + g
            row = (b * HK * G + h) * N + m
            q = tl.load(
                Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d[None, :], mask=ok, other=0.0
            )
            do = tl.load(
                DO + b * sdo[0] + h * sdo[1] + m[:, None] * sdo[2] + d[None, :], mask=ok, other=0.0
            )
            lse = tl.load(LSE + row, mask=m < N, other=0.0)
            delta = tl.load(DELTA + row, mask=m < N, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            p = tl.where((m[:, None] >= n[None, :]) & ok, tl.exp(s - lse[:, None]), 0.0)
            dv = tl.dot(tl.trans(p).to(do.dtype), do, acc=dv, input_precision="ieee")
            ds = p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])
            dk = tl.dot(tl.trans(ds).to(q.dtype), q, acc=dk, input_precision="ieee")
    place = (z * N + n[:, None]) * D + d[None, :]
    tl.store(DK + place, dk * scale, mask=n[:, None] < N)
    tl.store(DV + place, dv, mask=n[:, None] < N)


class GQA(torch.autograd.Function):
    @staticmethod
    @custom_fwd(device_type="cuda")
    def forward(ctx, q, k, v, scale):
        out, lse = gqa_forward(q, k, v, scale)
        ctx.save_for_backward(q, k, v, lse)
        ctx.scale = scale
        return out

    @staticmethod
    @custom_bwd(device_type="cuda")
    def backward(ctx, do):
        q, k, v, lse = ctx.saved_tensors
        if do.stride(-1) != 1:
            do = do.contiguous()
        B, H, N, D = q.shape
        HK = k.shape[1]
        dq = dk = dv = None
        delta = torch.empty_like(lse)
        st = (q.stride()[:3], k.stride()[:3], v.stride()[:3], do.stride()[:3])
        if any(ctx.needs_input_grad[:3]):
            dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
            dq_kernel[(triton.cdiv(N, 32), B * H)](
                q, k, v, do, lse, delta, dq, *st, H, H // HK, N, ctx.scale, D=D, BM=32, BN=32
            )
        if ctx.needs_input_grad[1] or ctx.needs_input_grad[2]:
            dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
            dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
            dkv_kernel[(triton.cdiv(N, 32), B * HK)](
                q, k, v, do, lse, delta, dk, dv, *st, HK, H // HK, N, ctx.scale, D=D, BM=32, BN=32
            )
        return dq, dk, dv, None


def gqa_attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    return GQA.apply(q, k, v, default_scale(softmax_scale, q.shape[-1]))
