"""Sinks in one launch, the window in another, and a third that merges both by their lse."""


@triton.jit
def rows_at(base, s, ids, limit, D: tl.constexpr):
    return tl.load(
        base + ids.to(tl.int64)[:, None] * s + tl.arange(0, D)[None, :],
        mask=(ids < limit)[:, None],
        other=0.0,
    )


@triton.jit
def part(
    q_ptr,
    k_ptr,
    v_ptr,
    acc_ptr,
    lse_ptr,
    qs,
    ks,
    vs,
    H,
    G,
    N,
    W,
    S,
    scale,
    IS_SINK: tl.constexpr,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    zh = tl.program_id(0)
    z, h = (zh // H).to(tl.int64), (zh % H).to(tl.int64)
    i0 = tl.program_id(1) * BM
    i = i0 + tl.arange(0, BM)
    q = rows_at(q_ptr + z * qs[0] + h * qs[1], qs[2], i, N, D)
    kb = k_ptr + z * ks[0] + (h // G) * ks[1]
    vb = v_ptr + z * vs[0] + (h // G) * vs[1]
    m = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    last = tl.minimum(i0 + BM, N) - 1
    if IS_SINK:
        # Sinks that the last row no longer has in its window.
        begin = 0
        end = tl.minimum(S, tl.maximum(last - W + 1, 0))
    else:
        begin = tl.maximum(i0 - W + 1, 0)
        end = last + 1
    for j0 in range(begin, end, BN):
        j = j0 + tl.arange(0, BN)
        k = rows_at(kb, ks[2], j, end, D)
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        in_window = (j[None, :] <= i[:, None]) & (i[:, None] - j[None, :] < W)
        if IS_SINK:
            ok = (j[None, :] < end) & (j[None, :] + W <= i[:, None])
        else:
            ok = in_window & (j[None, :] < end)
        s = tl.where(ok, s, float("-inf"))
        m2 = tl.maximum(m, tl.max(s, 1))
        sub = tl.where(m2 == float("-inf"), 0.0, m2)
        p = tl.exp(s - sub[:, None])
        f = tl.exp(m - sub)
        den = f * den + tl.sum(p, 1)
        acc *= f[:, None]
        v = rows_at(vb, vs[2], j, end, D)
        acc = tl.dot(p.to(v.dtype), v, acc=acc, input_precision="ieee")
        m = m2
    empty = den == 0.0
    out = acc / tl.where(empty, 1.0, den)[:, None]
    lse = tl.where(empty, float("-inf"), m + tl.log(den))
    at = zh.to(tl.int64) * N + i
    tl.store(acc_ptr + at[:, None] * D + tl.arange(0, D)[None, :], out, mask=(i < N)[:, None])
    tl.store(lse_ptr + at, lse, mask=i < N)


@triton.jit
def join(o1, l1, o2, l2, o, lse, n, D: tl.constexpr, R: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    ok = r < n
    at = r[:, None] * D + tl.arange(0, D)[None, :]
    a = tl.load(l1 + r, mask=ok, other=0.0)
    b = tl.load(l2 + r, mask=ok, other=0.0)
    top = tl.maximum(a, b)
    total = top + tl.log(tl.exp(a - top) + tl.exp(b - top))
    x = tl.load(o1 + at, mask=ok[:, None], other=0.0) * tl.exp(a - total)[:, None]
    x += tl.load(o2 + at, mask=ok[:, None], other=0.0) * tl.exp(b - total)[:, None]
    tl.store(o + at, x.to(o.dtype.element_ty), mask=ok[:, None])
    tl.store(lse + r, total, mask=ok)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    B, H, N, D = q.shape
    window_size, num_sink_tokens = min(window_size, N), min(num_sink_tokens, N)
    scale = default_scale(softmax_scale, D)
    parts = []
    for is_sink in (True, False):
        o = torch.empty((B, H, N, D), dtype=torch.float32, device=q.device)
        lse = torch.empty((B, H, N), dtype=torch.float32, device=q.device)
        part[(B * H, triton.cdiv(N, 32))](
            q,
            k,
            v,
            o,
            lse,
            q.stride(),
            k.stride(),
            v.stride(),
            H,
            H // k.shape[1],
            N,
            window_size,
            num_sink_tokens,
            scale,
            IS_SINK=is_sink,
            D=D,
            BM=32,
            BN=32,
        )
        parts += [o, lse]
    out = torch.empty((B, H, N, D), dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H, N), dtype=torch.float32, device=q.device)
    join[(triton.cdiv(B * H * N, 16),)](*parts, out, lse, B * H * N, D=D, R=16)
    return out, lse
