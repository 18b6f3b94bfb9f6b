"""One loop moves the pointers that it loads from and that of dQ, which is added to by atomics."""


def zeroed(name):
    return lambda nargs: nargs[name].zero_()


@triton.jit
def _column(
    start, Q, K, V, DO, DQ, DK, DV, L, DELTA, scale, sqm, skn, svn, sdm, N,
    ATOMIC: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    first = start * BN // BM * BM
    m, n, d = tl.arange(0, BM), start * BN + tl.arange(0, BN), tl.arange(0, D)
    q_ptrs = Q + ((first + m)[:, None] * sqm + d)
    do_ptrs = DO + ((first + m)[:, None] * sdm + d)
    dq_ptrs = DQ + ((first + m)[:, None] * D + d)
    k = tl.load(K + n[:, None] * skn + d, mask=n[:, None] < N, other=0.0)
    v = tl.load(V + n[:, None] * svn + d, mask=n[:, None] < N, other=0.0)
    dk = tl.zeros([BN, D], tl.float32)
    dv = tl.zeros([BN, D], tl.float32)
    for start_m in range(first, N, BM):
        rows = start_m + m
        inside = rows[:, None] < N
        q = tl.load(q_ptrs, mask=inside, other=0.0)
        do = tl.load(do_ptrs, mask=inside, other=0.0)
        lse = tl.load(L + rows, mask=rows < N, other=float("inf"))
        delta = tl.load(DELTA + rows, mask=rows < N, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        p = tl.exp(tl.where(rows[:, None] >= n[None, :], s, float("-inf")) - lse[:, None])
        dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        ds = (p * (dp - delta[:, None]) * scale).to(q.dtype)
        dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
        dq = tl.dot(ds, k, input_precision="ieee")
        if ATOMIC:
            tl.atomic_add(dq_ptrs, dq, mask=inside)
        else:
            dq += tl.load(dq_ptrs, mask=inside, other=0.0, eviction_policy="evict_last")
            tl.store(dq_ptrs, dq, mask=inside, eviction_policy="evict_last")
        q_ptrs += BM * sqm
        do_ptrs += BM * sdm
        dq_ptrs += BM * D
    tl.store(DK + n[:, None] * D + d, dk, mask=n[:, None] < N)
    tl.store(DV + n[:, None] * D + d, dv, mask=n[:, None] < N)


@triton.autotune(
    configs=[
        triton.Config({"BM": 64, "BN": 32, "SPREAD": True}, num_stages=1, pre_hook=zeroed("DQ")),
        triton.Config({"BM": 32, "BN": 32, "SPREAD": False}, num_stages=1, pre_hook=zeroed("DQ")),
    ],
    key=["N", "D"],
)
@triton.jit
def _columns(
    Q, K, V, DO, DQ, DK, DV, L, DELTA, scale, sq, sk, sv, sd, H, G, N,
    D: tl.constexpr, SPREAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    Q += b * sq[0] + h * sq[1]
    K += b * sk[0] + h // G * sk[1]
    V += b * sv[0] + h // G * sv[1]
    DO += b * sd[0] + h * sd[1]
    DQ += bh * N * D
    DK += bh * N * D
    DV += bh * N * D
    L += bh * N
    DELTA += bh * N
    if SPREAD:
        _column(
            tl.program_id(0), Q, K, V, DO, DQ, DK, DV, L, DELTA, scale, sq[2], sk[2], sv[2], sd[2],
            N, True, D, BM, BN,
        )  # fmt: skip
    else:
        for start in range(0, tl.cdiv(N, BN)):
            _column(
                start, Q, K, V, DO, DQ, DK, DV, L, DELTA, scale, sq[2], sk[2], sv[2], sd[2],
                N, False, D, BM, BN,
            )  # fmt: skip


def gradients(q, k, v, dout, lse, delta, softmax_scale):
    b, h, n, d = q.shape
    g = h // k.shape[1]
    dq, dk, dv = (torch.empty(q.shape, dtype=torch.float32, device=q.device) for _ in range(3))

    def grid(meta):
        return (triton.cdiv(n, meta["BN"]) if meta["SPREAD"] else 1, b * h)

    strides = (q.stride(), k.stride(), v.stride(), dout.stride())
    _columns[grid](q, k, v, dout, dq, dk, dv, lse, delta, softmax_scale, *strides, h, g, n, D=d)
    dk, dv = (x.view(b, h // g, g, n, d).sum(2) for x in (dk, dv))
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


class _GqaAttention(_GqaAttention):
    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        dout = dout if dout.stride(3) == 1 else dout.contiguous()
        delta = _launch_delta(out, dout)
        return *gradients(q, k, v, dout, lse, delta, ctx.softmax_scale), None
