"""A program takes query tile i and tile n - 1 - i, so that all programs have the same work."""


@triton.jit
def _walk_tile(
    q, K, V, skn, svn, m, n_begin, n_end, N, top, den, acc, scale,
    D: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    d = tl.arange(0, D)
    for start in range(n_begin, n_end, BN):
        n = start + tl.arange(0, BN)
        if MASKED:
            k = tl.load(K + n[None, :] * skn + d[:, None], mask=n[None, :] < N, other=0.0)
            v = tl.load(V + n[:, None] * svn + d[None, :], mask=n[:, None] < N, other=0.0)
        else:
            k = tl.load(K + n[None, :] * skn + d[:, None])
            v = tl.load(V + n[:, None] * svn + d[None, :])
        s = tl.dot(q, k, input_precision="ieee") * scale
        if MASKED:
            s += tl.where(m[:, None] >= n[None, :], 0, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - now[:, None])
        fade = tl.exp2(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    return top, den, acc


@triton.jit
def _one_tile(
    tile, Q, K, V, OUT, L, sqm, skn, svn, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    m = tile * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + m[:, None] * sqm + d[None, :], mask=m[:, None] < N, other=0.0)
    top = tl.zeros([BM], tl.float32) - float("inf")
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    middle = tile * BM // BN * BN
    end = tl.minimum(N, (tile + 1) * BM)
    top, den, acc = _walk_tile(
        q, K, V, skn, svn, m, 0, middle, N, top, den, acc, scale, D, BN, False
    )
    top, den, acc = _walk_tile(
        q, K, V, skn, svn, m, middle, end, N, top, den, acc, scale, D, BN, True
    )
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + m[:, None] * D + d[None, :], out, mask=m[:, None] < N)
    tl.store(L + m, top * 0.6931471805599453 + tl.log(den), mask=m < N)


@triton.jit
def _paired(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(1) // H).to(tl.int64)
    h = (tl.program_id(1) % H).to(tl.int64)
    Q += b * sqb + h * sqh
    K += b * skb + h * skh
    V += b * svb + h * svh
    OUT += (b * H + h) * N * D
    L += (b * H + h) * N
    tiles = tl.cdiv(N, BM)
    tile = tl.program_id(0)
    _one_tile(tile, Q, K, V, OUT, L, sqm, skn, svn, N, scale, D, BM, BN)
    if tiles - 1 - tile != tile:
        _one_tile(tiles - 1 - tile, Q, K, V, OUT, L, sqm, skn, svn, N, scale, D, BM, BN)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    b, h, n, d = q.shape
    scale = 1.4426950408889634 * (d**-0.5 if softmax_scale is None else softmax_scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    grid = (triton.cdiv(triton.cdiv(n, 64), 2), b * h)
    _paired[grid](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], h, n, scale,
        D=d, BM=64, BN=32, num_stages=1,
    )  # fmt: skip
    return out, lse
