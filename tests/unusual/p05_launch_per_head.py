"""A launch for each query head, on views of one head: the kernel knows neither batch nor heads."""


@triton.jit
def _one_head(Q, K, V, OUT, L, sqm, skn, svn, N, scale, D: tl.constexpr, B: tl.constexpr):
    lo = tl.program_id(0) * B
    m = lo + tl.arange(0, B)
    d = tl.arange(0, D)
    q = tl.load(Q + m[:, None] * sqm + d, m[:, None] < N, other=0.0)
    top = tl.full([B], float("-inf"), tl.float32)
    den = tl.zeros([B], tl.float32)
    acc = tl.zeros([B, D], tl.float32)
    for start in range(0, lo + B, B):
        n = start + tl.arange(0, B)
        k = tl.load(K + n[:, None] * skn + d, n[:, None] < N, other=0.0)
        v = tl.load(V + n[:, None] * svn + d, n[:, None] < N, other=0.0)
        s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        s = tl.where(n[None, :] <= m[:, None], s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        fade = tl.exp(top - now)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    tl.store(
        OUT + m[:, None] * D + d, (acc / den[:, None]).to(OUT.dtype.element_ty), m[:, None] < N
    )
    tl.store(L + m, top + tl.log(den), mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    b, h, n, d = q.shape
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    for i in range(b):
        for j in range(h):
            kj = j * k.shape[1] // h
            _one_head[(triton.cdiv(n, 64),)](
                q[i, j], k[i, kj], v[i, kj], out[i, j], lse[i, j],
                q.stride(2), k.stride(2), v.stride(2), n, scale, D=d, B=64, num_stages=1,
            )  # fmt: skip
    return out, lse
