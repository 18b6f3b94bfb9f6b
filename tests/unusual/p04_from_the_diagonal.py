"""A while loop from the diagonal back to key 0; every tile is masked."""


@triton.jit
def _backwards(
    Q, K, V, OUT, L, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    pid = tl.program_id(0)
    heads = tl.num_programs(0) // tl.cdiv(N, BM)
    bh = (pid % heads).to(tl.int64)
    start_m = pid // heads * BM
    m = start_m + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + bh // H * sqb + bh % H * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    q_scaled = q
    last = (tl.minimum(start_m + BM, N) - 1) // BN * BN
    n = last + tl.arange(0, BN)
    k_ptrs = K + bh // H * skb + bh % H * skh + n[:, None].to(tl.int64) * skn + d[None, :]
    v_ptrs = V + bh // H * svb + bh % H * svh + n[:, None].to(tl.int64) * svn + d[None, :]
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    start = last
    while start >= 0:
        n = start + tl.arange(0, BN)
        k = tl.load(k_ptrs, mask=n[:, None] < N, other=0.0)
        s = tl.dot(q_scaled, tl.permute(k, (1, 0)), input_precision="ieee") * scale
        s = tl.where(m[:, None] < n[None, :], float("-inf"), s)
        now = tl.maximum(top, tl.max(s, axis=1))
        safe = tl.where(now == float("-inf"), 0.0, now)
        p = tl.exp(s - safe[:, None])
        fade = tl.exp(top - safe)
        v = tl.load(v_ptrs, mask=n[:, None] < N, other=0.0)
        acc = acc * fade[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee")
        den = tl.fma(den, fade, tl.sum(p, axis=1))
        top = now
        k_ptrs -= BN * skn
        v_ptrs -= BN * svn
        start -= BN
    row = bh * N + m
    tl.store(
        OUT + row[:, None] * D + d, (acc / den[:, None]).to(OUT.dtype.element_ty), m[:, None] < N
    )
    tl.store(L + row, top + tl.log(den), m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _backwards[(triton.cdiv(n, 64) * b * h,)](
        q, k, v, out, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], h, n,
        d**-0.5 if softmax_scale is None else softmax_scale,
        D=d, BM=64, BN=16, num_stages=1,
    )  # fmt: skip
    return out, lse
