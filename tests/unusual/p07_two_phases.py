"""Sinks first, then the window, by one helper that is called for each of two ranges of keys."""


@triton.jit
def _loop(
    state_m, state_l, state_o, q, K, V, skn, svn, r, begin, stop, W, S, scale,
    D: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, D)
    for n0 in range(begin, stop, BC):
        n = n0 + tl.arange(0, BC)
        inside = n < stop
        k = tl.load(K + n[:, None] * skn + c[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(V + n[:, None] * svn + c[None, :], mask=inside[:, None], other=0.0)
        x = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        see = (n[None, :] <= r[:, None]) & ((n[None, :] > r[:, None] - W) | (n[None, :] < S))
        see = see & inside[None, :]
        x = tl.where(see, x, -1e9)
        top = tl.maximum(state_m, tl.max(x, 1))
        w = tl.where(see, tl.exp2(x - top[:, None]), 0.0)
        old = tl.exp2(state_m - top)
        state_l = state_l * old + tl.sum(w, 1)
        state_o = tl.dot(w.to(v.dtype), v, state_o * old[:, None], input_precision="ieee")
        state_m = top
    return state_m, state_l, state_o


@triton.jit
def _two_phases(
    Q, K, V, OUT, LSE, sq, sk, sv, H, G, T, W, S, scale,
    D: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    h, b = tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    m0 = tl.program_id(0) * BR
    r = m0 + tl.arange(0, BR)
    c = tl.arange(0, D)
    q = tl.load(
        Q + b * sq[0] + h * sq[1] + r[:, None] * sq[2] + c[None, :], (r < T)[:, None], other=0.0
    )
    K += b * sk[0] + h // G * sk[1]
    V += b * sv[0] + h // G * sv[1]
    mx = tl.full([BR], -1e9, tl.float32)
    z = tl.zeros([BR], tl.float32)
    o = tl.zeros([BR, D], tl.float32)
    left = tl.maximum(m0 - W + 1, 0)
    mx, z, o = _loop(mx, z, o, q, K, V, sk[2], sv[2], r, 0, tl.minimum(S, left), W, S, scale, D, BC)
    mx, z, o = _loop(
        mx, z, o, q, K, V, sk[2], sv[2], r, left, tl.minimum(m0 + BR, T), W, S, scale, D, BC
    )
    z = tl.where(r < T, z, 1.0)
    row = (b * H + h) * T + r
    tl.store(
        OUT + row[:, None] * D + c, (o / z[:, None]).to(OUT.dtype.element_ty), (r < T)[:, None]
    )
    tl.store(LSE + row, (mx + tl.log2(z)) * 0.6931471805599453, r < T)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    B, H, T, D = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((B, H, T), dtype=torch.float32, device=q.device)
    sm_scale = D**-0.5 if softmax_scale is None else softmax_scale
    _two_phases[(triton.cdiv(T, 64), H, B)](
        q, k, v, out, lse, q.stride(), k.stride(), v.stride(), H, H // k.shape[1], T,
        min(window_size, T), min(num_sink_tokens, T), sm_scale * 1.4426950408889634,
        D=D, BR=64, BC=16, num_stages=1,
    )  # fmt: skip
    return out, lse
