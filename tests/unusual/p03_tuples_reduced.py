"""Maximum and sum are reduced together, as pairs; out is normalised in every round."""


@triton.jit
def _pair(max_a, sum_a, max_b, sum_b):
    top = tl.maximum(max_a, max_b)
    safe = tl.where(top == float("-inf"), 0.0, top)
    return top, sum_a * tl.exp(max_a - safe) + sum_b * tl.exp(max_b - safe)


@triton.jit
def _row_pairs(x_ptr, lse_ptr, cols, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    top = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * stride + at, mask=at < cols, other=float("-inf")).to(tl.float32)
        top, total = _pair(top, total, x, tl.where(at < cols, 1.0, 0.0))
    top, total = tl.reduce((top, total), 0, _pair)
    tl.store(lse_ptr + row, top + tl.log(total))


def row_logsumexp(x):
    lse = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    _row_pairs[(x.shape[0],)](x, lse, x.shape[1], x.stride(0), BLOCK=128)
    return lse


@triton.jit
def _normalised(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, M, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    tl.static_assert(BN >= 16)
    bh = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + bh // H * sqb + bh % H * sqh + m[:, None] * sqm + d, m[:, None] < M, other=0.0)
    lse = tl.full([BM], float("-inf"), tl.float32)
    out = tl.zeros([BM, D], tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        ok = n[:, None] < N
        k = tl.load(K + bh // H * skb + bh % H * skh + n[:, None] * skn + d, ok, other=0.0)
        v = tl.load(V + bh // H * svb + bh % H * svh + n[:, None] * svn + d, ok, other=0.0)
        s = tl.dot(q, tl.trans(k), allow_tf32=False) * scale
        s = tl.where((n < N)[None, :], s, float("-inf"))
        ones = tl.where((n < N)[None, :] & (m >= 0)[:, None], 1.0, 0.0)
        top, total = tl.reduce((s, ones), 1, _pair)
        new = tl.maximum(lse, top) + tl.log(
            tl.exp(lse - tl.maximum(lse, top)) + total * tl.exp(top - tl.maximum(lse, top))
        )
        p = tl.exp(s - new[:, None])
        out = out * tl.exp(lse - new)[:, None] + tl.dot(p.to(v.dtype), v, allow_tf32=False)
        lse = new
    row = bh * M + m
    tl.store(OUT + row[:, None] * D + d, out.to(OUT.dtype.element_ty), mask=m[:, None] < M)
    tl.store(L + row, lse, mask=m < M)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    b, h, m, d = q.shape
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, m), dtype=torch.float32, device=q.device)
    _normalised[(triton.cdiv(m, 64), b * h)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        h, m, k.shape[2], scale, D=d, BM=64, BN=32, num_stages=1,
    )  # fmt: skip
    return out, lse
