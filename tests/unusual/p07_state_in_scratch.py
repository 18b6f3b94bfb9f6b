"""The state after the sinks goes through memory: the kernel of the window begins with it."""


@triton.jit
def online(m, total, acc, q, kT, v, bias, scale):
    s = tl.dot(q, kT, input_precision="ieee") * scale + bias
    m_new = tl.maximum(m, tl.max(s, 1))
    p = tl.exp2(s - m_new[:, None])
    a = tl.exp2(m - m_new)
    return (
        m_new,
        total * a + tl.sum(p, 1),
        acc * a[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee"),
    )


@triton.jit
def window_kernel(
    q_ptr, k_ptr, v_ptr, m_ptr, l_ptr, acc_ptr, out_ptr, lse_ptr, strides, heads, group, n, window,
    scale, D: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    qs, ks, vs = strides
    b, h, t = tl.program_id(0) // heads, tl.program_id(0) % heads, tl.program_id(1)
    i, d = t * M + tl.arange(0, M), tl.arange(0, D)
    ok = i < n
    row = tl.program_id(0).to(tl.int64) * n + i
    q = tl.load(q_ptr + b * qs[0] + h * qs[1] + i[:, None] * qs[2] + d, mask=ok[:, None], other=0.0)
    m = tl.load(m_ptr + row, mask=ok, other=0.0)
    total = tl.load(l_ptr + row, mask=ok, other=0.0)
    acc = tl.load(acc_ptr + row[:, None] * D + d, mask=ok[:, None], other=0.0)
    for j0 in range(tl.maximum(t * M + 1 - window, 0) // T * T, tl.minimum(t * M + M, n), T):
        j = j0 + tl.arange(0, T)
        kT = tl.load(
            k_ptr + b * ks[0] + h // group * ks[1] + j[None, :] * ks[2] + d[:, None],
            mask=j[None, :] < n,
            other=0.0,
        )
        v = tl.load(
            v_ptr + b * vs[0] + h // group * vs[1] + j[:, None] * vs[2] + d,
            mask=j[:, None] < n,
            other=0.0,
        )
        seen = (j[None, :] <= i[:, None]) & (i[:, None] - j[None, :] < window)
        m, total, acc = online(m, total, acc, q, kT, v, tl.where(seen, 0.0, -1.0e30), scale)
    tl.store(
        out_ptr + row[:, None] * D + d,
        (acc / total[:, None]).to(out_ptr.dtype.element_ty),
        mask=ok[:, None],
    )
    tl.store(lse_ptr + row, (m + tl.log2(total)) / LOG2_E, mask=ok)


@triton.jit
def sink_kernel(
    q_ptr, k_ptr, v_ptr, m_ptr, l_ptr, acc_ptr, strides, heads, group, n, window, sinks, scale,
    D: tl.constexpr, M: tl.constexpr, T: tl.constexpr,
):  # fmt: skip
    qs, ks, vs = strides
    b, h, t = tl.program_id(0) // heads, tl.program_id(0) % heads, tl.program_id(1)
    i, d = t * M + tl.arange(0, M), tl.arange(0, D)
    ok = i < n
    row = tl.program_id(0).to(tl.int64) * n + i
    # a state that any real score replaces
    m = tl.full((M,), -2.0e30, tl.float32)
    total = tl.zeros((M,), tl.float32)
    acc = tl.zeros((M, D), tl.float32)
    stop = tl.minimum(sinks, t * M + M - window)
    if stop > 0:
        q = tl.load(
            q_ptr + b * qs[0] + h * qs[1] + i[:, None] * qs[2] + d, mask=ok[:, None], other=0.0
        )
        for j0 in range(0, stop, T):
            j = j0 + tl.arange(0, T)
            kT = tl.load(
                k_ptr + b * ks[0] + h // group * ks[1] + j[None, :] * ks[2] + d[:, None],
                mask=j[None, :] < n,
                other=0.0,
            )
            v = tl.load(
                v_ptr + b * vs[0] + h // group * vs[1] + j[:, None] * vs[2] + d,
                mask=j[:, None] < n,
                other=0.0,
            )
            seen = (i[:, None] - j[None, :] >= window) & (j < sinks)[None, :]
            m, total, acc = online(m, total, acc, q, kT, v, tl.where(seen, 0.0, -1.0e30), scale)
    tl.store(m_ptr + row, m, mask=ok)
    tl.store(l_ptr + row, total, mask=ok)
    tl.store(acc_ptr + row[:, None] * D + d, acc, mask=ok[:, None])


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size, num_sink_tokens)
    B, H, N, D = q.shape
    window, sinks = min(window_size, N), min(num_sink_tokens, N)
    m, total = torch.empty((2, B, H, N), dtype=torch.float32, device=q.device).unbind(0)
    acc = torch.empty((B, H, N, D), dtype=torch.float32, device=q.device)
    out, lse = torch.empty_like(acc, dtype=q.dtype), torch.empty_like(m)
    strides = (q.stride()[:3], k.stride()[:3], v.stride()[:3])
    scale, grid, sizes = (
        default_scale(softmax_scale, D) * LOG2_E.value,
        (B * H, triton.cdiv(N, 32)),
        dict(D=D, M=32, T=16),
    )
    sink_kernel[grid](
        q, k, v, m, total, acc, strides, H, H // k.shape[1], N, window, sinks, scale, **sizes
    )
    window_kernel[grid](
        q, k, v, m, total, acc, out, lse, strides, H, H // k.shape[1], N, window, scale, **sizes
    )
    return out, lse
