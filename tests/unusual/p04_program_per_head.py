# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""A program per head, a loop over its query tiles, functions that cast the tile that they get."""


@triton.jit
def load_rows(base, start, stride, n, BLOCK: tl.constexpr, D: tl.constexpr):
    rows = start + tl.arange(0, BLOCK)
    ptrs = (
        base
        + start.to(tl.int64) * stride
        + tl.arange(0, BLOCK)[:, None] * stride
        + tl.arange(0, D)[None, :]
    )
    return tl.load(ptrs, mask=rows[:, None] < n, other=0.0), rows


@triton.jit
def update(m, den, acc, s, v):
    m_new = tl.maximum(m, tl.max(s, 1))
    alpha = tl.exp2(m - m_new)
    p = tl.exp2(s - m_new[:, None])
    return (
        m_new,
        den * alpha + tl.sum(p, 1),
        tl.dot(p.to(v.dtype), v, acc * alpha[:, None], input_precision="ieee"),
    )


@triton.jit
def kernel(
    q, k, v, o, lse, sqb, sqh, sqn, skb, skh, skn, svb, svh, svn, H, N, qk_scale,
    D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    b, h = tl.program_id(1), tl.program_id(0)
    q += b * sqb + h * sqh
    k += b * skb + h * skh
    v += b * svb + h * svh
    o += (b * H + h).to(tl.int64) * N * D
    lse += (b * H + h) * N
    for i in range(0, N, B):
        q_tile, q_rows = load_rows(q, i, sqn, N, B, D)
        m = tl.zeros((B,), tl.float32) - float("inf")
        den = tl.zeros((B,), tl.float32)
        acc = tl.zeros((B, D), tl.float32)
        for j in range(0, i + B, B):
            k_tile, k_rows = load_rows(k, j, skn, N, B, D)
            v_tile, _ = load_rows(v, j, svn, N, B, D)
            s = tl.dot(q_tile, k_tile.T, input_precision="ieee") * qk_scale
            s = tl.where(q_rows[:, None] >= k_rows[None, :], s, float("-inf"))
            m, den, acc = update(m, den, acc, s, v_tile)
        tl.store(
            o + (q_rows[:, None] * D + tl.arange(0, D)[None, :]),
            acc / den[:, None],
            mask=q_rows[:, None] < N,
        )
        tl.store(lse + q_rows, m * 0.6931471805599453 + tl.log(den), mask=q_rows < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    B, H, N, D = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H, N), dtype=torch.float32, device=q.device)
    kernel[H, B](
        q, k, v, o, lse, *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], H, N,
        default_scale(softmax_scale, D) * 1.4426950408889634, D=D, B=32,
    )  # fmt: skip
    return o, lse
