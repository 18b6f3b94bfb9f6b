"""Three axes of programs, keys loaded transposed, the maximum of natural scores, two helpers."""


@triton.jit
def _scores(q, kT, sm_scale, r, n, T, MASKED: tl.constexpr):
    s = tl.dot(q, kT, input_precision="ieee") * sm_scale
    if MASKED:
        s = tl.where((n[None, :] <= r[:, None]) & (n[None, :] < T), s, float("-inf"))
    return s


@triton.jit
def _update(s, v, mx, z, o):
    new = tl.maximum(mx, tl.max(s, axis=1))
    alpha = tl.exp(mx - new)
    e = tl.exp(s - new[:, None])
    z = alpha * z + tl.sum(e, axis=1)
    o = alpha[:, None] * o
    o += tl.dot(e.to(v.dtype), v, input_precision="ieee")
    return new, z, o


@triton.jit
def _three_axes(
    Q, K, V, OUT, LSE,
    qb, qh, qt, kb, kh, kt, vb, vh, vt, ob, oh, ot,
    H, KVH, T, sm_scale,
    D: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    g = h * KVH // H
    r = i * BR + tl.arange(0, BR)
    c = tl.arange(0, D)
    n = tl.arange(0, BC)
    q = tl.load(
        Q + b * qb + h * qh + r[:, None] * qt + c[None, :], mask=(r < T)[:, None], other=0.0
    )
    k_ptrs = K + b * kb + g * kh + n[None, :] * kt + c[:, None]
    v_ptrs = V + b * vb + g * vh + n[:, None] * vt + c[None, :]
    mx = tl.full((BR,), float("-inf"), dtype=tl.float32)
    z = tl.zeros((BR,), dtype=tl.float32)
    o = tl.zeros((BR, D), dtype=tl.float32)
    j = 0
    while j < i * BR // BC:
        kT = tl.load(k_ptrs)
        v = tl.load(v_ptrs)
        s = _scores(q, kT, sm_scale, r, n + j * BC, T, False)
        mx, z, o = _update(s, v, mx, z, o)
        k_ptrs += BC * kt
        v_ptrs += BC * vt
        j += 1
    while j * BC < tl.minimum((i + 1) * BR, T):
        m = n + j * BC
        kT = tl.load(k_ptrs, mask=(m < T)[None, :], other=0.0)
        v = tl.load(v_ptrs, mask=(m < T)[:, None], other=0.0)
        s = _scores(q, kT, sm_scale, r, m, T, True)
        mx, z, o = _update(s, v, mx, z, o)
        k_ptrs += BC * kt
        v_ptrs += BC * vt
        j += 1
    tl.store(
        OUT + b * ob + h * oh + r[:, None] * ot + c[None, :],
        (o / z[:, None]).to(OUT.dtype.element_ty),
        mask=(r < T)[:, None],
    )
    tl.store(LSE + (b * H + h) * T + r, mx + tl.log(z), mask=r < T)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    B, H, T, D = q.shape
    sm_scale = D**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H, T), dtype=torch.float32, device=q.device)
    _three_axes[(triton.cdiv(T, 64), H, B)](
        q, k, v, out, lse,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        H, k.shape[1], T, sm_scale, D=D, BR=64, BC=32, num_warps=4, num_stages=1,
    )  # fmt: skip
    return out, lse
