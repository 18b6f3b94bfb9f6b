"""Which tiles of keys a tile of queries visits comes from a table that PyTorch makes."""


@triton.jit
def _by_table(
    Q, K, V, OUT, L, TABLE, COUNT, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, H, G, N, W, S,
    scale, width, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    m = tile * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(Q + b * sqb + h * sqh + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for i in range(tl.load(COUNT + tile)):
        n = tl.load(TABLE + tile * width + i) * BN + tl.arange(0, BN)
        ok = n[:, None] < N
        k = tl.load(K + b * skb + h // G * skh + n[:, None] * skn + d, ok, other=0.0)
        v = tl.load(V + b * svb + h // G * svh + n[:, None] * svn + d, ok, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        age = m[:, None] - n[None, :]
        s = tl.where((age >= 0) & ((age < W) | (n < S)[None, :]), s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(now == float("-inf"), 0.0, now)
        p = tl.exp(s - safe[:, None])
        fade = tl.exp(top - safe)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    row = bh * N + m
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + d, out, mask=m[:, None] < N)
    tl.store(L + row, top + tl.log(den), mask=m < N)


def _tiles(n, window, sinks, size, device):
    """For each tile of queries the tiles of keys that it needs, and how many."""
    start = torch.arange(0, n, size, device=device)
    first = (start - window + 1).clamp(min=0) // size
    before = torch.minimum(first, torch.full_like(first, triton.cdiv(sinks, size)))
    count = before + torch.arange(len(start), device=device) + 1 - first
    place = torch.arange(int(count.max()), device=device)
    table = torch.where(place < before[:, None], place, place + (first - before)[:, None])
    return table.to(torch.int32).contiguous(), count.to(torch.int32)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    b, h, n, d = q.shape
    window, sinks = min(window_size, n), min(num_sink_tokens, n)
    table, count = _tiles(n, window, sinks, 32, q.device)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _by_table[(triton.cdiv(n, 32), b * h)](
        q, k, v, out, lse, table, count, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        h, h // k.shape[1], n, window, sinks,
        d**-0.5 if softmax_scale is None else softmax_scale, table.shape[1],
        D=d, BM=32, BN=32, num_stages=1,
    )  # fmt: skip
    return out, lse
