# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""The logit is the last column of scores; a program owns rows and skips from sinks to window."""

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _fwd(
    Q, K, V, Z, OUT, L, sq, sk, sv, sz, H, G, N, W, S, scale,
    HAS_Z: tl.constexpr, D: tl.constexpr, M: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    bh, t = tl.program_id(0), tl.program_id(1)
    b, h = bh // H, bh % H
    i, d = t * M + tl.arange(0, M), tl.arange(0, D)
    q = tl.load(Q + b * sq[0] + h * sq[1] + i[:, None] * sq[2] + d, mask=i[:, None] < N, other=0.0)
    m, total = tl.full((M,), float("-inf"), tl.float32), tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    window = tl.maximum(t * M - W + 1, 0) // B
    end = tl.cdiv(tl.minimum(t * M + M, N), B)
    sinks = tl.minimum(tl.cdiv(S, B), window)
    for x in range(sinks + end - window):
        c = tl.where(x < sinks, x, window + x - sinks)
        j = c * B + tl.arange(0, B)
        k = tl.load(
            K + b * sk[0] + h // G * sk[1] + j[:, None] * sk[2] + d, mask=j[:, None] < N, other=0.0
        )
        v = tl.load(
            V + b * sv[0] + h // G * sv[1] + j[:, None] * sv[2] + d, mask=j[:, None] < N, other=0.0
        )
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        see = (j[None, :] <= i[:, None]) & ((i[:, None] - W < j[None, :]) | (j[None, :] < S))
        s = tl.where(see, s, float("-inf"))
        n = tl.maximum(m, tl.max(s, 1))
        z0 = tl.where(n == float("-inf"), 0.0, n)
        p, f = tl.exp2(s - z0[:, None]), tl.exp2(m - z0)
        total = total * f + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * f[:, None], input_precision="ieee")
        m = n
    if HAS_Z:
        # [M, B] scores: the logit, then padding
        z = tl.load(Z + h * sz).to(tl.float32) * LOG2E
        col = tl.where(tl.arange(0, B)[None, :] == 0, z, float("-inf")) + tl.zeros(
            (M, B), tl.float32
        )
        n = tl.maximum(m, tl.max(col, 1))
        f = tl.exp2(m - n)
        total = total * f + tl.sum(tl.exp2(col - n[:, None]), 1)
        acc *= f[:, None]
        m = n
    r = bh.to(tl.int64) * N + i
    tl.store(
        OUT + r[:, None] * D + d,
        (acc / total[:, None]).to(OUT.dtype.element_ty),
        mask=i[:, None] < N,
    )
    tl.store(L + r, m + tl.log2(total), mask=i < N)


@triton.jit
def _delta(
    OUT, DO, Z, L, DELTA, DZ, sd, sz, H, N, HAS_Z: tl.constexpr, D: tl.constexpr, M: tl.constexpr
):
    bh, t = tl.program_id(0), tl.program_id(1)
    h = bh % H
    i, d = t * M + tl.arange(0, M), tl.arange(0, D)
    r = bh.to(tl.int64) * N + i
    o = tl.load(OUT + r[:, None] * D + d, mask=i[:, None] < N, other=0.0).to(tl.float32)
    g = tl.load(
        DO + bh // H * sd[0] + h * sd[1] + i[:, None] * sd[2] + d, mask=i[:, None] < N, other=0.0
    ).to(tl.float32)
    x = tl.sum(o * g, 1)
    tl.store(DELTA + r, x, mask=i < N)
    if HAS_Z:
        z = tl.load(Z + h * sz).to(tl.float32) * LOG2E
        p = tl.exp2(z - tl.load(L + r, mask=i < N, other=float("inf")))
        tl.atomic_add(DZ + h, -tl.sum(p * x))


@triton.jit
def _bwd(
    Q, K, V, DO, L, DELTA, DQ, DK, DV, sq, sk, sv, sd, H, G, N, W, S, scale,
    D: tl.constexpr, M: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    """Rows own dq; what they give to keys is added to scratch."""
    bh, t = tl.program_id(0), tl.num_programs(1) - 1 - tl.program_id(1)
    b, h = bh // H, bh % H
    i, d = t * M + tl.arange(0, M), tl.arange(0, D)
    live = i[:, None] < N
    r = bh.to(tl.int64) * N + i
    q = tl.load(Q + b * sq[0] + h * sq[1] + i[:, None] * sq[2] + d, mask=live, other=0.0)
    g = tl.load(DO + b * sd[0] + h * sd[1] + i[:, None] * sd[2] + d, mask=live, other=0.0)
    lse = tl.load(L + r, mask=i < N, other=float("inf"))
    delta = tl.load(DELTA + r, mask=i < N, other=0.0)
    dq = tl.zeros((M, D), tl.float32)
    lo = tl.maximum(t * M - W + 1, 0)
    c = 0
    while c < tl.minimum(t * M + M, N):
        j = c + tl.arange(0, B)
        k = tl.load(
            K + b * sk[0] + h // G * sk[1] + j[:, None] * sk[2] + d, mask=j[:, None] < N, other=0.0
        )
        v = tl.load(
            V + b * sv[0] + h // G * sv[1] + j[:, None] * sv[2] + d, mask=j[:, None] < N, other=0.0
        )
        see = (j[None, :] <= i[:, None]) & ((i[:, None] - W < j[None, :]) | (j[None, :] < S)) & live
        s = tl.dot(q, k.T, input_precision="ieee") * (scale * LOG2E)
        p = tl.exp2(tl.where(see, s - lse[:, None], float("-inf")))
        ds = (p * (tl.dot(g, v.T, input_precision="ieee") - delta[:, None]) * scale).to(q.dtype)
        dq = tl.dot(ds, k, dq, input_precision="ieee")
        to = ((b * (H // G) + h // G).to(tl.int64) * N + j[:, None]) * D + d
        tl.atomic_add(
            DV + to, tl.dot(p.T.to(g.dtype), g, input_precision="ieee"), mask=j[:, None] < N
        )
        tl.atomic_add(DK + to, tl.dot(ds.T, q, input_precision="ieee"), mask=j[:, None] < N)
        # from the last tile with a sink on to the first of the window
        c += B
        if (c >= S) & (c < lo // B * B):
            c = lo // B * B
    tl.store(DQ + r[:, None] * D + d, dq.to(DQ.dtype.element_ty), mask=live)


class Op(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, z, W, S, scale):
        b, h, n, d = q.shape
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        has = z is not None
        _fwd[(b * h, triton.cdiv(n, 64))](
            q, k, v, z, out, lse, q.stride(), k.stride(), v.stride(), z.stride(0) if has else 0, h,
            h // k.shape[1], n, W, S, scale * LOG2E.value, HAS_Z=has, D=d, M=64, B=16, num_stages=1,
        )  # fmt: skip
        ctx.saved = (W, S, scale, has)
        ctx.save_for_backward(q, k, v, z, out, lse)
        return out

    @staticmethod
    def backward(ctx, g):
        q, k, v, z, out, lse = ctx.saved_tensors
        W, S, scale, has = ctx.saved
        b, h, n, d = q.shape
        if g.stride(3) != 1:
            g = g.clone(memory_format=torch.contiguous_format)
        delta, dq = torch.empty_like(lse), q.new_empty(q.shape)
        dk, dv = torch.zeros((2, *k.shape), dtype=torch.float32, device=q.device)
        dz = torch.zeros(h, dtype=torch.float32, device=q.device)
        _delta[(b * h, triton.cdiv(n, 64))](
            out, g, z, lse, delta, dz, g.stride(), z.stride(0) if has else 0, h, n,
            HAS_Z=has, D=d, M=64,
        )  # fmt: skip
        _bwd[(b * h, triton.cdiv(n, 16))](
            q, k, v, g, lse, delta, dq, dk, dv, q.stride(), k.stride(), v.stride(), g.stride(), h,
            h // k.shape[1], n, W, S, scale, D=d, M=16, B=32, num_stages=1,
        )  # fmt: skip
        return dq, dk.to(k.dtype), dv.to(v.dtype), dz.to(z.dtype) if has else None, None, None, None


def sink_window_attention(
    q, k, v, *, window_size, num_sink_tokens=0, sink_logits=None, softmax_scale=None
):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    check_sink_logits(sink_logits, q)
    n, d = q.shape[-2:]
    return Op.apply(
        q, k, v, sink_logits, min(window_size, n), min(num_sink_tokens, n),
        default_scale(softmax_scale, d),
    )  # fmt: skip
