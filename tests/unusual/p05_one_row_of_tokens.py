"""The tokens of all sequences in one row: a program searches its sequence, or has none to do."""


@triton.jit
def find_seq_idx(cu_ptr, target_idx, num_seqs, BLOCK_Q: tl.constexpr):
    left: tl.int32 = 0
    right = num_seqs
    while left < right:
        mid = (left + right) // 2
        val = tl.load(cu_ptr + mid) // BLOCK_Q + mid
        if val <= target_idx:
            left = mid + 1
        else:
            right = mid
    return left - 1


@triton.jit
def kernel_unified(
    out_ptr, lse_ptr, q_ptr, k_ptr, v_ptr, cu_ptr, scale, num_seqs, total, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, D: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    q_block_global_idx = tl.program_id(0)
    kv_head = tl.program_id(1)
    G: tl.constexpr = HEADS // KV_HEADS
    seq = find_seq_idx(cu_ptr, q_block_global_idx, num_seqs, BLOCK_Q)
    start = tl.load(cu_ptr + seq)
    stop = tl.load(cu_ptr + seq + 1)
    q_block = q_block_global_idx - (start // BLOCK_Q + seq)
    n = stop - start
    if q_block * BLOCK_Q >= n:
        return
    pos = q_block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    d = tl.arange(0, D)
    for g in range(G):
        head = kv_head * G + g
        token = (start + pos).to(tl.int64)
        Q = tl.load(
            q_ptr + (token[:, None] * HEADS + head) * D + d[None, :],
            mask=(pos < n)[:, None],
            other=0.0,
        )
        M = tl.full([BLOCK_Q], float("-inf"), dtype=tl.float32)
        L = tl.full([BLOCK_Q], 1.0, dtype=tl.float32)
        acc = tl.zeros([BLOCK_Q, D], dtype=tl.float32)
        for j in range(0, tl.cdiv(tl.minimum((q_block + 1) * BLOCK_Q, n), TILE)):
            kpos = j * TILE + tl.arange(0, TILE)
            row = (start + kpos).to(tl.int64)
            K = tl.load(
                k_ptr + (row[None, :] * KV_HEADS + kv_head) * D + d[:, None],
                mask=(kpos < n)[None, :],
                other=0.0,
            )
            V = tl.load(
                v_ptr + (row[:, None] * KV_HEADS + kv_head) * D + d[None, :],
                mask=(kpos < n)[:, None],
                other=0.0,
            )
            S = scale * tl.dot(Q, K, input_precision="ieee")
            S = tl.where((kpos[None, :] <= pos[:, None]) & (kpos < n)[None, :], S, float("-inf"))
            m_j = tl.maximum(M, tl.max(S, axis=1))
            m_j = tl.where(m_j > float("-inf"), m_j, 0.0)
            P = tl.exp(S - m_j[:, None])
            alpha = tl.exp(M - m_j)
            acc = acc * alpha[:, None]
            L = L * alpha + tl.sum(P, axis=1)
            M = m_j
            acc += tl.dot(P.to(V.dtype), V, input_precision="ieee")
        tl.store(
            out_ptr + (token[:, None] * HEADS + head) * D + d[None, :],
            acc / L[:, None],
            mask=(pos < n)[:, None],
        )
        tl.store(lse_ptr + head * total + token, M + tl.log(L), mask=pos < n)


def attention(q, k, v, *, softmax_scale=None):
    check_attention(q, k, v, softmax_scale, grouped=True)
    b, hq, n, d = q.shape
    hk = k.shape[1]

    def pack(t):
        return t.permute(0, 2, 1, 3).reshape(b * n, t.shape[1], d).contiguous()

    qt, kt, vt = map(pack, (q, k, v))
    cu = torch.arange(0, (b + 1) * n, n, dtype=torch.int32, device=q.device)
    out = torch.empty_like(qt)
    lse = torch.empty((hq, b * n), dtype=torch.float32, device=q.device)
    BLOCK_Q = 32
    kernel_unified[(b * n // BLOCK_Q + b, hk)](
        out, lse, qt, kt, vt, cu, default_scale(softmax_scale, d), b, b * n,
        HEADS=hq, KV_HEADS=hk, D=d, BLOCK_Q=BLOCK_Q, TILE=32, num_warps=4,
    )  # fmt: skip
    out = out.view(b, n, hq, d).transpose(1, 2).contiguous()
    return out, lse.view(hq, b, n).transpose(0, 1).contiguous()
