# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""The keys of a query tile in chunks of 128, one program each; a second kernel merges them."""


@triton.jit
def _chunk(
    Q, K, V, P, S, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(2).to(tl.int64)
    start_m = tl.program_id(0) * BM
    chunk = tl.program_id(1)
    if chunk * CHUNK >= start_m + BM:
        return
    m = start_m + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + bh // H * sqb + bh % H * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    K += bh // H * skb + bh % H * skh
    V += bh // H * svb + bh % H * svh
    top = tl.full([BM], -1.0e30, tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    end = tl.minimum(tl.minimum((chunk + 1) * CHUNK, start_m + BM), N)
    for start in range(chunk * CHUNK, end, BN):
        n = start + tl.arange(0, BN)
        k = tl.load(K + n[:, None] * skn + d[None, :], mask=n[:, None] < N, other=0.0)
        v = tl.load(V + n[:, None] * svn + d[None, :], mask=n[:, None] < N, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        seen = n[None, :] <= m[:, None]
        s = tl.where(seen, s, -1.0e30)
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.where(seen, tl.exp(s - now[:, None]), 0.0)
        fade = tl.exp(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = now
    place = (chunk * tl.num_programs(2) + bh) * N + m
    tl.store(P + place[:, None] * D + d[None, :], acc, mask=m[:, None] < N)
    tl.store(S + 2 * place, top, mask=m < N)
    tl.store(S + 2 * place + 1, den, mask=m < N)


@triton.jit
def _merge(P, S, OUT, L, N, rows, D: tl.constexpr, BM: tl.constexpr, CHUNK: tl.constexpr):
    bh = tl.program_id(1).to(tl.int64)
    start_m = tl.program_id(0) * BM
    m = start_m + tl.arange(0, BM)
    d = tl.arange(0, D)
    top = tl.full([BM], -1.0e30, tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for chunk in range(0, tl.cdiv(tl.minimum(start_m + BM, N), CHUNK)):
        place = chunk * rows + bh * N + m
        part = tl.load(P + place[:, None] * D + d[None, :], mask=m[:, None] < N, other=0.0)
        part_top = tl.load(S + 2 * place, mask=m < N, other=-1.0e30)
        part_den = tl.load(S + 2 * place + 1, mask=m < N, other=0.0)
        now = tl.maximum(top, part_top)
        old, new = tl.exp(top - now), tl.exp(part_top - now)
        acc = acc * old[:, None] + part * new[:, None]
        den = den * old + part_den * new
        top = now
    row = bh * N + m
    den = tl.where(m < N, den, 1.0)
    tl.store(OUT + row[:, None] * D + d[None, :], acc / den[:, None], mask=m[:, None] < N)
    tl.store(L + row, top + tl.log(den), mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    b, h, n, d = q.shape
    chunk = 128 if n <= 1024 else triton.next_power_of_2(triton.cdiv(n, 8))
    chunks = triton.cdiv(n, chunk)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    parts = torch.empty((chunks, b, h, n, d), dtype=torch.float32, device=q.device)
    states = torch.empty((chunks, b, h, n, 2), dtype=torch.float32, device=q.device)
    tiles = triton.cdiv(n, 64)
    _chunk[(tiles, chunks, b * h)](
        q, k, v, parts, states, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], h, n,
        d**-0.5 if softmax_scale is None else softmax_scale,
        D=d, BM=64, BN=64, CHUNK=chunk, num_stages=1, num_warps=8,
    )  # fmt: skip
    _merge[(tiles, b * h)](parts, states, out, lse, n, b * h * n, D=d, BM=64, CHUNK=chunk)
    return out, lse
