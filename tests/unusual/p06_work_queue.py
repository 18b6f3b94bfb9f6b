"""Programs take tiles of queries from a counter in memory until none is left."""


@triton.jit
def _queued(
    Q, K, V, OUT, L, COUNTER, sq, sk, sv, H, G, N, W, total, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(N, BM)
    d = tl.arange(0, D)
    work = tl.atomic_add(COUNTER, 1)
    while work < total:
        lo = (tiles - 1 - work % tiles) * BM
        h = (work // tiles % H).to(tl.int64)
        b = (work // tiles // H).to(tl.int64)
        m = lo + tl.arange(0, BM)
        q = tl.load(Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d, m[:, None] < N, other=0.0)
        top = tl.full([BM], -1.0e30, tl.float32)
        den = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, D], tl.float32)
        begin = tl.maximum(lo - W + 1, 0) // BN * BN
        for start in range(begin, tl.minimum(lo + BM, N), BN):
            n = start + tl.arange(0, BN)
            ok = n[:, None] < N
            k = tl.load(K + b * sk[0] + h // G * sk[1] + n[:, None] * sk[2] + d, ok, other=0.0)
            v = tl.load(V + b * sv[0] + h // G * sv[1] + n[:, None] * sv[2] + d, ok, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            age = m[:, None] - n[None, :]
            # A row without a key so far has weights of 1, which the first true maximum fades to 0.
            s = tl.where((age >= 0) & (age < W), s, -1.0e30)
            now = tl.maximum(top, tl.max(s, 1))
            p = tl.exp(s - now[:, None])
            fade = tl.exp(top - now)
            den = den * fade + tl.sum(p, 1)
            acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
            top = now
        row = (b * H + h) * N + m
        out = (acc / den[:, None]).to(OUT.dtype.element_ty)
        tl.store(OUT + row[:, None] * D + d, out, mask=m[:, None] < N)
        tl.store(L + row, top + tl.log(den), mask=m < N)
        work = tl.atomic_add(COUNTER, 1)


def attention(q, k, v, *, window_size, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    counter = torch.zeros(1, dtype=torch.int32, device=q.device)
    total = triton.cdiv(n, 32) * b * h
    _queued[(min(total, 256),)](
        q, k, v, out, lse, counter, q.stride()[:3], k.stride()[:3], v.stride()[:3],
        h, h // k.shape[1], n, min(window_size, n), total,
        d**-0.5 if softmax_scale is None else softmax_scale, D=d, BM=32, BN=64, num_stages=1,
    )  # fmt: skip
    return out, lse
