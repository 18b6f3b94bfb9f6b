"""Masks are functions, as in FlexAttention; tables have the tiles that they cut, and full ones."""

_SIDE = 64


def tables(n, window, device):
    """For each tile of queries which key tiles are cut by the mask, and which are full"""
    tiles = triton.cdiv(n, _SIDE)
    j = torch.arange(tiles, device=device, dtype=torch.int32)
    first, last = j * _SIDE, j * _SIDE + _SIDE - 1
    some = (j <= j[:, None]) & (first[:, None] - last < window)
    full = (j < j[:, None]) & (last[:, None] - first < window)
    for chosen in (some & ~full, full):
        order = torch.where(chosen, j, tiles).sort(dim=1).values
        yield from ((order < tiles).int(), order.clamp(max=tiles - 1).int())


@triton.jit
def in_window(b, h, q_idx, kv_idx, window):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < window)


@triton.jit
def everywhere(b, h, q_idx, kv_idx, window):
    return kv_idx >= 0


@triton.jit
def _tile(
    state, q, K, V, skn, svn, start, m, N, window, scale, b, h,
    MASK_MOD: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    top, den, acc = state
    n, d = start + tl.arange(0, B), tl.arange(0, D)
    k = tl.load(K + n[None, :].to(tl.int64) * skn + d[:, None], mask=n[None, :] < N, other=0.0)
    v = tl.load(V + n[:, None].to(tl.int64) * svn + d[None, :], mask=n[:, None] < N, other=0.0)
    s = tl.dot(q, k, input_precision="ieee") * scale
    seen = MASK_MOD(b, h, m[:, None], n[None, :], window) & (n < N)[None, :]
    s = tl.where(seen, s, float("-inf"))
    new = tl.maximum(top, tl.max(s, 1))
    safe = tl.where(new == float("-inf"), 0, new)
    fade = tl.math.exp2(top - safe)
    p = tl.math.exp2(s - safe[:, None])
    acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
    return new, den * fade + tl.sum(p, 1), acc


@triton.jit
def _flex(
    Q, K, V, CUT, CUT_IDX, FULL, FULL_IDX, OUT, L, sq, sk, sv, H, G, N, T, window, scale,
    MASK_MOD: tl.constexpr, FULL_MOD: tl.constexpr, D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    b, h = (tl.program_id(1) // H).to(tl.int64), (tl.program_id(1) % H).to(tl.int64)
    m, d = i * B + tl.arange(0, B), tl.arange(0, D)
    inside = m[:, None] < N
    q = tl.load(Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d, mask=inside, other=0.0)
    K += b * sk[0] + h // G * sk[1]
    V += b * sv[0] + h // G * sv[1]
    top, den = tl.full([B], float("-inf"), tl.float32), tl.zeros([B], tl.float32)
    state = (top, den, tl.zeros([B, D], tl.float32))
    t = 0
    while t < T and tl.load(CUT + i * T + tl.minimum(t, T - 1)) != 0:
        start = tl.load(CUT_IDX + i * T + t) * B
        state = _tile(
            state, q, K, V, sk[2], sv[2], start, m, N, window, scale, b, h, MASK_MOD, D, B
        )
        t += 1
    t = 0
    while t < T and tl.load(FULL + i * T + tl.minimum(t, T - 1)) != 0:
        start = tl.load(FULL_IDX + i * T + t) * B
        state = _tile(
            state, q, K, V, sk[2], sv[2], start, m, N, window, scale, b, h, FULL_MOD, D, B
        )
        t += 1
    top, den, acc = state
    den = tl.where(den == 0.0, 1, den)
    row = (b * H + h) * N + m
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + d, out, mask=inside)
    tl.store(L + row, (top + tl.math.log2(den)) * LN_2, mask=m < N)


def attention(q, k, v, *, window_size, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    b, h, n, d = q.shape
    window, tiles = min(window_size, n), triton.cdiv(n, _SIDE)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), device=q.device)
    strides = (q.stride(), k.stride(), v.stride())
    _flex[(tiles, b * h)](
        q, k, v, *tables(n, window, q.device), out, lse, *strides, h, h // k.shape[1], n, tiles,
        window, default_scale(softmax_scale, d) * LOG2_E.value,
        MASK_MOD=in_window, FULL_MOD=everywhere, D=d, B=_SIDE, num_stages=1,
    )  # fmt: skip
    return out, lse
