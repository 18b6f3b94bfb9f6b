"""Tensors in a tuple, programs in groups as in a product of matrices, masks by the lowest fp32."""

import functools

FMIN = tl.constexpr(torch.finfo(torch.float32).min)


@triton.jit
def swizzle(pid, num_m, num_h, GROUP: tl.constexpr):
    width = GROUP * num_m
    group = pid // width
    first = group * GROUP
    size = min(num_h - first, GROUP)
    h = first + (pid % width) % size
    m = (pid % width) // size
    return num_m - 1 - m, h


@triton.jit
def kernel(
    desc, o_ptr, lse_ptr, BH, N, scale: tl.float32,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    q_ptr, k_ptr, v_ptr = desc
    m_tile, bh = swizzle(tl.program_id(0), tl.cdiv(N, BM), BH, GROUP)
    base = bh.to(tl.int64) * N * D
    rows = m_tile * BM + tl.arange(0, BM)[:, None]
    d = tl.arange(0, D)[None, :]
    q = tl.load(q_ptr + base + rows * D + d, mask=rows < N, other=0.0)
    m = tl.full((BM, 1), FMIN, tl.float32)
    total = tl.zeros((BM, 1), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for n0 in tl.range(
        0, tl.minimum((m_tile + 1) * BM, N), BN, flatten=True, disallow_acc_multi_buffer=True
    ):
        cols = n0 + tl.arange(0, BN)[None, :]
        kt = tl.load(k_ptr + base + cols * D + tl.trans(d), mask=cols < N, other=0.0)
        s = tl.dot(q, kt, input_precision="ieee") * scale
        if n0 + BN > m_tile * BM:
            s = tl.where(cols <= rows, s, FMIN)
        new = tl.maximum(m, tl.max(s, 1, keep_dims=True))
        p = tl.exp(s - new)
        a = tl.exp(m - new)
        total = tl.fma(total, a, tl.sum(p, 1, keep_dims=True))
        vt = tl.load(v_ptr + base + tl.trans(cols) * D + d, mask=tl.trans(cols) < N, other=0.0)
        acc = tl.dot(p.to(vt.dtype), vt, acc=acc * a, input_precision="ieee")
        m = new
    tl.store(
        o_ptr + base + rows * D + d, (acc * (1.0 / total)).to(o_ptr.dtype.element_ty), mask=rows < N
    )
    tl.store(lse_ptr + bh * N + rows, m + tl.log(total), mask=rows < N)


@functools.cache
def config(d, itemsize):
    return dict(BM=32, BN=32 if d * itemsize <= 256 else 16, GROUP=4, num_warps=4, num_stages=1)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    q, k, v = (t.contiguous() for t in (q, k, v))
    out, lse = torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)
    cfg = config(q.shape[-1], q.element_size())
    heads = q.shape[0] * q.shape[1]
    kernel[(triton.cdiv(q.shape[2], cfg["BM"]) * heads,)](
        (q, k, v), out, lse, heads, q.shape[2], default_scale(softmax_scale, q.shape[-1]),
        D=q.shape[-1], **cfg,
    )  # fmt: skip
    return out, lse
