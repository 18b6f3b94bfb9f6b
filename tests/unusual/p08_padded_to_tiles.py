"""Lengths are padded to whole tiles and k is scaled in PyTorch; one kernel has all three loops."""


@triton.jit
def _add_to_keys(
    dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, keys, begin, end,
    D: tl.constexpr, B: tl.constexpr, ON_DIAGONAL: tl.constexpr,
):  # fmt: skip
    for start in range(begin, end, B):
        rows = start + tl.arange(0, B)
        at = rows[:, None] * D + tl.arange(0, D)
        q, do = tl.load(q_ptr + at), tl.load(do_ptr + at)
        p = tl.exp2(tl.dot(k, q.T, input_precision="ieee") - tl.load(lse_ptr + rows)[None, :])
        if ON_DIAGONAL:
            p = tl.where(keys[:, None] <= rows[None, :], p, 0.0)
        dv = tl.dot(p.to(do.dtype), do, dv, input_precision="ieee")
        ds = p * (tl.dot(v, do.T, input_precision="ieee") - tl.load(delta_ptr + rows)[None, :])
        dk = tl.dot(ds.to(q.dtype), q, dk, input_precision="ieee")
    return dk, dv


@triton.jit
def _padded_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, dk_ptr, dv_ptr, H, G, N, scale,
    D: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // H * (H // G) + head % H // G
    q_ptr += head * N * D
    do_ptr += head * N * D
    k_ptr += kv_head * N * D
    v_ptr += kv_head * N * D
    lse_ptr += head * N
    delta_ptr += head * N
    rows = tile * B + tl.arange(0, B)
    at = rows[:, None] * D + tl.arange(0, D)
    # dK and dV of these keys, from this query head alone
    k, v = tl.load(k_ptr + at), tl.load(v_ptr + at)
    dk = tl.zeros([B, D], tl.float32)
    dv = tl.zeros([B, D], tl.float32)
    dk, dv = _add_to_keys(
        dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, rows, tile * B, tile * B + B, D, B, True
    )
    dk, dv = _add_to_keys(
        dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, rows, tile * B + B, N, D, B, False
    )
    tl.store(dk_ptr + head * N * D + at, dk * scale)
    tl.store(dv_ptr + head * N * D + at, dv)
    # dQ of the queries of the same numbers
    q, do = tl.load(q_ptr + at), tl.load(do_ptr + at)
    lse, delta = tl.load(lse_ptr + rows), tl.load(delta_ptr + rows)
    dq = tl.zeros([B, D], tl.float32)
    for start in range(0, tile * B + B, B):
        keys = start + tl.arange(0, B)
        k = tl.load(k_ptr + keys[:, None] * D + tl.arange(0, D))
        v = tl.load(v_ptr + keys[:, None] * D + tl.arange(0, D))
        p = tl.exp2(tl.dot(q, k.T, input_precision="ieee") - lse[:, None])
        p = tl.where(keys[None, :] <= rows[:, None], p, 0.0)
        ds = p * (tl.dot(do, v.T, input_precision="ieee") - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")
    tl.store(dq_ptr + head * N * D + at, dq * 0.6931471805599453)  # k was times log2(e)


class _GqaAttention(torch.autograd.Function):
    """The kernel joined to autograd."""

    @staticmethod
    def forward(ctx, q, k, v, softmax_scale):
        out, lse = gqa_forward(q, k, v, softmax_scale)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.softmax_scale = softmax_scale
        return out

    @staticmethod
    def backward(ctx, dout):
        q, k, v, out, lse = ctx.saved_tensors
        (b, h, n, d), group, scale = q.shape, q.shape[1] // k.shape[1], ctx.softmax_scale
        rest = -n % 32
        q, k, v, out, dout = (
            torch.nn.functional.pad(x, (0, 0, 0, rest)).contiguous() for x in (q, k, v, out, dout)
        )
        lse = torch.nn.functional.pad(lse * 1.4426950408889634, (0, rest))
        delta = (out.float() * dout.float()).sum(-1)
        dq = torch.empty_like(q)
        dk, dv = (torch.empty(q.shape, dtype=torch.float32, device=q.device) for _ in "kv")
        scaled = k * (scale * 1.4426950408889634)
        _padded_kernel[(q.shape[2] // 32, b * h)](
            q, scaled, v, dout, lse, delta, dq, dk, dv, h, group, q.shape[2], scale, D=d, B=32
        )
        dk, dv = (x.unflatten(1, (-1, group)).sum(2).to(k.dtype) for x in (dk, dv))
        return dq[:, :, :n], dk[:, :, :n], dv[:, :, :n], None


def gqa_attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    return _GqaAttention.apply(q, k, v, default_scale(softmax_scale, q.shape[3]))
