# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""One launch for the sinks, one for the window, and a kernel that merges their states."""


@triton.jit
def part(
    Q, K, V, PO, PL, sq, sk, sv, H, G, N, W, S, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    t, bh = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    i = t * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q = tl.load(
        Q + b * sq[0] + h * sq[1] + i[:, None] * sq[2] + d[None, :],
        mask=(i < N)[:, None],
        other=0.0,
    )
    if SINKS:
        lo = 0
        # sinks that are out of the window of the last row of the tile
        hi = tl.minimum(S, tl.maximum(tl.minimum(t * BM + BM, N) - W, 0))
    else:
        lo = tl.maximum(t * BM - W + 1, 0) // BN * BN
        hi = tl.minimum(t * BM + BM, N)
    m = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for n0 in range(lo, hi, BN):
        j = n0 + tl.arange(0, BN)
        k = tl.load(
            K + b * sk[0] + (h // G) * sk[1] + j[:, None] * sk[2] + d[None, :],
            mask=(j < N)[:, None],
            other=0.0,
        )
        v = tl.load(
            V + b * sv[0] + (h // G) * sv[1] + j[:, None] * sv[2] + d[None, :],
            mask=(j < N)[:, None],
            other=0.0,
        )
        inside = i[:, None] < j[None, :] + W
        vis = i[:, None] >= j[None, :]
        vis = vis & (inside == 0) & (j < S)[None, :] if SINKS else vis & inside
        s = tl.where(vis, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, float("-inf"))
        mn = tl.maximum(m, tl.max(s, 1))
        safe = tl.where(mn == float("-inf"), 0.0, mn)
        p = tl.exp(s - safe[:, None])
        a = tl.exp(m - safe)
        den = den * a + tl.sum(p, 1)
        acc = acc * a[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m = mn
    some = den > 0
    lse = tl.where(some, m + tl.log(tl.where(some, den, 1.0)), float("-inf"))
    tl.store(
        PO + (bh * N + i)[:, None] * D + d[None, :],
        acc / tl.where(some, den, 1.0)[:, None],
        mask=(i < N)[:, None],
    )
    tl.store(PL + bh * N + i, lse, mask=i < N)


@triton.jit
def merge_attn_states(
    output, output_lse, prefix_output, prefix_lse, suffix_output, suffix_lse, rows,
    D: tl.constexpr, BM: tl.constexpr,
):  # fmt: skip
    r = tl.program_id(0) * BM + tl.arange(0, BM)
    ok = r < rows
    p_lse = tl.load(prefix_lse + r, mask=ok, other=0.0)
    s_lse = tl.load(suffix_lse + r, mask=ok, other=0.0)
    max_lse = tl.maximum(p_lse, s_lse)
    p_se = tl.exp(p_lse - max_lse)
    s_se = tl.exp(s_lse - max_lse)
    out_se = p_se + s_se
    tl.store(output_lse + r, tl.log(out_se) + max_lse, mask=ok)
    place = r[:, None] * D + tl.arange(0, D)[None, :]
    p_out = tl.load(prefix_output + place, mask=ok[:, None], other=0.0)
    s_out = tl.load(suffix_output + place, mask=ok[:, None], other=0.0)
    tl.store(
        output + place,
        p_out * (p_se / out_se)[:, None] + s_out * (s_se / out_se)[:, None],
        mask=ok[:, None],
    )


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    B, H, N, D = q.shape
    W, S = min(window_size, N), min(num_sink_tokens, N)
    f32 = dict(dtype=torch.float32, device=q.device)
    parts = []
    for sinks in (True, False):
        po, pl = torch.empty(B, H, N, D, **f32), torch.empty(B, H, N, **f32)
        part[(triton.cdiv(N, 32), B * H)](
            q, k, v, po, pl, q.stride()[:3], k.stride()[:3], v.stride()[:3], H, H // k.shape[1], N,
            W, S, default_scale(softmax_scale, D), D=D, BM=32, BN=32, SINKS=sinks,
        )  # fmt: skip
        parts += [po, pl]
    out, lse = torch.empty(q.shape, dtype=q.dtype, device=q.device), torch.empty(B, H, N, **f32)
    merge_attn_states[(triton.cdiv(B * H * N, 32),)](out, lse, *parts, B * H * N, D=D, BM=32)
    return out, lse
