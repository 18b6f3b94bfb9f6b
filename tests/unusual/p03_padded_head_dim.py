"""Tiles are padded to 128 columns of head_dim, keys in tiles of 128, queries in tiles of 16."""


@triton.jit
def _padded(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, M, N, D, scale,
    DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BM + tl.arange(0, BM)
    d = tl.arange(0, DP)
    q_in = (m[:, None] < M) & (d[None, :] < D)
    q = tl.load(Q + bh // H * sqb + bh % H * sqh + m[:, None] * sqm + d[None, :], q_in, other=0.0)
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, DP], tl.float32)
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        n_in = (n[:, None] < N) & (d[None, :] < D)
        k = tl.load(K + bh // H * skb + bh % H * skh + n[:, None] * skn + d[None, :], n_in, 0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(n[None, :] < N, s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        fade = tl.exp(top - now)
        p = tl.exp(s - now[:, None])
        v = tl.load(V + bh // H * svb + bh % H * svh + n[:, None] * svn + d[None, :], n_in, 0.0)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc=acc * fade[:, None], input_precision="ieee")
        top = now
    row = bh * M + m
    tl.store(OUT + row[:, None] * D + d[None, :], acc / den[:, None], mask=q_in)
    tl.store(L + row, top + tl.log(den), mask=m < M)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    b, h, m, d = q.shape
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, m), dtype=torch.float32, device=q.device)
    _padded[(triton.cdiv(m, 16), b * h)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        h, m, k.shape[2], d, scale, DP=max(128, d), BM=16, BN=128, num_stages=1,
    )  # fmt: skip
    return out, lse
