"""Few programs, each with one loop over pairs of tiles, in which its state begins anew."""


@triton.jit
def _locate(t, tiles, H):
    bh = t // tiles
    return (bh // H).to(tl.int64), (bh % H).to(tl.int64), tiles - 1 - t % tiles


@triton.jit
def _persistent(
    Q, K, V, OUT, LSE, qb, qh, qm, kb, kh, kn, vb, vh, vn, B, H, T, qk_scale, D: tl.constexpr,
    BLK: tl.constexpr,
):  # fmt: skip
    tiles = tl.cdiv(T, BLK)
    total = B * H * tiles
    d = tl.arange(0, D)
    r = tl.arange(0, BLK)
    pid = tl.program_id(0)
    # how many rounds this program has in all
    rounds = 0
    for t in range(pid, total, tl.num_programs(0)):
        rounds += tiles - t % tiles
    t = pid
    j = 0
    m = tl.full([BLK], float("-inf"), tl.float32)
    den = tl.zeros([BLK], tl.float32)
    acc = tl.zeros([BLK, D], tl.float32)
    q = tl.zeros([BLK, D], Q.dtype.element_ty)
    for _ in tl.range(0, rounds, flatten=True):
        b, h, i = _locate(t, tiles, H)
        rows = i * BLK + r
        keys = j * BLK + r
        if j == 0:
            q = tl.load(
                Q + b * qb + h * qh + rows[:, None].to(tl.int64) * qm + d[None, :],
                mask=rows[:, None] < T,
                other=0.0,
            )
        k = tl.load(
            K + b * kb + h * kh + keys[:, None].to(tl.int64) * kn + d[None, :],
            mask=keys[:, None] < T,
            other=0.0,
        )
        v = tl.load(
            V + b * vb + h * vh + keys[:, None].to(tl.int64) * vn + d[None, :],
            mask=keys[:, None] < T,
            other=0.0,
        )
        s = tl.dot(q, k.T, input_precision="ieee") * qk_scale
        s = tl.where(rows[:, None] >= keys[None, :], s, -float("inf"))
        new = tl.maximum(m, tl.max(s, 1))
        p = tl.math.exp2(s - new[:, None])
        fade = tl.math.exp2(m - new)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        m = new
        if j == i:
            base = (b * H + h) * T
            tl.store(
                OUT + (base + rows)[:, None] * D + d[None, :],
                (acc / den[:, None]).to(OUT.dtype.element_ty),
                mask=rows[:, None] < T,
            )
            tl.store(LSE + base + rows, (m + tl.math.log2(den)) * 0.6931471805599453, mask=rows < T)
            m = tl.full([BLK], float("-inf"), tl.float32)
            den = tl.zeros([BLK], tl.float32)
            acc = tl.zeros([BLK, D], tl.float32)
            t += tl.num_programs(0)
            j = 0
        else:
            j += 1


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    B, H, T, D = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H, T), dtype=torch.float32, device=q.device)
    blk = 32
    programs = min(B * H * triton.cdiv(T, blk), 5)
    _persistent[(programs,)](
        q, k, v, o, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], B, H, T,
        default_scale(softmax_scale, D) * 1.4426950408889634, D=D, BLK=blk, num_warps=4,
    )  # fmt: skip
    return o, lse
