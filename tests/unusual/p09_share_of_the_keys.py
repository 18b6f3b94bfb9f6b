"""The share of the keys multiplies their output; a kernel per head makes dsink; dK, dV by head."""


@triton.jit
def rows2(ptr, i, stride, n, D: tl.constexpr):
    return tl.load(
        ptr + i[:, None].to(tl.int64) * stride + tl.arange(0, D)[None, :],
        mask=(i[:, None] < n) & (i[:, None] >= 0),
        other=0.0,
    )


@triton.jit
def see(i, j, W, S):
    return (j <= i) & ((j > i - W) | (j < S))


@triton.jit
def key_tile(index, sink_tiles, w0, BN: tl.constexpr):
    return tl.where(index < sink_tiles, index * BN, w0 + (index - sink_tiles) * BN)


@triton.jit
def key_tiles(i0, n, W, S, BM: tl.constexpr, BN: tl.constexpr):
    w0 = tl.maximum(i0 - W + 1, 0) // BN * BN
    sink_tiles = tl.cdiv(tl.minimum(S, w0), BN)
    return w0, sink_tiles, sink_tiles + tl.cdiv(tl.minimum(i0 + BM, n) - w0, BN)


@triton.jit
def fwd(
    q,
    k,
    v,
    z,
    o,
    e,
    sq,
    sk,
    sv,
    sz,
    H,
    G,
    n,
    W,
    S,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    HAS_Z: tl.constexpr,
):
    i0 = tl.program_id(0) * BM
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    i = i0 + tl.arange(0, BM)
    x = rows2(q + b * sq[0] + h * sq[1], i, sq[2], n, D)
    m = tl.full((BM,), float("-inf"), tl.float32)
    den = tl.zeros((BM,), tl.float32)
    a = tl.zeros((BM, D), tl.float32)
    w0, sink_tiles, count = key_tiles(i0, n, W, S, BM, BN)
    for index in range(count):
        j0 = key_tile(index, sink_tiles, w0, BN)
        j = j0 + tl.arange(0, BN)
        kt = rows2(k + b * sk[0] + (h // G) * sk[1], j, sk[2], n, D)
        vt = rows2(v + b * sv[0] + (h // G) * sv[1], j, sv[2], n, D)
        s = tl.dot(x, kt.T, input_precision="ieee") * scale
        s = tl.where(see(tl.minimum(i, n - 1)[:, None], j[None, :], W, S), s, float("-inf"))
        m1 = tl.maximum(m, tl.max(s, 1))
        ref = tl.where(m1 == float("-inf"), 0.0, m1)
        p = tl.exp(s - ref[:, None])
        c = tl.exp(m - ref)
        den = den * c + tl.sum(p, 1)
        a = a * c[:, None] + tl.dot(p.to(vt.dtype), vt, input_precision="ieee")
        m = m1
    lse = m + tl.log(den)
    out = a / den[:, None]
    if HAS_Z:
        zh = tl.load(z + h * sz).to(tl.float32)
        out *= tl.sigmoid(lse - zh)[:, None]
        top = tl.maximum(lse, zh)
        lse = top + tl.log(tl.exp(lse - top) + tl.exp(zh - top))
    row = (b * H + h) * n + i
    tl.store(
        o + row[:, None] * D + tl.arange(0, D)[None, :],
        out.to(o.dtype.element_ty),
        mask=(i < n)[:, None],
    )
    tl.store(e + row, lse, mask=i < n)


@triton.jit
def dq_kernel(
    q,
    k,
    v,
    o,
    do,
    e,
    delta_ptr,
    dq,
    sq,
    sk,
    sv,
    sdo,
    H,
    G,
    n,
    W,
    S,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    i0 = tl.program_id(0) * BM
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    i = i0 + tl.arange(0, BM)
    head = (b * H + h) * n
    x = rows2(q + b * sq[0] + h * sq[1], i, sq[2], n, D)
    g = rows2(do + b * sdo[0] + h * sdo[1], i, sdo[2], n, D)
    y = rows2(o + head * D, i, D, n, D)
    delta = tl.sum(g.to(tl.float32) * y.to(tl.float32), 1)
    tl.store(delta_ptr + head + i, delta, mask=i < n)
    le = tl.load(e + head + i, mask=i < n, other=float("inf"))
    acc = tl.zeros((BM, D), tl.float32)
    w0, sink_tiles, count = key_tiles(i0, n, W, S, BM, BN)
    for index in range(count):
        j = key_tile(index, sink_tiles, w0, BN) + tl.arange(0, BN)
        kt = rows2(k + b * sk[0] + (h // G) * sk[1], j, sk[2], n, D)
        vt = rows2(v + b * sv[0] + (h // G) * sv[1], j, sv[2], n, D)
        p = tl.exp(tl.dot(x, kt.T, input_precision="ieee") * scale - le[:, None])
        p = tl.where(see(i[:, None], j[None, :], W, S), p, 0.0)
        ds = p * (tl.dot(g, vt.T, input_precision="ieee") - delta[:, None]) * scale
        acc += tl.dot(ds.to(kt.dtype), kt, input_precision="ieee")
    tl.store(
        dq + (head + i[:, None]) * D + tl.arange(0, D)[None, :],
        acc.to(dq.dtype.element_ty),
        mask=(i < n)[:, None],
    )


@triton.jit
def dkdv_kernel(
    q,
    k,
    v,
    do,
    e,
    delta_ptr,
    dk,
    dv,
    sq,
    sk,
    sv,
    sdo,
    H,
    G,
    n,
    W,
    S,
    scale,
    D: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    j0 = tl.program_id(0) * BN
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    j = j0 + tl.arange(0, BN)
    head = (b * H + h) * n
    kt = rows2(k + b * sk[0] + (h // G) * sk[1], j, sk[2], n, D)
    vt = rows2(v + b * sv[0] + (h // G) * sv[1], j, sv[2], n, D)
    ak = tl.zeros((BN, D), tl.float32)
    av = tl.zeros((BN, D), tl.float32)
    end = tl.minimum(j0 + BN - 1 + W, n)
    if j0 < S:
        end = n
    i0 = j0 // BM * BM
    while i0 < end:
        i = i0 + tl.arange(0, BM)
        x = rows2(q + b * sq[0] + h * sq[1], i, sq[2], n, D)
        g = rows2(do + b * sdo[0] + h * sdo[1], i, sdo[2], n, D)
        le = tl.load(e + head + i, mask=i < n, other=float("inf"))
        dl = tl.load(delta_ptr + head + i, mask=i < n, other=0.0)
        p_t = tl.exp(tl.dot(kt, x.T, input_precision="ieee") * scale - le[None, :])
        p_t = tl.where(see(i[None, :], j[:, None], W, S), p_t, 0.0)
        av += tl.dot(p_t.to(g.dtype), g, input_precision="ieee")
        ds_t = p_t * (tl.dot(vt, g.T, input_precision="ieee") - dl[None, :])
        ak += tl.dot(ds_t.to(x.dtype), x, input_precision="ieee")
        i0 += BM
    at = (head + j[:, None]) * D + tl.arange(0, D)[None, :]
    tl.store(dk + at, ak * scale, mask=(j < n)[:, None])
    tl.store(dv + at, av, mask=(j < n)[:, None])


@triton.jit
def dz_kernel(z, e, delta, dz, sz, B, H, n, C: tl.constexpr):
    h = tl.program_id(0)
    zh = tl.load(z + h * sz).to(tl.float32)
    total = tl.zeros((C,), tl.float32)
    for b in range(B):
        for i0 in range(0, n, C):
            i = i0 + tl.arange(0, C)
            at = (b * H + h).to(tl.int64) * n + i
            le = tl.load(e + at, mask=i < n, other=float("inf"))
            total -= tl.exp(zh - le) * tl.load(delta + at, mask=i < n, other=0.0)
    tl.store(dz + h, tl.sum(total).to(dz.dtype.element_ty))


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, z, W, S, scale):
        B, H, n, D = q.shape
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        e = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        fwd[(triton.cdiv(n, 32), H, B)](
            q,
            k,
            v,
            q if z is None else z,
            o,
            e,
            q.stride(),
            k.stride(),
            v.stride(),
            1 if z is None else z.stride(0),
            H,
            H // k.shape[1],
            n,
            W,
            S,
            scale,
            D=D,
            BM=32,
            BN=32,
            HAS_Z=z is not None,
        )
        ctx.save_for_backward(q, k, v, z, o, e)
        ctx.rest = (W, S, scale)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, z, o, e = ctx.saved_tensors
        W, S, scale = ctx.rest
        B, H, n, D = q.shape
        if do.stride(-1) != 1:
            do = do.contiguous()
        KV = k.shape[1]
        delta = torch.empty_like(e)
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        dk = torch.empty((B, H, n, D), dtype=torch.float32, device=q.device)
        dv = torch.empty((B, H, n, D), dtype=torch.float32, device=q.device)
        rest = (q.stride(), k.stride(), v.stride(), do.stride(), H, H // KV, n, W, S, scale)
        dq_kernel[(triton.cdiv(n, 32), H, B)](
            q, k, v, o, do, e, delta, dq, *rest, D=D, BM=32, BN=32
        )
        dkdv_kernel[(triton.cdiv(n, 32), H, B)](
            q, k, v, do, e, delta, dk, dv, *rest, D=D, BM=32, BN=32
        )
        dz = None
        if z is not None:
            dz = torch.empty(z.shape, dtype=z.dtype, device=z.device)
            dz_kernel[(H,)](z, e, delta, dz, z.stride(0), B, H, n, C=128)
        dk = dk.unflatten(1, (KV, -1)).sum(2).to(k.dtype)
        dv = dv.unflatten(1, (KV, -1)).sum(2).to(v.dtype)
        return dq, dk, dv, dz, None, None, None


def sink_window_attention(
    q, k, v, *, window_size, num_sink_tokens=0, sink_logits=None, softmax_scale=None
):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    check_sink_logits(sink_logits, q)
    n = q.shape[2]
    return Attention.apply(
        q,
        k,
        v,
        sink_logits,
        min(window_size, n),
        min(num_sink_tokens, n),
        default_scale(softmax_scale, q.shape[3]),
    )
