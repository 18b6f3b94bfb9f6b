"""Scores, weights and output are held transposed: keys down, queries across."""


@triton.jit
def _transposed(
    Q, K, V, OUT, L, sq, sk, sv, H, M, N, scale_log2,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(2).to(tl.int64)
    h = tl.program_id(0).to(tl.int64)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    d = tl.arange(0, D)
    q_t = tl.load(
        Q + b * sq[0] + h * sq[1] + m[None, :] * sq[2] + d[:, None],
        mask=(m < M)[None, :],
        other=0.0,
    )
    top = tl.full([BM], float("-inf"), dtype=tl.float32)
    den = tl.zeros([BM], dtype=tl.float32)
    acc_t = tl.zeros([D, BM], dtype=tl.float32)
    k_ptrs = K + b * sk[0] + h * sk[1] + tl.arange(0, BN)[:, None] * sk[2] + d[None, :]
    v_ptrs = V + b * sv[0] + h * sv[1] + tl.arange(0, BN)[None, :] * sv[2] + d[:, None]
    for start in range(0, N, BN):
        n = start + tl.arange(0, BN)
        k = tl.load(k_ptrs, mask=(n < N)[:, None], other=0.0)
        v_t = tl.load(v_ptrs, mask=(n < N)[None, :], other=0.0)
        s_t = tl.dot(k, q_t, input_precision="ieee") * scale_log2
        s_t = tl.where((n < N)[:, None], s_t, float("-inf"))
        now = tl.maximum(top, tl.max(s_t, 0))
        p_t = tl.math.exp2(s_t - now[None, :])
        fade = tl.math.exp2(top - now)
        den = den * fade + tl.sum(p_t, axis=0)
        acc_t *= fade[None, :]
        acc_t += tl.dot(v_t, p_t.to(v_t.dtype), input_precision="ieee")
        top = now
        k_ptrs += BN * sk[2]
        v_ptrs += BN * sv[2]
    row = (b * H + h) * M + m
    o_t = (acc_t / den[None, :]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[None, :] * D + d[:, None], o_t, mask=(m < M)[None, :])
    tl.store(L + row, (top + tl.log2(den)) * 0.6931471805599453, mask=m < M)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    b, h, m, d = q.shape
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    out = q.new_empty((b, h, m, d))
    lse = q.new_empty((b, h, m), dtype=torch.float32)
    _transposed[(h, triton.cdiv(m, 32), b)](
        q, k, v, out, lse, q.stride()[:3], k.stride()[:3], v.stride()[:3],
        h, m, k.shape[2], scale * 1.4426950408889634, D=d, BM=32, BN=64, num_stages=2,
    )  # fmt: skip
    return out, lse
