"""The mask of a diagonal tile is a table in memory, which each program loads and adds to scores."""

import functools

_SIDE = 64


@functools.cache
def hidden_above(device):
    rows = torch.arange(_SIDE, device=device)
    return torch.where(rows[None, :] > rows[:, None], float("-inf"), 0.0)


@triton.jit
def _update(state, q, k_ptrs, v_ptrs, keep, scale, bias):
    top, den, acc = state
    k = tl.load(k_ptrs, mask=keep[:, None], other=0.0)
    v = tl.load(v_ptrs, mask=keep[:, None], other=0.0)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
    if bias is not None:
        s += bias
    new = tl.maximum(top, tl.max(s, 1))
    p = tl.exp(s - new[:, None])
    fade = tl.exp(top - new)
    acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
    return new, den * fade + tl.sum(p, 1), acc


@triton.jit
def _biased(Q, K, V, BIAS, OUT, L, sq, sk, sv, H, KVH, N, scale, D: tl.constexpr, B: tl.constexpr):
    i, h, b = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2).to(tl.int64)
    g = h * KVH // H
    t, d = tl.arange(0, B), tl.arange(0, D)
    m = i * B + t
    q = tl.load(Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d, mask=m[:, None] < N, other=0.0)
    K += b * sk[0] + g * sk[1] + t[:, None] * sk[2] + d
    V += b * sv[0] + g * sv[1] + t[:, None] * sv[2] + d
    bias = tl.load(BIAS + t[:, None] * B + t[None, :])
    top, den = tl.full((B,), float("-inf"), tl.float32), tl.zeros((B,), tl.float32)
    state = (top, den, tl.zeros((B, D), tl.float32))
    # The diagonal first: then no row is without a key.
    state = _update(state, q, K + i * B * sk[2], V + i * B * sv[2], m < N, scale, bias)
    for j in range(i):
        state = _update(state, q, K + j * B * sk[2], V + j * B * sv[2], t < N, scale, None)
    top, den, acc = state
    row = (b * H + h) * N + m
    out = (acc / den[:, None]).to(OUT.dtype.element_ty)
    tl.store(OUT + row[:, None] * D + d, out, mask=m[:, None] < N)
    tl.store(L + row, top + tl.log(den), mask=m < N)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), device=q.device)
    strides = (q.stride(), k.stride(), v.stride())
    _biased[(triton.cdiv(n, _SIDE), h, b)](
        q, k, v, hidden_above(q.device), out, lse, *strides, h, k.shape[1], n,
        default_scale(softmax_scale, d), D=d, B=_SIDE, num_stages=1,
    )  # fmt: skip
    return out, lse
