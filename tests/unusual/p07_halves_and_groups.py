"""A tile holds positions times heads of a group, padded; head_dim in halves; sinks come last."""


@triton.jit
def halves(ptr, row, stride, ok, H: tl.constexpr, D: tl.constexpr):
    d = tl.arange(0, H)
    at = ptr + row[:, None] * stride + d[None, :]
    both = ok[:, None] & (d + H < D)[None, :]
    return tl.load(at, mask=ok[:, None], other=0), tl.load(at + H, mask=both, other=0)


@triton.jit
def step(
    m,
    den,
    a0,
    a1,
    q0,
    q1,
    k_ptr,
    v_ptr,
    sk,
    sv,
    pos,
    j,
    top,
    n,
    window,
    sinks,
    c,
    H: tl.constexpr,
    D: tl.constexpr,
    BN: tl.constexpr,
):
    cols = j + tl.arange(0, BN)
    ok = cols < n
    wide = cols.to(tl.int64)
    k0, k1 = halves(k_ptr, wide, sk, ok, H, D)
    v0, v1 = halves(v_ptr, wide, sv, ok, H, D)
    s = tl.dot(q0, k0.T, input_precision="ieee")
    s = tl.dot(q1, k1.T, acc=s, input_precision="ieee")
    s *= c
    far = pos[:, None] - cols[None, :]
    see = (far >= 0) & ((far < window) | (cols[None, :] < sinks)) & (cols[None, :] < top)
    s = tl.where(see, s, -1.0e38)
    new = tl.maximum(m, tl.max(s, 1))
    p = tl.where(see, tl.exp2(s - new[:, None]), 0.0)
    f = tl.exp2(m - new)
    den = f * den + tl.sum(p, 1)
    p = p.to(v0.dtype)
    a0 = f[:, None] * a0 + tl.dot(p, v0, input_precision="ieee")
    a1 = f[:, None] * a1 + tl.dot(p, v1, input_precision="ieee")
    return new, den, a0, a1


@triton.jit
def grouped(
    q,
    k,
    v,
    o,
    e,
    qb,
    qh,
    qn,
    kb,
    kh,
    kn,
    vb,
    vh,
    vn,
    G,
    KV,
    n,
    window,
    sinks,
    c,
    D: tl.constexpr,
    GP: tl.constexpr,
    BP: tl.constexpr,
    BN: tl.constexpr,
):
    H: tl.constexpr = max(16, D // 2)
    R: tl.constexpr = GP * BP
    b = tl.program_id(1).to(tl.int64)
    kv = tl.program_id(2).to(tl.int64)
    p0 = tl.program_id(0) * BP
    r = tl.arange(0, R)
    member = r % GP
    pos = p0 + r // GP
    live = (pos < n) & (member < G)
    head = kv * G + member
    qrow = q + b * qb + head * qh + pos.to(tl.int64) * qn
    d = tl.arange(0, H)
    q0 = tl.load(qrow[:, None] + d[None, :], mask=live[:, None], other=0)
    both = live[:, None] & (d + H < D)[None, :]
    q1 = tl.load(qrow[:, None] + d[None, :] + H, mask=both, other=0)
    k += b * kb + kv * kh
    v += b * vb + kv * vh
    m = tl.full((R,), -1.0e38, tl.float32)
    den = tl.zeros((R,), tl.float32)
    a0 = tl.zeros((R, H), tl.float32)
    a1 = tl.zeros((R, H), tl.float32)
    end = tl.minimum(p0 + BP, n)
    begin = tl.maximum(p0 - window + 1, 0) // BN * BN
    seen = tl.minimum(pos, n - 1)
    for back in range(0, tl.cdiv(end - begin, BN)):
        j = begin + (tl.cdiv(end - begin, BN) - 1 - back) * BN
        m, den, a0, a1 = step(
            m, den, a0, a1, q0, q1, k, v, kn, vn, seen, j, n, n, window, sinks, c, H, D, BN
        )
    before = tl.minimum(sinks, begin)
    for j in range(0, before, BN):
        m, den, a0, a1 = step(
            m, den, a0, a1, q0, q1, k, v, kn, vn, seen, j, before, n, window, sinks, c, H, D, BN
        )
    row = (b * KV * G + head) * n + pos
    at = o + row[:, None] * D + d[None, :]
    tl.store(at, (a0 / den[:, None]).to(o.dtype.element_ty), mask=live[:, None])
    tl.store(at + H, (a1 / den[:, None]).to(o.dtype.element_ty), mask=both)
    tl.store(e + row, (m + tl.log2(den)) / 1.4426950408889634, mask=live)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    batch, heads, n, D = q.shape
    kv = k.shape[1]
    group = heads // kv
    padded = triton.next_power_of_2(group)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    positions = max(16, 64 // padded)
    grouped[lambda meta: (triton.cdiv(n, meta["BP"]), batch, kv)](
        q,
        k,
        v,
        out,
        lse,
        *q.stride()[:3],
        *k.stride()[:3],
        *v.stride()[:3],
        group,
        kv,
        n,
        min(n, window_size),
        min(n, num_sink_tokens),
        default_scale(softmax_scale, D) * LOG2_E.value,
        D=D,
        GP=padded,
        BP=positions,
        BN=32,
    )
    return out, lse
