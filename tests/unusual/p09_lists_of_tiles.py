"""Lists of tiles in both directions, made in PyTorch; one launch gives dQ, dK and dV from them."""

_SIDE = tl.constexpr(32)


def lists(n, window, sinks, device):
    """How many key tiles each query tile has, and which; then the other way round"""
    tiles = triton.cdiv(n, _SIDE.value)
    i = torch.arange(tiles, dtype=torch.int32, device=device)
    first, last = i * _SIDE.value, (i * _SIDE.value + _SIDE.value - 1).clamp(max=n - 1)
    seen = (first[:, None] - last < window) | (first < sinks)
    seen &= first <= last[:, None]
    for table in (seen, seen.t()):
        yield table.sum(1, dtype=torch.int32)
        yield torch.where(table, i, tiles).sort(1).values.to(torch.int32).contiguous()


@triton.jit
def _pair(q, k, v, do, lse, delta, m, n, W, S, scale):
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    seen = (n[None, :] <= m[:, None]) & ((m[:, None] - n[None, :] < W) | (n < S)[None, :])
    p = tl.where(seen, tl.exp(s - lse[:, None]), 0.0)
    return p, p * (tl.dot(do, tl.trans(v), input_precision="ieee") - delta[:, None]) * scale


@triton.jit
def _listed(
    Q, K, V, DO, L, DELTA, DQ, DK, DV, KEYS, KEY_IDX, QUERIES, QUERY_IDX, sq, sk, sv, sd,
    H, KVH, N, T, W, S, scale, D: tl.constexpr,
):  # fmt: skip
    pid, b, g = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    G = H // KVH
    t = tl.arange(0, _SIDE)
    K += b * sk[0] + g * sk[1]
    V += b * sv[0] + g * sv[1]
    if pid >= T:  # a tile of dQ of one head of the group
        i, h = (pid - T) // G, g * G + (pid - T) % G
        m = i * _SIDE + t
        row = (b * H + h) * N
        q = load_tile(Q + b * sq[0] + h * sq[1], i * _SIDE, sq[2], N, _SIDE, D)
        do = load_tile(DO + b * sd[0] + h * sd[1], i * _SIDE, sd[2], N, _SIDE, D)
        lse = tl.load(L + row + m, mask=m < N, other=float("inf"))
        delta = tl.load(DELTA + row + m, mask=m < N, other=0.0)
        dq = tl.zeros([_SIDE, D], tl.float32)
        for x in range(tl.load(KEYS + i)):
            start = tl.load(KEY_IDX + i * T + x) * _SIDE
            k = load_tile(K, start, sk[2], N, _SIDE, D)
            v = load_tile(V, start, sv[2], N, _SIDE, D)
            _, ds = _pair(q, k, v, do, lse, delta, m, start + t, W, S, scale)
            dq += tl.dot(ds.to(k.dtype), k, input_precision="ieee")
        store_tile(DQ + row * D, i * _SIDE, D, dq, N, _SIDE, D)
    else:
        k = load_tile(K, pid * _SIDE, sk[2], N, _SIDE, D)
        v = load_tile(V, pid * _SIDE, sv[2], N, _SIDE, D)
        dk = tl.zeros([_SIDE, D], tl.float32)
        dv = tl.zeros([_SIDE, D], tl.float32)
        for h in range(g * G, (g + 1) * G):
            row = (b * H + h) * N
            for x in range(tl.load(QUERIES + pid)):
                start = tl.load(QUERY_IDX + pid * T + x) * _SIDE
                m = start + t
                q = load_tile(Q + b * sq[0] + h * sq[1], start, sq[2], N, _SIDE, D)
                do = load_tile(DO + b * sd[0] + h * sd[1], start, sd[2], N, _SIDE, D)
                lse = tl.load(L + row + m, mask=m < N, other=float("inf"))
                delta = tl.load(DELTA + row + m, mask=m < N, other=0.0)
                p, ds = _pair(q, k, v, do, lse, delta, m, pid * _SIDE + t, W, S, scale)
                dv += tl.dot(tl.trans(p).to(do.dtype), do, input_precision="ieee")
                dk += tl.dot(tl.trans(ds).to(q.dtype), q, input_precision="ieee")
        store_tile(DK + (b * KVH + g) * N * D, pid * _SIDE, D, dk, N, _SIDE, D)
        store_tile(DV + (b * KVH + g) * N * D, pid * _SIDE, D, dv, N, _SIDE, D)


class _SinkWindowAttention(_SinkWindowAttention):
    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, sink_logits, out, lse = ctx.saved_tensors
        dout = dout.contiguous()
        (b, h, n, d), kv_heads = q.shape, k.shape[1]
        window, sinks, scale = ctx.options
        delta = row_delta(out, dout)
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        tiles = triton.cdiv(n, _SIDE.value)
        strides = (q.stride(), k.stride(), v.stride(), dout.stride())
        _listed[(tiles + tiles * (h // kv_heads), b, kv_heads)](
            q, k, v, dout, lse, delta, dq, dk, dv, *lists(n, window, sinks, q.device), *strides,
            h, kv_heads, n, tiles, window, sinks, scale, D=d, num_stages=1,
        )  # fmt: skip
        dsink = _sink_logits_gradient(sink_logits, lse, delta) if ctx.needs_input_grad[3] else None
        return dq, dk, dv, dsink, None, None, None
