"""Inputs are laid out anew first, K transposed; dots of all dtypes in fp32."""


@triton.jit
def _of_copies(Q, KT, V, OUT, L, N, scale, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    bh = tl.program_id(0).to(tl.int64)
    lo = tl.program_id(1) * BM
    m = lo + tl.arange(0, BM)
    d = tl.arange(0, D)
    tl.assume(N > 0)
    inside = m[:, None] < N
    q = tl.load(Q + (bh * N + m)[:, None] * D + d, inside, other=0.0).to(tl.float32) * scale
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for start in range(0, tl.minimum(lo + BM, N), BN):
        n = start + tl.arange(0, BN)
        kt = tl.load(KT + (bh * D + d)[:, None] * N + n[None, :], n[None, :] < N, other=0.0)
        s = tl.dot(q, kt.to(tl.float32), input_precision="ieee")
        s = tl.where(n[None, :] <= m[:, None], s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        fade = tl.exp(top - now)
        den = den * fade + tl.sum(p, 1)
        v = tl.load(V + (bh * N + n)[:, None] * D + d, n[:, None] < N, other=0.0).to(tl.float32)
        acc = tl.dot(p, v, acc * fade[:, None], input_precision="ieee")
        top = now
    row = bh * N + m
    tl.store(OUT + row[:, None] * D + d, (acc / den[:, None]).to(OUT.dtype.element_ty), mask=inside)
    tl.store(L + row, top + tl.log(den), mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _of_copies[(b * h, triton.cdiv(n, 64))](
        q.contiguous(), k.transpose(2, 3).contiguous(), v.contiguous(), out, lse, n,
        d**-0.5 if softmax_scale is None else softmax_scale,
        D=d, BM=64, BN=32, num_stages=1, num_warps=8,
    )  # fmt: skip
    return out, lse
