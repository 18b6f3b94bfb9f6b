"""A program per query head walks over the columns and adds to dQ in memory; K and V by atomics."""


@triton.jit
def _bwd_one_col_block(
    start_n, q_base, k_base, v_base, do_base, DQ, DK, DV, LSE, D, scale, sqm, skn, svn, sdm, seqlen,
    HEADDIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    begin_m = start_n * BLOCK_N // BLOCK_M * BLOCK_M
    offs_n, offs_d = start_n * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, HEADDIM)
    ok_n = (offs_n < seqlen)[:, None]
    dv = tl.zeros([BLOCK_N, HEADDIM], tl.float32)
    dk = tl.zeros([BLOCK_N, HEADDIM], tl.float32)
    k = tl.load(k_base + offs_n[:, None] * skn + offs_d[None, :], mask=ok_n, other=0.0)
    v = tl.load(v_base + offs_n[:, None] * svn + offs_d[None, :], mask=ok_n, other=0.0)
    for start_m in range(begin_m, seqlen, BLOCK_M):
        offs_m = start_m + tl.arange(0, BLOCK_M)
        ok = (offs_m < seqlen)[:, None]
        q = tl.load(q_base + offs_m[:, None] * sqm + offs_d[None, :], mask=ok, other=0.0)
        qk = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        qk = tl.where(offs_m[:, None] >= offs_n[None, :], qk, float("-inf"))
        lse_i = tl.load(LSE + offs_m, mask=offs_m < seqlen, other=float("inf"))
        p = tl.exp(qk - lse_i[:, None])
        do = tl.load(do_base + offs_m[:, None] * sdm + offs_d[None, :], mask=ok, other=0.0)
        dv += tl.dot(tl.trans(p.to(do.dtype)), do, input_precision="ieee")
        dp = tl.dot(do, tl.trans(v), input_precision="ieee")
        Di = tl.load(D + offs_m, mask=offs_m < seqlen, other=0.0)
        ds = (p * (dp - Di[:, None]) * scale).to(q.dtype)
        dk += tl.dot(tl.trans(ds), q, input_precision="ieee")
        dq_ptrs = DQ + offs_m[:, None] * HEADDIM + offs_d[None, :]
        # not parallel over the columns: this program alone owns these rows
        tl.debug_barrier()
        dq = tl.load(dq_ptrs, mask=ok, other=0.0, eviction_policy="evict_last")
        dq += tl.dot(ds, k, input_precision="ieee")
        tl.store(dq_ptrs, dq, mask=ok, eviction_policy="evict_last")
    tl.debug_barrier()
    dkv = offs_n[:, None] * HEADDIM + offs_d[None, :]
    # several query heads share this row
    tl.atomic_add(DK + dkv, dk, mask=ok_n, sem="relaxed")
    tl.atomic_add(DV + dkv, dv, mask=ok_n, sem="relaxed")


@triton.jit
def _bwd_kernel(
    Q, K, V, DO, DQ, DK, DV, LSE, D, scale, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, sdb, sdh,
    sdm, nheads, group, seqlen, HEADDIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    off_hb = tl.program_id(0).to(tl.int64)
    b, h = off_hb // nheads, off_hb % nheads
    kvh = (b * (nheads // group) + h // group).to(tl.int64) * seqlen * HEADDIM
    DQ += off_hb.to(tl.int64) * seqlen * HEADDIM
    LSE += off_hb * seqlen
    D += off_hb * seqlen
    for start_n in range(0, tl.cdiv(seqlen, BLOCK_N)):
        _bwd_one_col_block(
            start_n, Q + b * sqb + h * sqh, K + b * skb + h // group * skh,
            V + b * svb + h // group * svh, DO + b * sdb + h * sdh, DQ, DK + kvh, DV + kvh, LSE, D,
            scale, sqm, skn, svn, sdm, seqlen, HEADDIM, BLOCK_M, BLOCK_N,
        )  # fmt: skip


@triton.jit
def _convert(src, dst, n, B: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    tl.store(dst + i, tl.load(src + i, mask=i < n).to(dst.dtype.element_ty), mask=i < n)


def convert(src, dtype):
    dst = torch.empty_like(src, dtype=dtype)
    _convert[(triton.cdiv(src.numel(), 1024),)](src, dst, src.numel(), B=1024)
    return dst


class _GqaAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, softmax_scale):
        o, lse = gqa_forward(q, k, v, softmax_scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.softmax_scale = softmax_scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        assert not ctx.needs_input_grad[3], (
            "FlashAttention does not support a gradient of the scale"
        )
        if do.stride(-1) != 1:
            do = do.contiguous()
        b, h, n, d = q.shape
        f32 = dict(dtype=torch.float32, device=q.device)
        with torch.inference_mode():
            dq = torch.zeros(q.shape, **f32)
            dk, dv = torch.zeros(k.shape, **f32), torch.zeros(v.shape, **f32)
            _bwd_kernel[(b * h,)](
                q, k, v, do, dq, dk, dv, lse, _launch_delta(o, do), ctx.softmax_scale,
                *q.stride()[:-1], *k.stride()[:-1], *v.stride()[:-1], *do.stride()[:-1], h,
                h // k.shape[1], n, HEADDIM=d, BLOCK_M=32, BLOCK_N=32, num_warps=4, num_stages=1,
            )  # fmt: skip
            grads = convert(dq, q.dtype), convert(dk, k.dtype), convert(dv, v.dtype)
        return (*grads, None)
