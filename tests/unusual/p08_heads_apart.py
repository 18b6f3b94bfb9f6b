"""dK and dV of each query head apart, summed over the group in PyTorch; delta comes with dQ."""


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
    lse = tl.load(L + row, m < N, other=0.0) * 1.4426950408889634
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
        lse = tl.load(L + bh * N + m, m < N, other=float("inf")) * 1.4426950408889634
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


def _launch_delta(out, dout):
    return out, torch.empty(out.shape[:3], dtype=torch.float32, device=out.device)


def _rest(q, k, v, do, scale):
    strides = (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *do.stride()[:3])
    h, n = q.shape[1:3]
    return (*strides, h, h // k.shape[1], n, scale, scale * 1.4426950408889634)


def _launch_dq(q, k, v, do, lse, delta, scale):
    b, h, n, d = q.shape
    out, delta = delta
    dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _backward_q[(triton.cdiv(n, 32), b * h)](
        q, k, v, out, do, lse, delta, dq, *_rest(q, k, v, do, scale), D=d, BM=32, BN=32,
        num_stages=1,
    )  # fmt: skip
    return dq


def _launch_dkdv(q, k, v, do, lse, delta, scale):
    b, h, n, d = q.shape
    dk, dv = (torch.empty(q.shape, dtype=torch.float32, device=q.device) for _ in range(2))
    _backward_kv[(triton.cdiv(n, 32), b * h)](
        q, k, v, do, lse, delta[1], dk, dv, *_rest(q, k, v, do, scale), D=d, BM=32, BN=32,
        num_stages=1,
    )  # fmt: skip
    group = (k.shape[1], h // k.shape[1])
    dk, dv = (x.unflatten(1, group).sum(2) for x in (dk, dv))
    return dk.to(k.dtype), dv.to(v.dtype)
