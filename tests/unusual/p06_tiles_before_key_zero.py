"""Device descriptors whose loads may begin before key 0: the window starts where it starts."""


@triton.jit
def _banded(
    Q, K, V, OUT, LSE, qs, ks, vs, HQ, G, T, W, sc, D: tl.constexpr, BM: tl.constexpr,
    BN: tl.constexpr,
):  # fmt: skip
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // HQ, bh % HQ
    lo = tl.program_id(0) * BM
    qd = tl.make_tensor_descriptor(Q + b * qs[0] + h * qs[1], [T, D], [qs[2], 1], [BM, D])
    kd = tl.make_tensor_descriptor(K + b * ks[0] + h // G * ks[1], [T, D], [ks[2], 1], [BN, D])
    vd = tl.make_tensor_descriptor(V + b * vs[0] + h // G * vs[1], [T, D], [vs[2], 1], [BN, D])
    od = tl.make_tensor_descriptor(OUT + bh * T * D, [T, D], [D, 1], [BM, D])
    m = lo + tl.arange(0, BM)
    q = qd.load([lo, 0])
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    last = tl.minimum(lo + BM, T)
    # tiles are counted back from the diagonal, so the first may begin at a negative key
    span = tl.minimum(last - lo + W - 1, last)
    first = last - tl.cdiv(span, BN) * BN
    for start in range(first, last, BN):
        n = start + tl.arange(0, BN)
        s = tl.dot(q, kd.load([start, 0]).T, input_precision="ieee") * sc
        gap = m[:, None] - n[None, :]
        s = tl.where((gap >= 0) & (gap < W) & (n >= 0)[None, :], s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        ref = tl.where(now > float("-inf"), now, 0.0)
        p = tl.exp2(s - ref[:, None])
        f = tl.exp2(top - ref)
        den = den * f + tl.sum(p, 1)
        v = vd.load([start, 0])
        acc = acc * f[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        top = now
    od.store([lo, 0], (acc / den[:, None]).to(OUT.dtype.element_ty))
    tl.store(LSE + bh * T + m, (top + tl.log2(den)) * 0.6931471805599453, mask=m < T)


def _alloc(size, alignment, stream):
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _fits(x):
    return (
        all(s * x.element_size() % 16 == 0 and s > 0 for s in x.stride()[:3])
        and x.data_ptr() % 16 == 0
    )


def attention(q, k, v, *, window_size, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    triton.set_allocator(_alloc)
    q, k, v = (x if _fits(x) else x.clone(memory_format=torch.contiguous_format) for x in (q, k, v))
    b, h, t, d = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, t), dtype=torch.float32, device=q.device)
    _banded[(triton.cdiv(t, 32), b * h)](
        q, k, v, o, lse, q.stride(), k.stride(), v.stride(), h, h // k.shape[1], t,
        min(window_size, t), default_scale(softmax_scale, d) * 1.4426950408889634, D=d, BM=32,
        BN=32, num_warps=4,
    )  # fmt: skip
    return o, lse
