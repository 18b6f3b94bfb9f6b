# ruff: noqa: F821  (appended to the model answer, whose names it uses)
"""Functions of Triton by names of the file's own; and, or, not, max and min of tiles."""

from triton.language import arange, dot, load, store, where, zeros
from triton.language import max as row_max
from triton.language import sum as row_sum
from triton.language.math import exp

of_grid = tl.program_id


@triton.jit
def _named(
    Q, K, V, OUT, LSE, sq, sk, sv, H, G, N, W, scale,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, LOG: tl.constexpr = tl.log,
):  # fmt: skip
    b, h = of_grid(1) // H, of_grid(1) % H
    m, d = of_grid(0) * BM + arange(0, BM), arange(0, D)
    rows = m[:, None] < N
    q = load(Q + b * sq[0] + h * sq[1] + m[:, None] * sq[2] + d, mask=rows, other=0.0)
    top = zeros([BM], tl.float32) - 1.0e30
    den = zeros([BM], tl.float32)
    acc = zeros([BM, D], tl.float32)
    begin = max(of_grid(0) * BM - W + 1, 0) // BN * BN
    for start in range(begin, min(of_grid(0) * BM + BM, N), BN):
        n = start + arange(0, BN)
        there = n[:, None] < N
        k = load(K + b * sk[0] + h // G * sk[1] + n[:, None] * sk[2] + d, mask=there, other=0.0)
        v = load(V + b * sv[0] + h // G * sv[1] + n[:, None] * sv[2] + d, mask=there, other=0.0)
        late, old = n[None, :] > m[:, None], n[None, :] <= m[:, None] - W
        seen = not (late or old) and rows
        s = where(seen, dot(q, k.T, input_precision="ieee") * scale, -1.0e30)
        now = max(top, row_max(s, 1))
        p = where(seen, exp(s - now[:, None]), 0.0)
        den = den * exp(top - now) + row_sum(p, 1)
        acc = acc * exp(top - now)[:, None]
        acc = dot(p.to(v.dtype), v, acc, input_precision="ieee")
        top = now
    row = of_grid(1) * N + m
    den = where(m < N, den, 1.0)
    store(OUT + row[:, None] * D + d, (acc / den[:, None]).to(OUT.dtype.element_ty), mask=rows)
    store(LSE + row, top + LOG(den), mask=m < N)


def attention(q, k, v, *, window_size, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    b, h, n, d = q.shape
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, n), dtype=torch.float32, device=q.device)
    _named[(triton.cdiv(n, 64), b * h)](
        q, k, v, out, lse, q.stride(), k.stride(), v.stride(), h, h // k.shape[1], n,
        min(window_size, n), d**-0.5 if softmax_scale is None else softmax_scale,
        D=d, BM=64, BN=32, num_stages=1,
    )  # fmt: skip
    return out, lse
