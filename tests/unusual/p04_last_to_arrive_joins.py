"""Split keys; the program of a query tile that arrives last joins what all of them wrote."""

SPLITS = 3


@triton.jit
def _split_attn(
    Q, K, V, OUT, L, PART, PM, PL, COUNT, sq, sk, sv, H, N, qk_scale, D: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    b, h = bh // H, bh % H
    m = tile * BM + tl.arange(0, BM)
    n0 = tl.arange(0, BN)
    d = tl.arange(0, D)
    q = tl.load(
        Q + b * sq[0] + h * sq[1] + m[:, None].to(tl.int64) * sq[2] + d[None, :],
        mask=m[:, None] < N,
        other=0.0,
    )
    end = tl.minimum((tile + 1) * BM, N)
    per_split = tl.cdiv(tl.cdiv(end, BN), SPLITS) * BN
    lo = split * per_split
    hi = tl.minimum(lo + per_split, end)
    k_base = K + b * sk[0] + h * sk[1]
    v_base = V + b * sv[0] + h * sv[1]
    mx = tl.full([BM], float("-inf"), tl.float32)
    sm = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(lo, hi, BN):
        n = start + n0
        k = tl.load(
            k_base + n[:, None].to(tl.int64) * sk[2] + d[None, :], mask=n[:, None] < N, other=0.0
        )
        v = tl.load(
            v_base + n[:, None].to(tl.int64) * sv[2] + d[None, :], mask=n[:, None] < N, other=0.0
        )
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * qk_scale
        s = tl.where(n[None, :] <= m[:, None], s, float("-inf"))
        new = tl.maximum(mx, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        fade = tl.exp2(mx - safe)
        p = tl.exp2(s - safe[:, None])
        sm = sm * fade + tl.sum(p, 1)
        acc = acc * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        mx = new
    slot = (bh * tl.num_programs(0) + tile) * SPLITS
    r = tl.arange(0, BM)
    tl.store(PM + (slot + split) * BM + r, mx)
    tl.store(PL + (slot + split) * BM + r, sm)
    tl.store(PART + ((slot + split) * BM + r)[:, None] * D + d[None, :], acc)
    tl.debug_barrier()
    arrived = tl.atomic_add(COUNT + bh * tl.num_programs(0) + tile, 1, sem="acq_rel")
    if arrived == SPLITS - 1:
        top = tl.full([BM], float("-inf"), tl.float32)
        for i in tl.static_range(SPLITS):
            top = tl.maximum(top, tl.load(PM + (slot + i) * BM + r))
        den = tl.zeros([BM], tl.float32)
        num = tl.zeros([BM, D], tl.float32)
        for i in tl.static_range(SPLITS):
            w = tl.exp2(tl.load(PM + (slot + i) * BM + r) - top)
            den += w * tl.load(PL + (slot + i) * BM + r)
            num += w[:, None] * tl.load(PART + ((slot + i) * BM + r)[:, None] * D + d[None, :])
        tl.store(
            OUT + (bh * N + m)[:, None] * D + d[None, :],
            (num / den[:, None]).to(OUT.dtype.element_ty),
            mask=m[:, None] < N,
        )
        tl.store(L + bh * N + m, (top + tl.log2(den)) * 0.6931471805599453, mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    b, h, n, d = q.shape
    scale = default_scale(softmax_scale, d) * 1.4426950408889634
    bm = 32
    tiles = triton.cdiv(n, bm)
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    part = torch.empty((b * h, tiles, SPLITS, bm, d), dtype=torch.float32, device=q.device)
    pm = torch.empty((b * h, tiles, SPLITS, bm), dtype=torch.float32, device=q.device)
    pl = torch.empty_like(pm)
    count = torch.zeros((b * h, tiles), dtype=torch.int32, device=q.device)
    _split_attn[(tiles, b * h, SPLITS)](
        q, k, v, o, lse, part, pm, pl, count, q.stride(), k.stride(), v.stride(), h, n, scale,
        D=d, BM=bm, BN=32, SPLITS=SPLITS, num_warps=4,
    )  # fmt: skip
    return o, lse
