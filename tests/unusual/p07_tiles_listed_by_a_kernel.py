"""A kernel lists the key tiles of each query tile; the mask is made of functions in a tuple."""


@triton.jit
def causal(q, k, rule):
    return q >= k


@triton.jit
def recent(q, k, rule):
    return q - k < rule[0]


@triton.jit
def early(q, k, rule):
    return k < rule[1]


@triton.jit
def _schedule(WORK, COUNT, N, W, S, T, BM: tl.constexpr, BN: tl.constexpr, P: tl.constexpr):
    i, t = tl.program_id(0), tl.arange(0, P)
    reached = (t * BN + BN - 1 > i * BM - W) | (t * BN < S)
    needed = (t * BN < tl.minimum(i * BM + BM, N)) & reached
    tl.store(WORK + i * T + tl.cumsum(needed.to(tl.int32), 0) - 1, t, mask=needed)
    tl.store(COUNT + i, tl.sum(needed.to(tl.int32), 0))


@triton.jit
def _scheduled(
    Q, K, V, OUT, L, WORK, COUNT, sq, sk, sv, H, G, N, rule, T, scale,
    OPS: tl.constexpr, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    i, h, b = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    m, d = i * BM + tl.arange(0, BM), tl.arange(0, D)
    inside = m[:, None] < N
    q = tl.load(Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d, mask=inside, other=0.0)
    top = tl.full((BM,), float("-inf"), tl.float32)
    den = tl.full((BM,), 0, tl.float32)
    acc = tl.full((BM, D), 0, tl.float32)
    count = tl.load(COUNT + i)
    for w in range(0, count):
        n = tl.load(WORK + i * T + count - 1 - w) * BN + tl.arange(0, BN)
        live = n[:, None] < N
        k = tl.load(K + b * sk[0] + h // G * sk[1] + n[:, None] * sk[2] + d, mask=live, other=0.0)
        v = tl.load(V + b * sv[0] + h // G * sv[1] + n[:, None] * sv[2] + d, mask=live, other=0.0)
        r, c = m[:, None], n[None, :]
        seen = OPS[0](r, c, rule) & (OPS[1](r, c, rule) | OPS[2](r, c, rule))
        s = tl.where(seen, tl.dot(q, k.T, input_precision="ieee") * scale, float("-inf"))
        new = tl.maximum(top, tl.max(s, 1))
        safe = tl.where(new == float("-inf"), 0.0, new)
        p = tl.exp(s - safe[:, None])
        fade = tl.exp(top - safe)
        den = den * fade + tl.sum(p, 1)
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = new
    den = tl.where(m < N, den, 1.0)
    row = (b * H + h) * N + m
    out = tl.fdiv(acc, den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + d, out, mask=inside)
    tl.store(L + row, top + tl.log(den), mask=m < N)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    b, h, n, d = q.shape
    rule, tiles = (min(window_size, n), min(num_sink_tokens, n)), triton.cdiv(n, 32)
    work = torch.empty((tiles, tiles), dtype=torch.int32, device=q.device)
    count = torch.empty((tiles,), dtype=torch.int32, device=q.device)
    padded = triton.next_power_of_2(tiles)
    _schedule[(tiles,)](work, count, n, *rule, tiles, BM=32, BN=32, P=padded)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), device=q.device)
    strides = (q.stride(), k.stride(), v.stride())
    _scheduled[(tiles, h, b)](
        q, k, v, out, lse, work, count, *strides, h, h // k.shape[1], n, rule, tiles,
        default_scale(softmax_scale, d), OPS=(causal, recent, early), D=d, BM=32, BN=32,
    )  # fmt: skip
    return out, lse
