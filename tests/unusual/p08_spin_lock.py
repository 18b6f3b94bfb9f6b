"""Programs wait for each other: each tile of dQ has a lock, under which memory is added to."""


@triton.jit
def _locked(
    Q, K, V, DO, L, DELTA, DQ, DK, DV, LOCK, sq, sk, sv, sd, H, G, N, T, scale,
    D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    j, z = tl.program_id(0), tl.program_id(1).to(tl.int64)
    b, g = z // (H // G), z % (H // G)
    k = load_tile(K + b * sk[0] + g * sk[1], j * B, sk[2], N, B, D)
    v = load_tile(V + b * sv[0] + g * sv[1], j * B, sv[2], N, B, D)
    n, d = j * B + tl.arange(0, B), tl.arange(0, D)
    dk = tl.zeros([B, D], tl.float32)
    dv = tl.zeros([B, D], tl.float32)
    for h in range(g * G, g * G + G):
        for i in range(j, T):
            m = i * B + tl.arange(0, B)
            row = (b * H + h) * N + m
            q = load_tile(Q + b * sq[0] + h * sq[1], i * B, sq[2], N, B, D)
            do = load_tile(DO + b * sd[0] + h * sd[1], i * B, sd[2], N, B, D)
            lse = tl.load(L + row, mask=m < N, other=float("inf"))
            delta = tl.load(DELTA + row, mask=m < N, other=0.0)
            s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            p = tl.where(n[None, :] <= m[:, None], tl.exp(s - lse[:, None]), 0.0)
            dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
            dp = tl.dot(do, tl.trans(v), input_precision="ieee")
            ds = (p * (dp - delta[:, None]) * scale).to(q.dtype)
            dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
            part = tl.dot(ds, k, input_precision="ieee")
            at = DQ + row[:, None] * D + d
            lock = LOCK + (b * H + h) * T + i
            while tl.atomic_cas(lock, 0, 1) == 1:
                pass
            part += tl.load(at, mask=m[:, None] < N, other=0.0)
            tl.store(at, part, mask=m[:, None] < N)
            tl.debug_barrier()
            tl.atomic_xchg(lock, 0)
    store_tile(DK + z * N * D, j * B, D, dk, N, B, D)
    store_tile(DV + z * N * D, j * B, D, dv, N, B, D)


class _GqaAttention(_GqaAttention):
    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        dout = dout if dout.stride(3) == 1 else dout.contiguous()
        b, h, n, d = q.shape
        tiles, kv_heads = triton.cdiv(n, 32), k.shape[1]
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
        locks = torch.zeros(b * h * tiles, dtype=torch.int32, device=q.device)
        strides = (q.stride(), k.stride(), v.stride(), dout.stride())
        _locked[(tiles, b * kv_heads)](
            q, k, v, dout, lse, _launch_delta(out, dout), dq, dk, dv, locks, *strides,
            h, h // kv_heads, n, tiles, ctx.softmax_scale, D=d, B=32, num_stages=1,
        )  # fmt: skip
        return dq.to(q.dtype), dk, dv, None
