"""The keys of a query tile are split: partial results in fp32 memory, merged by a second kernel."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Launch:
    BM: int = 32
    BN: int = 32
    SPLITS: int = 3
    num_warps: int = 4

    def meta(self):
        return dataclasses.asdict(self)


@triton.jit
def lse_merge(o1, m1, l1, o2, m2, l2):
    m = tl.maximum(m1, m2)
    ms = tl.where(m == float("-inf"), 0.0, m)
    a, b = tl.exp(m1 - ms), tl.exp(m2 - ms)
    return o1 * a[:, None] + o2 * b[:, None], m, l1 * a + l2 * b


@triton.jit
def part(
    q, k, v, scr, ml, strides, H, G, N, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    h, mt, zb = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    z, b = zb % SPLITS, (zb // SPLITS).to(tl.int64)
    qb, qh, qm, kb, kh, kn, vb, vh, vn = strides
    i, j, d = mt * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    tiles = tl.cdiv(tl.minimum(mt * BM + BM, N), BN)
    lo, hi = tiles * z // SPLITS, tiles * (z + 1) // SPLITS
    qt = tl.load(q + b * qb + h * qh + i[:, None] * qm + d, mask=i[:, None] < N, other=0.0)
    o, m, total = (
        tl.zeros((BM, D), tl.float32),
        tl.full((BM,), float("-inf"), tl.float32),
        tl.zeros((BM,), tl.float32),
    )
    for t in range(lo, hi):
        n = t * BN + j
        kt = tl.load(
            k + b * kb + (h // G) * kh + n[:, None] * kn + d, mask=n[:, None] < N, other=0.0
        )
        vt = tl.load(
            v + b * vb + (h // G) * vh + n[:, None] * vn + d, mask=n[:, None] < N, other=0.0
        )
        s = tl.dot(qt, tl.trans(kt), input_precision="ieee") * scale
        s = tl.where(i[:, None] >= n[None, :], s, float("-inf"))
        # attention of this tile alone, then merged with the rest
        tm = tl.max(s, 1)
        p = tl.exp(s - tl.where(tm == float("-inf"), 0.0, tm)[:, None])
        to = tl.dot(p.to(vt.dtype), vt, input_precision="ieee")
        o, m, total = lse_merge(o, m, total, to, tm, tl.sum(p, 1))
    at = ((b * SPLITS + z) * H + h) * N + i
    tl.store(scr + at[:, None] * D + d, o, mask=i[:, None] < N)
    tl.store(ml + at * 2, m, mask=i < N)
    tl.store(ml + at * 2 + 1, total, mask=i < N)


@triton.jit
def merge(
    scr, ml, out, lse, H, N,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(0), tl.program_id(2).to(tl.int64)
    i, d = tl.program_id(1) * BM + tl.arange(0, BM), tl.arange(0, D)
    ok = i < N
    o, m, total = (
        tl.zeros((BM, D), tl.float32),
        tl.full((BM,), float("-inf"), tl.float32),
        tl.zeros((BM,), tl.float32),
    )
    for z in range(SPLITS):
        at = ((b * SPLITS + z) * H + h) * N + i
        o2 = tl.load(scr + at[:, None] * D + d, mask=ok[:, None], other=0.0)
        o, m, total = lse_merge(
            o, m, total, o2, tl.load(ml + at * 2, ok, float("-inf")),
            tl.load(ml + at * 2 + 1, ok, 0.0),
        )  # fmt: skip
    tl.store(
        out + ((b * H + h) * N + i)[:, None] * D + d,
        (o / total[:, None]).to(out.dtype.element_ty),
        mask=ok[:, None],
    )
    tl.store(lse + (b * H + h) * N + i, m + tl.log(total), mask=ok)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    B, H, N, D = q.shape
    cfg = Launch()

    def f(*s):
        return torch.empty(s, dtype=torch.float32, device=q.device)

    scr, ml, lse = f(B, cfg.SPLITS, H, N, D), f(B, cfg.SPLITS, H, N, 2), f(B, H, N)
    out = torch.empty((B, H, N, D), dtype=q.dtype, device=q.device)
    tiles = triton.cdiv(N, cfg.BM)
    part[(H, tiles, B * cfg.SPLITS)](
        q, k, v, scr, ml, (*q.stride()[:3], *k.stride()[:3], *v.stride()[:3]), H, H // k.shape[1],
        N, default_scale(softmax_scale, D), D=D, **cfg.meta(),
    )  # fmt: skip
    merge[(H, tiles, B)](scr, ml, out, lse, H, N, D=D, **cfg.meta())
    return out, lse
