"""The rows of all heads in one descriptor: the last tile of a head reaches into the next one."""

from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def _rows_in_a_line(
    q_desc, k_desc, v_desc, out_ptr, lse_ptr, scale, M, N,
    D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    head, start = tl.program_id(1), tl.program_id(0) * BM
    q = q_desc.load([head * M + start, 0])
    top = tl.full([BM], float("-inf"), tl.float32)
    den = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, D], tl.float32)
    for first in tl.range(0, N, BN):
        k = k_desc.load([head * N + first, 0])
        s = tl.dot(q, k.T, input_precision="ieee") * scale
        s = tl.where(first + tl.arange(0, BN)[None, :] < N, s, float("-inf"))
        now = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - now[:, None])
        fade = tl.exp(top - now)
        den = den * fade + tl.sum(p, 1)
        v = v_desc.load([head * N + first, 0])
        acc = tl.dot(p.to(v.dtype), v, acc * fade[:, None], input_precision="ieee")
        top = now
    row = start + tl.arange(0, BM)
    to = out_ptr + (head * M + row[:, None]) * D + tl.arange(0, D)
    tl.store(to, (acc / den[:, None]).to(out_ptr.dtype.element_ty), mask=row[:, None] < M)
    tl.store(lse_ptr + head * M + row, top + tl.log(den), mask=row < M)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, causal=False)
    (b, h, m, d), n = q.shape, k.shape[2]
    out = torch.empty((b, h, m, d), dtype=q.dtype, device=q.device)
    lse = torch.empty((b, h, m), dtype=torch.float32, device=q.device)
    lines = [x.reshape(-1, d).contiguous() for x in (q, k, v)]
    descriptors = [TensorDescriptor.from_tensor(x, [64, d]) for x in lines]
    scale = d**-0.5 if softmax_scale is None else softmax_scale
    grid = (triton.cdiv(m, 64), b * h)
    _rows_in_a_line[grid](*descriptors, out, lse, scale, m, n, d, 64, 64, num_stages=1)
    return out, lse
