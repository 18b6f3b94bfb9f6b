# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""A program per query head walks over the columns and adds to dQ in memory; K and V by atomics."""


@triton.heuristics({"EVEN_M": lambda a: a["seqlen"] % a["BLOCK_M"] == 0})
@triton.jit
def _fwd_kernel(
    Q, K, V, Out, Lse, scale, sqb, sqh, sqm, skb, skh, skn, svb, svh, svn, nheads, group, seqlen,
    HEADDIM: tl.constexpr, EVEN_M: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    start_m = tl.program_id(0)
    off_hb = tl.program_id(1).to(tl.int64)
    off_b, off_h = off_hb // nheads, off_hb % nheads
    offs_m, offs_d = start_m * BLOCK_M + tl.arange(0, BLOCK_M), tl.arange(0, HEADDIM)
    q_ptrs = Q + off_b * sqb + off_h * sqh + offs_m[:, None] * sqm + offs_d[None, :]
    if EVEN_M:  # noqa: SIM108
        q = tl.load(q_ptrs)
    else:
        q = tl.load(q_ptrs, mask=offs_m[:, None] < seqlen, other=0.0)
    lse_i = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    m_i = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    acc = tl.zeros([BLOCK_M, HEADDIM], tl.float32)
    for start_n in range(0, tl.minimum((start_m + 1) * BLOCK_M, seqlen), BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = tl.load(
            K + off_b * skb + off_h // group * skh + offs_n[:, None] * skn + offs_d[None, :],
            mask=offs_n[:, None] < seqlen,
            other=0.0,
        )
        qk = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        qk += tl.where(offs_m[:, None] >= offs_n[None, :], 0, float("-inf"))
        m_ij = tl.maximum(tl.max(qk, 1), lse_i)
        p = tl.exp(qk - m_ij[:, None])
        acc = acc * tl.exp(m_i - m_ij)[:, None]
        v = tl.load(
            V + off_b * svb + off_h // group * svh + offs_n[:, None] * svn + offs_d[None, :],
            mask=offs_n[:, None] < seqlen,
            other=0.0,
        )
        acc += tl.dot(p.to(v.dtype), v, input_precision="ieee")
        m_i = m_ij
        lse_i = m_ij + tl.log(tl.exp(lse_i - m_ij) + tl.sum(p, 1))
    acc = acc * tl.exp(m_i - lse_i)[:, None]
    rows = off_hb * seqlen + offs_m
    tl.store(Lse + rows, lse_i, mask=offs_m < seqlen)
    tl.store(
        Out + rows[:, None].to(tl.int64) * HEADDIM + offs_d[None, :],
        acc,
        mask=offs_m[:, None] < seqlen,
    )


@triton.jit
def _bwd_preprocess_do_o_dot(
    Out, DO, Delta, sdb, sdh, sdm, nheads, seqlen, BLOCK_M: tl.constexpr, HEADDIM: tl.constexpr
):
    off_hb = tl.program_id(1).to(tl.int64)
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEADDIM)
    ok = (m < seqlen)[:, None]
    o = tl.load(
        Out + (off_hb * seqlen + m)[:, None].to(tl.int64) * HEADDIM + d[None, :], mask=ok, other=0.0
    ).to(tl.float32)
    do = tl.load(
        DO + (off_hb // nheads) * sdb + (off_hb % nheads) * sdh + m[:, None] * sdm + d[None, :],
        mask=ok,
        other=0.0,
    ).to(tl.float32)
    tl.store(Delta + off_hb * seqlen + m, tl.sum(o * do, axis=1), mask=m < seqlen)


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


class FlashAttnFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, softmax_scale):
        b, h, n, d = q.shape
        o = torch.empty((b, h, n, d), dtype=q.dtype, device=q.device)
        lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
        _fwd_kernel[lambda META: (triton.cdiv(n, META["BLOCK_M"]), b * h)](
            q, k, v, o, lse, softmax_scale, *q.stride()[:-1], *k.stride()[:-1], *v.stride()[:-1], h,
            h // k.shape[1], n, HEADDIM=d, BLOCK_M=32, BLOCK_N=32, num_warps=4, num_stages=1,
        )  # fmt: skip
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
            delta = torch.empty_like(lse)
            _bwd_preprocess_do_o_dot[(triton.cdiv(n, 32), b * h)](
                o, do, delta, *do.stride()[:-1], h, n, BLOCK_M=32, HEADDIM=d
            )
            _bwd_kernel[(b * h,)](
                q, k, v, do, dq, dk, dv, lse, delta, ctx.softmax_scale, *q.stride()[:-1],
                *k.stride()[:-1], *v.stride()[:-1], *do.stride()[:-1], h, h // k.shape[1], n,
                HEADDIM=d, BLOCK_M=32, BLOCK_N=32, num_warps=4, num_stages=1,
            )  # fmt: skip
            grads = convert(dq, q.dtype), convert(dk, k.dtype), convert(dv, v.dtype)
        return (*grads, None)


def gqa_attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    return FlashAttnFunc.apply(q, k, v, default_scale(softmax_scale, q.shape[-1]))
