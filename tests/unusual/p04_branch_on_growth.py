"""Rescales only where some row's maximum grew, by a scalar branch; the mask is a factor."""


@triton.jit
def _step(q, k, v, m, n, top, den, acc, scale, MASKED: tl.constexpr):
    s = tl.dot(q, k, input_precision="ieee") * scale
    if MASKED:
        seen = (m[:, None] >= n[None, :]).to(tl.float32)
        tile_top = tl.max(s * seen - 1.0e30 * (1.0 - seen), 1)
    else:
        tile_top = tl.max(s, 1)
    if tl.sum((tile_top > top).to(tl.int32), 0) > 0:
        new = tl.maximum(top, tile_top)
        fade = tl.exp2(top - new)
        den *= fade
        acc *= fade[:, None]
        top = new
    p = tl.exp2(tl.minimum(s - top[:, None], 0.0))
    if MASKED:
        p *= seen
    return top, den + tl.sum(p, 1), tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")


@triton.jit
def _branching(
    Q, K, V, OUT, L, sq, sk, sv, H, N, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    i, h, b = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    m = i * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    inside = m[:, None] < N
    q = tl.load(Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d, mask=inside, other=0.0)
    K += b * sk[0] + h * sk[1] + d[:, None]
    V += b * sv[0] + h * sv[1] + d[None, :]
    top = tl.full((BM,), -1.0e30, tl.float32)
    den = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for masked in tl.static_range(2):
        begin = i * BM // BN if masked else 0
        end = tl.cdiv(tl.minimum(i * BM + BM, N), BN) if masked else i * BM // BN
        for j in range(begin, end):
            n = j * BN + tl.arange(0, BN)
            k = tl.load(K + n[None, :] * sk[2], mask=n[None, :] < N, other=0.0)
            v = tl.load(V + n[:, None] * sv[2], mask=n[:, None] < N, other=0.0)
            top, den, acc = _step(q, k, v, m, n, top, den, acc, scale, masked == 1)
    row = (b * H + h) * N + m
    out = acc * (1.0 / den)[:, None]
    tl.store(OUT + row[:, None] * D + d, out.to(OUT.dtype.element_ty), mask=inside)
    tl.store(L + row, (top + tl.log2(den)) * LN_2, mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    b, h, n, d = q.shape
    out, lse = q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)
    scale = default_scale(softmax_scale, d) * LOG2_E.value
    strides = (q.stride(), k.stride(), v.stride())
    _branching[triton.cdiv(n, 64), h, b](
        q, k, v, out, lse, *strides, h, n, scale, D=d, BM=64, BN=32, num_stages=1
    )
    return out, lse
