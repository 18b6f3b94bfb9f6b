"""The diagonal first, then the keys before it, the last ones first; exact window or none."""


@triton.heuristics({"USE_W": lambda args: args["W"] < args["T"]})
@triton.autotune(
    configs=[triton.Config({}, num_warps=w, num_stages=s) for w in [2, 4] for s in [1, 2]],
    key=["D", "G"],
)
@triton.jit(do_not_specialize=["T", "W"])
def parallel_fwd(
    q, k, v, o, lse, scale, q_s, k_s, v_s, T, W, HQ: tl.constexpr, G: tl.constexpr, D: tl.constexpr,
    BT: tl.constexpr, BS: tl.constexpr, USE_W: tl.constexpr,
):  # fmt: skip
    i_t, i_bh = tl.program_id(0), tl.program_id(1)
    i_b, i_hq = i_bh // HQ, i_bh % HQ
    i_h = i_hq // G
    RCP_LN2: tl.constexpr = 1.4426950216
    o_q = i_t * BT + tl.arange(0, BT)
    d = tl.arange(0, D)
    b_q = tl.load(
        q + i_b * q_s[0] + i_hq * q_s[1] + o_q[:, None] * q_s[2] + d[None, :],
        mask=o_q[:, None] < T,
        other=0.0,
    )
    b_o = tl.zeros([BT, D], dtype=tl.float32)
    b_m = tl.full([BT], float("-inf"), dtype=tl.float32)
    b_acc = tl.zeros([BT], dtype=tl.float32)
    for i_s in range(i_t * BT, min((i_t + 1) * BT, T), BS):
        o_k = i_s + tl.arange(0, BS)
        b_k = tl.load(
            k + i_b * k_s[0] + i_h * k_s[1] + o_k[None, :] * k_s[2] + d[:, None],
            mask=o_k[None, :] < T,
            other=0.0,
        )
        b_v = tl.load(
            v + i_b * v_s[0] + i_h * v_s[1] + o_k[:, None] * v_s[2] + d[None, :],
            mask=o_k[:, None] < T,
            other=0.0,
        )
        m_s = o_q[:, None] >= o_k[None, :]
        if USE_W:
            m_s = m_s & (o_q[:, None] - o_k[None, :] < W)
        b_s = tl.where(
            m_s, tl.dot(b_q, b_k, input_precision="ieee") * (scale * RCP_LN2), float("-inf")
        )
        b_m, b_mp = tl.maximum(b_m, tl.max(b_s, 1)), b_m
        b_ms = tl.where(b_m == float("-inf"), 0.0, b_m)
        b_r = tl.exp2(b_mp - b_ms)
        b_p = tl.exp2(b_s - b_ms[:, None])
        b_acc = b_acc * b_r + tl.sum(b_p, 1)
        b_o = b_o * b_r[:, None] + tl.dot(b_p.to(b_q.dtype), b_v, input_precision="ieee")
    for i_s in range(i_t * BT - BS, tl.maximum(i_t * BT - W, 0) // BS * BS - BS, -BS):
        o_k = i_s + tl.arange(0, BS)
        b_k = tl.load(
            k + i_b * k_s[0] + i_h * k_s[1] + o_k[None, :] * k_s[2] + d[:, None],
            mask=o_k[None, :] >= 0,
            other=0.0,
        )
        b_v = tl.load(
            v + i_b * v_s[0] + i_h * v_s[1] + o_k[:, None] * v_s[2] + d[None, :],
            mask=o_k[:, None] >= 0,
            other=0.0,
        )
        b_s = tl.dot(b_q, b_k, input_precision="ieee") * (scale * RCP_LN2)
        if USE_W:
            b_s = tl.where(o_q[:, None] - o_k[None, :] < W, b_s, float("-inf"))
        b_m, b_mp = tl.maximum(b_m, tl.max(b_s, 1)), b_m
        b_ms = tl.where(b_m == float("-inf"), 0.0, b_m)
        b_r = tl.exp2(b_mp - b_ms)
        b_p = tl.exp2(b_s - b_ms[:, None])
        b_acc = b_acc * b_r + tl.sum(b_p, 1)
        b_o = b_o * b_r[:, None] + tl.dot(b_p.to(b_q.dtype), b_v, input_precision="ieee")
    b_o = b_o / b_acc[:, None]
    b_m += tl.log2(b_acc)
    tl.store(
        o + (i_bh * T + o_q[:, None]) * D + d[None, :],
        b_o.to(o.dtype.element_ty),
        mask=o_q[:, None] < T,
    )
    tl.store(lse + i_bh * T + o_q, (b_m / RCP_LN2).to(lse.dtype.element_ty), mask=o_q < T)


def attention(q, k, v, *, window_size, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    check_window(window_size)
    B, HQ, T, D = q.shape
    o = torch.empty(B, HQ, T, D, dtype=q.dtype, device=q.device)
    lse = torch.empty(B, HQ, T, dtype=torch.float, device=q.device)

    def grid(meta):
        return (triton.cdiv(T, meta["BT"]), B * HQ)

    parallel_fwd[grid](
        q, k, v, o, lse, default_scale(softmax_scale, D), q.stride()[:3], k.stride()[:3],
        v.stride()[:3], T, min(window_size, T), HQ=HQ, G=HQ // k.shape[1], D=D, BT=64, BS=32,
    )  # fmt: skip
    return o, lse
