"""One program per tile of queries: dQ in registers, dK and dV by atomics, q scaled when loaded."""


@triton.jit
def _by_queries(
    Q, K, V, OUT, DO, LSE, DQ, DK, DV, sq, sk, sv, so, sdo, Hq, Hkv, T, sm_scale,
    D: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b = bh // Hq
    h = bh % Hq
    kvh = h // (Hq // Hkv)
    r = i * BR + tl.arange(0, BR)
    c = tl.arange(0, D)
    live = (r < T)[:, None]
    Qi = tl.load(Q + b * sq[0] + h * sq[1] + r[:, None] * sq[2] + c[None, :], mask=live, other=0.0)
    Oi = tl.load(
        OUT + b * so[0] + h * so[1] + r[:, None] * so[2] + c[None, :], mask=live, other=0.0
    )
    dOi = tl.load(
        DO + b * sdo[0] + h * sdo[1] + r[:, None] * sdo[2] + c[None, :], mask=live, other=0.0
    )
    L = tl.load(LSE + bh * T + r, mask=r < T, other=0.0)
    Di = tl.sum(dOi.to(tl.float32) * Oi.to(tl.float32), axis=1)
    dQi = tl.zeros((BR, D), dtype=tl.float32)
    for j in range(0, tl.cdiv(tl.minimum((i + 1) * BR, T), BC)):
        n = j * BC + tl.arange(0, BC)
        there = (n < T)[:, None]
        Kj = tl.load(K + b * sk[0] + kvh * sk[1] + n[:, None] * sk[2] + c, mask=there, other=0.0)
        Vj = tl.load(V + b * sv[0] + kvh * sv[1] + n[:, None] * sv[2] + c, mask=there, other=0.0)
        S = tl.dot(Qi, Kj.T, input_precision="ieee") * sm_scale
        ok = (r[:, None] >= n[None, :]) & (r < T)[:, None]
        P = tl.where(ok, tl.exp(S - L[:, None]), 0.0)
        dP = tl.dot(dOi, Vj.T, input_precision="ieee")
        dS = P * (dP - Di[:, None])
        dS = (dS * sm_scale).to(Kj.dtype)
        dQi += tl.dot(dS, Kj, input_precision="ieee")
        spot = ((b * Hkv + kvh) * T + n)[:, None] * D + c[None, :]
        tl.atomic_add(DV + spot, tl.dot(P.to(dOi.dtype).T, dOi, input_precision="ieee"), mask=there)
        tl.atomic_add(DK + spot, tl.dot(dS.T, Qi, input_precision="ieee"), mask=there)
    tl.store(DQ + (bh * T + r)[:, None] * D + c[None, :], dQi.to(DQ.dtype.element_ty), mask=live)


class _GqaAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, softmax_scale):
        out, lse = gqa_forward(q, k, v, softmax_scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.sm_scale = softmax_scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        q, k, v, out, lse = ctx.saved_tensors
        if grad.stride(-1) != 1:
            grad = grad.contiguous()
        B, Hq, T, D = q.shape
        Hkv = k.shape[1]
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk = torch.zeros(k.shape, dtype=torch.float32, device=q.device)
        dv = torch.zeros(v.shape, dtype=torch.float32, device=q.device)
        grid = (triton.cdiv(T, 32), B * Hq)
        _by_queries[grid](
            q, k, v, out, grad, lse, dq, dk, dv, q.stride(), k.stride(), v.stride(),
            out.stride(), grad.stride(), Hq, Hkv, T, ctx.sm_scale,
            D=D, BR=32, BC=32, num_warps=4, num_stages=1,
        )  # fmt: skip
        return dq, dk.to(k.dtype), dv.to(v.dtype), None
