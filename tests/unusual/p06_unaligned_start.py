"""The walk begins at the first visible key itself, unaligned; tiles of 16 queries by 64 keys."""


@triton.jit
def _unaligned(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, G, N, W, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // H, bh % H
    lo = (tl.num_programs(1) - 1 - tl.program_id(1)) * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    begin = tl.maximum(lo - W + 1, 0)
    end = tl.minimum(lo + BM, N)
    k_ptrs = K + b * skb + h // G * skh + (begin + tl.arange(0, BN))[:, None] * skn + d[None, :]
    v_ptrs = V + b * svb + h // G * svh + (begin + tl.arange(0, BN))[:, None] * svn + d[None, :]
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in tl.range(begin, end, BN):
        n = start + tl.arange(0, BN)
        k = tl.load(k_ptrs, mask=(n < end)[:, None], other=0.0)
        v = tl.load(v_ptrs, mask=(n < end)[:, None], other=0.0)
        k_ptrs += BN * skn
        v_ptrs += BN * svn
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where((n[None, :] <= m[:, None]) & (n[None, :] + W > m[:, None]), s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        base = tl.where(now > float("-inf"), now, 0.0)[:, None]
        p = tl.exp2(s - base)
        fade = tl.exp2(top - tl.reshape(base, (BM,)))
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    row = bh * N + m
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + d[None, :], out, mask=m[:, None] < N)
    tl.store(L + row, 0.6931471805599453 * (top + tl.log2(den)), mask=m < N)


def attention(q, k, v, *, window_size, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    b, h, n, d = q.shape
    scale = 1.4426950408889634 * (d**-0.5 if softmax_scale is None else softmax_scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _unaligned[(b * h, triton.cdiv(n, 16))](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        h, h // k.shape[1], n, min(window_size, n), scale, D=d, BM=16, BN=64, num_stages=1,
    )  # fmt: skip
    return out, lse
