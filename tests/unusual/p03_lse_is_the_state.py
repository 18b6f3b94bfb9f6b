"""No maximum and no sum: the state is the log-sum-exp in base 2, and out is always normalised."""


@triton.jit
def _of_lse(
    Q, K, V, OUT, L, qs, ks, vs, H, M, N, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
):
    i, bh = tl.swizzle2d(
        tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1), 4
    )
    b, h = (bh // H).to(tl.int64), (bh % H).to(tl.int64)
    m = i * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    inside = m[:, None] < M
    q = tl.load(Q + b * qs[0] + h * qs[1] + m[:, None] * qs[2] + d, mask=inside, other=0.0)
    lse = tl.full((BM,), float("-inf"), tl.float32)
    out = tl.zeros((BM, D), tl.float32)
    for start in tl.range(0, N, BN):
        n = start + tl.arange(0, BN)
        live = n[:, None] < N
        k = tl.load(K + b * ks[0] + h * ks[1] + n[:, None] * ks[2] + d, mask=live, other=0.0)
        v = tl.load(V + b * vs[0] + h * vs[1] + n[:, None] * vs[2] + d, mask=live, other=0.0)
        s = tl.dot(q, tl.permute(k, (1, 0)), input_precision="ieee") * scale
        s = tl.where((n < N)[None, :], s, float("-inf"))
        top = tl.max(s, 1)
        tile = top + tl.log2(tl.sum(tl.exp2(s - top[:, None]), 1))
        high = tl.maximum(lse, tile)
        new = high + tl.log2(tl.exp2(lse - high) + tl.exp2(tile - high))
        p = tl.exp2(s - new[:, None])
        share = tl.exp2(lse - new)
        out = tl.dot(p.to(v.dtype), v, out * share[:, None], input_precision="ieee")
        lse = new
    row = bh.to(tl.int64) * M + m
    tl.store(OUT + row[:, None] * D + d, out.to(OUT.dtype.element_ty), mask=inside)
    tl.store(L + row, lse / LOG2_E, mask=m < M)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    scale = default_scale(softmax_scale, d) * LOG2_E.value
    strides = (q.stride(), k.stride(), v.stride())
    _of_lse[(triton.cdiv(n, 32), b * h)](
        q, k, v, out, lse, *strides, h, n, k.shape[2], scale, D=d, BM=32, BN=32
    )
    return out, lse
