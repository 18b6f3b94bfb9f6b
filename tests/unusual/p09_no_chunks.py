"""dK and dV of sinks and other keys in one kernel: a tile of keys goes through all later queries.

Much more work than needed, and right.
"""


@triton.jit
def _all_queries_kernel(
    q_ptr, k_ptr, v_ptr, dout_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_dob, stride_doh, stride_dom,
    num_kv_heads, group_size, seqlen, window_size, num_sink_tokens, scale,
    HEAD_DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // num_kv_heads).to(tl.int64)
    kv_head = (tl.program_id(0) % num_kv_heads).to(tl.int64)
    key_start = tl.program_id(1) * BLOCK
    keys = key_start + tl.arange(0, BLOCK)
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    k = load_tile(k_ptr, key_start, stride_kn, seqlen, BLOCK, HEAD_DIM)
    v = load_tile(v_ptr, key_start, stride_vn, seqlen, BLOCK, HEAD_DIM)
    dk = tl.zeros((BLOCK, HEAD_DIM), tl.float32)
    dv = tl.zeros((BLOCK, HEAD_DIM), tl.float32)
    for member in range(group_size):
        q_head = kv_head * group_size + member
        head_q_ptr = q_ptr + batch * stride_qb + q_head * stride_qh
        head_dout_ptr = dout_ptr + batch * stride_dob + q_head * stride_doh
        row = (batch * num_kv_heads * group_size + q_head) * seqlen
        for query_start in range(key_start, seqlen, BLOCK):
            rows = query_start + tl.arange(0, BLOCK)
            q = load_tile(head_q_ptr, query_start, stride_qm, seqlen, BLOCK, HEAD_DIM)
            dout = load_tile(head_dout_ptr, query_start, stride_dom, seqlen, BLOCK, HEAD_DIM)
            exists = rows < seqlen
            lse = tl.load(lse_ptr + row + rows, mask=exists, other=0.0)
            delta = tl.load(delta_ptr + row + rows, mask=exists, other=0.0)
            near = keys[None, :] > rows[:, None] - window_size
            visible = (near | (keys[None, :] < num_sink_tokens)) & exists[:, None]
            visible = visible & (keys[None, :] <= rows[:, None])
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
            p = tl.where(visible, tl.exp(scores - lse[:, None]), 0.0)
            dp = tl.dot(dout, tl.trans(v), input_precision="ieee")
            ds = p * (dp - delta[:, None])
            dv += tl.dot(tl.trans(p.to(dout.dtype)), dout, input_precision="ieee")
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")
    start = (batch * num_kv_heads + kv_head) * seqlen * HEAD_DIM
    store_tile(dk_ptr + start, key_start, HEAD_DIM, dk * scale, seqlen, BLOCK, HEAD_DIM)
    store_tile(dv_ptr + start, key_start, HEAD_DIM, dv, seqlen, BLOCK, HEAD_DIM)


def row_delta(out, dout):
    return (out.float() * dout.float()).sum(-1)


def _sink_dkdv(q, k, v, dout, lse, delta, window_size, num_sink_tokens, softmax_scale):
    nothing = torch.zeros(1, device=q.device)
    return nothing, nothing


def _dkdv(q, k, v, dout, lse, delta, sink_dk, sink_dv, window_size, num_sink_tokens, softmax_scale):
    batch, num_kv_heads, seqlen, head_dim = k.shape
    dk = torch.empty(k.shape, dtype=k.dtype, device=k.device)
    dv = torch.empty(v.shape, dtype=v.dtype, device=v.device)
    _all_queries_kernel[(batch * num_kv_heads, triton.cdiv(seqlen, 32))](
        q, k, v, dout, lse, delta, dk, dv,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *dout.stride()[:3],
        num_kv_heads, q.shape[1] // num_kv_heads, seqlen, window_size, num_sink_tokens,
        softmax_scale, HEAD_DIM=head_dim, BLOCK=32, num_warps=4, num_stages=1,
    )  # fmt: skip
    return dk, dv
