"""Methods of tiles, the running state as a tuple, sizes in a row."""

import math
from typing import NamedTuple


class Opts(NamedTuple):
    BM: int
    BN: int
    D: int


@triton.jit
def _state(BM: tl.constexpr, D: tl.constexpr):
    return (
        tl.full([BM], value=-math.inf, dtype=tl.float32),
        tl.zeros([BM], dtype=tl.float32),
        tl.zeros([BM, D], dtype=tl.float32),
    )


@triton.jit
def _step(state, q, k, v, keep, scale):
    m, total, acc = state
    s = tl.where(keep, tl.dot(q, k.trans(), input_precision="ieee") * scale, -math.inf)
    n = tl.maximum(m, s.max(axis=1))
    z = tl.where(n == -math.inf, 0.0, n)
    p = (s - z[:, None]).exp()
    f = (m - z).exp()
    return (
        n,
        total * f + p.sum(axis=1),
        tl.dot(p.to(v.dtype), v, acc * f[:, None], input_precision="ieee"),
    )


@triton.jit
def _end(state, o, lse, rows, N, D: tl.constexpr):
    m, total, acc = state
    ok = rows < N
    tl.store(
        o + rows[:, None] * D + tl.arange(0, D),
        (acc / total[:, None]).to(o.dtype.element_ty),
        mask=ok[:, None],
    )
    tl.store(lse + rows, m + total.log(), mask=ok)


@triton.jit
def _rows(p, st, at, N, D: tl.constexpr):
    return tl.load(p + at[:, None] * st + tl.arange(0, D), mask=at[:, None] < N, other=0.0)


@triton.jit
def banded(q, k, v, o, lse, sq, sk, sv, H, G, N, W, scale, X: tl.constexpr):
    pid = tl.program_id(0)
    T = tl.cdiv(N, X.BM)
    t, bh = pid % T, pid // T
    b, h = bh // H, bh % H
    i = t * X.BM + tl.arange(0, X.BM)
    qt = _rows(q + b * sq[0] + h * sq[1], sq[2], i, N, X.D)
    st = _state(X.BM, X.D)
    lo = tl.maximum(0, t * X.BM - W + 1)
    for j0 in range(lo - lo % X.BN, tl.minimum(N, (t + 1) * X.BM), X.BN):
        j = j0 + tl.arange(0, X.BN)
        keep = (i[:, None] >= j[None, :]) & (i[:, None] < j[None, :] + W)
        st = _step(
            st, qt, _rows(k + b * sk[0] + h // G * sk[1], sk[2], j, N, X.D),
            _rows(v + b * sv[0] + h // G * sv[1], sv[2], j, N, X.D), keep, scale,
        )  # fmt: skip
    _end(st, o + bh.to(tl.int64) * N * X.D, lse + bh.to(tl.int64) * N, i, N, X.D)


def attention(q, k, v, *, window_size, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    scale = 1 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    B, H, N, D = q.shape
    opts = Opts(32, 16, D)
    o, lse = q.new_empty(q.shape), q.new_empty((B, H, N), dtype=torch.float32)
    grid = (triton.cdiv(N, opts.BM) * B * H,)
    banded[grid](
        q, k, v, o, lse, q.stride(), k.stride(), v.stride(), H, H // k.shape[1], N,
        min(window_size, N), scale, X=opts,
    )  # fmt: skip
    return o, lse
