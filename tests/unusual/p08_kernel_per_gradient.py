"""One kernel per gradient; delta is computed anew wherever it is needed, max and sum are saved."""


@triton.jit
def _tile(X, start, stride, N, B: tl.constexpr, D: tl.constexpr):
    rows = start + tl.arange(0, B)
    ptrs = X + rows[:, None] * stride + tl.arange(0, D)[None, :]
    return tl.load(ptrs, mask=rows[:, None] < N, other=0.0)


@triton.jit
def _weights(q, k, lo_m, lo_n, stats, N, scale, BM: tl.constexpr, BN: tl.constexpr):
    m = lo_m + tl.arange(0, BM)
    n = lo_n + tl.arange(0, BN)
    largest = tl.load(stats + 2 * m, mask=m < N, other=0.0)
    total = tl.load(stats + 2 * m + 1, mask=m < N, other=1.0)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = (n[None, :] <= m[:, None]) & (m[:, None] < N)
    return tl.where(seen, tl.exp(s - largest[:, None]) / total[:, None], 0.0)


@triton.jit
def _slope(p, o, do, v):
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)
    return p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None])


@triton.jit
def _forward(
    Q, K, V, OUT, STATS, sq, sk, sv, H, G, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    lo = tl.program_id(0) * BM
    m = lo + tl.arange(0, BM)
    q = _tile(Q + b * sq[0] + h * sq[1], lo, sq[2], N, BM, D)
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, tl.minimum(lo + BM, N), BN):
        k = _tile(K + b * sk[0] + h // G * sk[1], start, sk[2], N, BN, D)
        v = _tile(V + b * sv[0] + h // G * sv[1], start, sv[2], N, BN, D)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(start + tl.arange(0, BN)[None, :] <= m[:, None], s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        fade = tl.exp(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = now
    row = (b * H + h) * N + m
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + tl.arange(0, D), out, mask=m[:, None] < N)
    tl.store(STATS + 2 * row, top, mask=m < N)
    tl.store(STATS + 2 * row + 1, den, mask=m < N)


@triton.jit
def _dq(
    Q, K, V, OUT, DO, STATS, DQ, sq, sk, sv, sd, H, G, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    lo = tl.program_id(0) * BM
    row = (b * H + h) * N
    q = _tile(Q + b * sq[0] + h * sq[1], lo, sq[2], N, BM, D)
    do = _tile(DO + b * sd[0] + h * sd[1], lo, sd[2], N, BM, D)
    o = _tile(OUT + row * D, lo, D, N, BM, D)
    dq = tl.zeros([BM, D], tl.float32)
    for start in range(0, tl.minimum(lo + BM, N), BN):
        k = _tile(K + b * sk[0] + h // G * sk[1], start, sk[2], N, BN, D)
        v = _tile(V + b * sv[0] + h // G * sv[1], start, sv[2], N, BN, D)
        p = _weights(q, k, lo, start, STATS + 2 * row, N, scale, BM, BN)
        dq = tl.dot(_slope(p, o, do, v).to(k.dtype), k, dq, input_precision="ieee")
    m = lo + tl.arange(0, BM)
    ptrs = DQ + (row + m)[:, None] * D + tl.arange(0, D)
    tl.store(ptrs, (dq * scale).to(DQ.dtype.element_ty), mask=m[:, None] < N)


@triton.jit
def _dv(
    Q, K, DO, STATS, DV, sq, sk, sd, H, G, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    b, hk = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    lo = tl.program_id(0) * BN
    k = _tile(K + b * sk[0] + hk * sk[1], lo, sk[2], N, BN, D)
    dv = tl.zeros([BN, D], tl.float32)
    for h in range(hk * G, hk * G + G):
        for start in range(lo // BM * BM, N, BM):
            q = _tile(Q + b * sq[0] + h * sq[1], start, sq[2], N, BM, D)
            do = _tile(DO + b * sd[0] + h * sd[1], start, sd[2], N, BM, D)
            stats = STATS + 2 * (b * H + h) * N
            p = _weights(q, k, start, lo, stats, N, scale, BM, BN)
            dv = tl.dot(tl.trans(p.to(do.dtype)), do, dv, input_precision="ieee")
    n = lo + tl.arange(0, BN)
    ptrs = DV + ((b * (H // G) + hk) * N + n)[:, None] * D + tl.arange(0, D)
    tl.store(ptrs, dv.to(DV.dtype.element_ty), mask=n[:, None] < N)


@triton.jit
def _dk(
    Q, K, V, OUT, DO, STATS, DK, sq, sk, sv, sd, H, G, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    b, hk = tl.program_id(2).to(tl.int64), tl.program_id(1).to(tl.int64)
    lo = tl.program_id(0) * BN
    k = _tile(K + b * sk[0] + hk * sk[1], lo, sk[2], N, BN, D)
    v = _tile(V + b * sv[0] + hk * sv[1], lo, sv[2], N, BN, D)
    dk = tl.zeros([BN, D], tl.float32)
    for h in range(hk * G, hk * G + G):
        for start in range(lo // BM * BM, N, BM):
            q = _tile(Q + b * sq[0] + h * sq[1], start, sq[2], N, BM, D)
            do = _tile(DO + b * sd[0] + h * sd[1], start, sd[2], N, BM, D)
            o = _tile(OUT + (b * H + h) * N * D, start, D, N, BM, D)
            stats = STATS + 2 * (b * H + h) * N
            p = _weights(q, k, start, lo, stats, N, scale, BM, BN)
            ds = _slope(p, o, do, v) * scale
            dk = tl.dot(tl.trans(ds.to(q.dtype)), q, dk, input_precision="ieee")
    n = lo + tl.arange(0, BN)
    ptrs = DK + ((b * (H // G) + hk) * N + n)[:, None] * D + tl.arange(0, D)
    tl.store(ptrs, dk.to(DK.dtype.element_ty), mask=n[:, None] < N)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, scale):
        b, h, n, d = q.shape
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        stats = torch.empty((b, h, n, 2), dtype=torch.float32, device=q.device)
        _forward[(triton.cdiv(n, 32), h, b)](
            q, k, v, out, stats, q.stride()[:3], k.stride()[:3], v.stride()[:3],
            h, h // k.shape[1], n, scale, D=d, BM=32, BN=32, num_stages=1,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, out, stats)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx, do):
        q, k, v, out, stats = ctx.saved_tensors
        b, h, n, d = q.shape
        hk = k.shape[1]
        do = do.contiguous()
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
        dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
        sq, sk, sv, sd = (x.stride()[:3] for x in (q, k, v, do))
        sizes = (h, h // hk, n, ctx.scale)
        tiles = {"D": d, "BM": 32, "BN": 32, "num_stages": 1}
        _dq[(triton.cdiv(n, 32), h, b)](
            q, k, v, out, do, stats, dq, sq, sk, sv, sd, *sizes, **tiles
        )
        _dv[(triton.cdiv(n, 32), hk, b)](q, k, do, stats, dv, sq, sk, sd, *sizes, **tiles)
        _dk[(triton.cdiv(n, 32), hk, b)](
            q, k, v, out, do, stats, dk, sq, sk, sv, sd, *sizes, **tiles
        )
        return dq, dk, dv, None


def gqa_attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else float(softmax_scale)
    return _Attention.apply(q, k, v, scale)
