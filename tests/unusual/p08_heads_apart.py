# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""dK and dV of each query head apart, summed over the group in PyTorch; delta comes with dQ."""


@triton.jit
def _forward(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, G, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    lo = tl.program_id(0) * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, tl.minimum(lo + BM, N), BN):
        n = start + tl.arange(0, BN)
        ok = n[:, None] < N
        k = tl.load(K + b * skb + h // G * skh + n[:, None] * skn + d, ok, other=0.0)
        v = tl.load(V + b * svb + h // G * svh + n[:, None] * svn + d, ok, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(n[None, :] <= m[:, None], s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        fade = tl.exp2(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    row = bh * N + m
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + d, out, mask=m[:, None] < N)
    tl.store(L + row, top + tl.log2(den), mask=m < N)  # in base 2, for the kernels below


@triton.jit
def _backward_q(
    Q, K, V, OUT, DO, L, DELTA, DQ,
    sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, sdb, sdh, sdm, H, G, N, scale, scale_log2,
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
    o = tl.load(OUT + row[:, None] * D + d, inside, other=0.0)
    lse = tl.load(L + row, m < N, other=0.0)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    tl.store(DELTA + row, delta, m < N)
    dq = tl.zeros([BM, D], tl.float32)
    for start in range(0, tl.minimum(lo + BM, N), BN):
        n = start + tl.arange(0, BN)
        ok = n[:, None] < N
        k = tl.load(K + b * skb + h // G * skh + n[:, None] * skn + d, ok, other=0.0)
        v = tl.load(V + b * svb + h // G * svh + n[:, None] * svn + d, ok, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        p = tl.where(n[None, :] <= m[:, None], tl.exp2(s - lse[:, None]), 0.0)
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None]) * scale
        dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
    tl.store(DQ + row[:, None] * D + d, dq.to(DQ.dtype.element_ty), mask=inside)


@triton.jit
def _backward_kv(
    Q, K, V, DO, L, DELTA, DK, DV,
    sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, sdb, sdh, sdm, H, G, N, scale, scale_log2,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    lo = tl.program_id(0) * BN
    n = lo + tl.arange(0, BN)
    d = tl.arange(0, D)
    ok = n[:, None] < N
    k = tl.load(K + b * skb + h // G * skh + n[:, None] * skn + d, ok, other=0.0)
    v = tl.load(V + b * svb + h // G * svh + n[:, None] * svn + d, ok, other=0.0)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    for start in range(lo // BM * BM, N, BM):
        m = start + tl.arange(0, BM)
        inside = m[:, None] < N
        q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, inside, other=0.0)
        do = tl.load(DO + b * sdb + h * sdh + m[:, None] * sdm + d, inside, other=0.0)
        lse = tl.load(L + bh * N + m, m < N, other=float("inf"))
        delta = tl.load(DELTA + bh * N + m, m < N, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2
        p = tl.exp2(tl.where(n[None, :] <= m[:, None], s - lse[:, None], float("-inf")))
        dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = p * (dp - delta[:, None])
        dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
    row = bh * N + n
    tl.store(DK + row[:, None] * D + d, dk * scale, mask=ok)
    tl.store(DV + row[:, None] * D + d, dv, mask=ok)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        b, h, n, d = q.shape
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
        _forward[(triton.cdiv(n, 64), b * h)](
            q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            h, h // k.shape[1], n, scale * 1.4426950408889634, D=d, BM=64, BN=32, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.scale = scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, out, lse = ctx.saved_tensors
        b, h, n, d = q.shape
        do = do if do.stride(-1) == 1 else do.contiguous()
        delta = torch.empty_like(lse)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk, dv = (torch.empty(q.shape, dtype=torch.float32, device=q.device) for _ in range(2))
        strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *do.stride()[:3])
        sizes = (h, h // k.shape[1], n, ctx.scale, ctx.scale * 1.4426950408889634)
        _backward_q[(triton.cdiv(n, 32), b * h)](
            q, k, v, out, do, lse, delta, dq, *strides, *sizes, D=d, BM=32, BN=32, num_stages=1
        )
        _backward_kv[(triton.cdiv(n, 32), b * h)](
            q, k, v, do, lse, delta, dk, dv, *strides, *sizes, D=d, BM=32, BN=32, num_stages=1
        )
        group = (k.shape[1], h // k.shape[1])
        dk, dv = (x.unflatten(1, group).sum(2) for x in (dk, dv))
        return dq, dk.to(k.dtype), dv.to(v.dtype), None


def gqa_attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    return _Attention.apply(q, k, v, q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale)
