# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""Twelve programs go through all tiles, from the diagonal to the left edge, each with its mask."""


@triton.jit
def _edges(tile, N, W, BM: tl.constexpr, BN: tl.constexpr):
    first = tl.maximum(tile * BM - W + 1, 0) // BN
    last = (tl.minimum(tile * BM + BM, N) - 1) // BN
    return first, last


@triton.jit
def _all_tiles(
    Q, K, V, OUT, L, sq, sk, sv, B, H, G, N, W, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(N, BM)
    d = tl.arange(0, D)
    for work in range(tl.program_id(0), tiles * B * H, tl.num_programs(0)):
        tile = work % tiles
        h = (work // tiles % H).to(tl.int64)
        b = (work // tiles // H).to(tl.int64)
        m = tile * BM + tl.arange(0, BM)
        q = tl.load(Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d, m[:, None] < N, other=0.0)
        first, last = _edges(tile, N, W, BM, BN)
        top = tl.full([BM], float("-inf"), tl.float32)
        den = tl.zeros([BM], tl.float32)
        acc = tl.zeros([BM, D], tl.float32)
        for back in range(0, last - first + 1):
            n = (last - back) * BN + tl.arange(0, BN)
            there = (n < N)[:, None]
            k = tl.load(K + b * sk[0] + h // G * sk[1] + n[:, None] * sk[2] + d, there, other=0.0)
            v = tl.load(V + b * sv[0] + h // G * sv[1] + n[:, None] * sv[2] + d, there, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            if (last - back) * BN + BN > tile * BM + 1:
                s = tl.where(n[None, :] > m[:, None], float("-inf"), s)
            if (last - back) * BN <= tile * BM + BM - 1 - W:
                s = tl.where(n[None, :] <= m[:, None] - W, float("-inf"), s)
            now = tl.maximum(top, tl.max(s, 1))
            finite = tl.maximum(now, -1.0e30)
            p = tl.exp2(s - finite[:, None])
            fade = tl.exp2(top - finite)
            den = den * fade + tl.sum(p, 1)
            acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
            top = now
        row = (b * H + h) * N + m
        safe_den = tl.where(den == 0.0, 1.0, den)
        out = (acc / safe_den[:, None]).to(OUT.dtype.element_ty)
        tl.store(OUT + row[:, None] * D + d[None, :], out, mask=m[:, None] < N)
        tl.store(L + row, 0.6931471805599453 * (top + tl.log2(safe_den)), mask=m < N)


def attention(q, k, v, *, window_size, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    b, h, n, d = q.shape
    scale = 1.4426950408889634 * (d**-0.5 if softmax_scale is None else softmax_scale)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    programs = min(12, b * h * triton.cdiv(n, 64)) if n < 2048 else 528
    _all_tiles[(programs,)](
        q, k, v, out, lse, q.stride()[:3], k.stride()[:3], v.stride()[:3],
        b, h, h // k.shape[1], n, min(window_size, n), scale, D=d, BM=64, BN=64,
        num_warps=8, num_stages=1,
    )  # fmt: skip
    return out, lse
