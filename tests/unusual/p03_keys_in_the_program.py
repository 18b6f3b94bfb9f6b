"""First the lse of every row; then a program for each tile of keys adds its share of out."""


@triton.jit
def _row_lse(
    Q, K, L, sqb, sqh, sqm, skb, skh, skn, H, M, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, mask=m[:, None] < M, other=0.0)
    biggest = tl.full([BM], -float("inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        k = tl.load(K + b * skb + h * skh + n[None, :] * skn + d[:, None], mask=n < N, other=0.0)
        s = tl.dot(q, k, input_precision="ieee") * scale
        s = tl.where(n < N, s, -float("inf"))
        bigger = tl.maximum(biggest, tl.max(s, 1))
        total = total * tl.exp(biggest - bigger) + tl.sum(tl.exp(s - bigger[:, None]), 1)
        biggest = bigger
    tl.store(L + bh * M + m, biggest + tl.log(total), mask=m < M)


@triton.jit
def _share_of_keys(
    Q, K, V, L, OUT, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, M, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, D)
    there = n[:, None] < N
    k = tl.load(K + b * skb + h * skh + n[:, None] * skn + d, mask=there, other=0.0)
    v = tl.load(V + b * svb + h * svh + n[:, None] * svn + d, mask=there, other=0.0)
    for start in range(0, M, BM):
        m = start + tl.arange(0, BM)
        q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, mask=m[:, None] < M, other=0.0)
        lse = tl.load(L + bh * M + m, mask=m < M, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.where(n < N, tl.exp(s - lse[:, None]), 0.0)
        o = tl.dot(p.to(v.dtype), v, input_precision="ieee")
        tl.atomic_add(OUT + (bh * M + m[:, None]) * D + d, o, mask=m[:, None] < M)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    b, h, m, d = q.shape
    n = k.shape[2]
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    out = torch.zeros((b, h, m, d), dtype=torch.float32, device=q.device)
    lse = torch.empty((b, h, m), dtype=torch.float32, device=q.device)
    strides = (*q.stride()[:3], *k.stride()[:3])
    _row_lse[(triton.cdiv(m, 64), b * h)](
        q, k, lse, *strides, h, m, n, scale, D=d, BM=64, BN=32, num_stages=1
    )
    _share_of_keys[(triton.cdiv(n, 64), b * h)](
        q, k, v, lse, out, *strides, *v.stride()[:3], h, m, n, scale,
        D=d, BM=32, BN=64, num_stages=1,
    )  # fmt: skip
    return out.to(q.dtype), lse
