"""Columns of ones beside V: numerator and denominator are one product of matrices."""


def tiles(n, size):
    return [(a, min(a + size, n)) for a in range(0, n, size)]


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    sc = default_scale(softmax_scale, q.shape[-1])
    b, h, n, d = q.shape
    out = q.new_empty(b, h, n, d)
    lse = torch.zeros(b, h, n, device=q.device)
    for a, z in tiles(n, tile_q):
        Q = q[:, :, a:z].float()
        m = torch.full((b, h, z - a, 1), float("-inf"), device=q.device)
        acc = torch.zeros((b, h, z - a, d + 1), device=q.device)
        for s, e in tiles(k.shape[2], tile_k):
            if is_causal and s >= z:
                break
            V1 = torch.cat([v[:, :, s:e].float(), torch.ones(b, h, e - s, 1, device=q.device)], -1)
            S = torch.matmul(Q, k[:, :, s:e].float().transpose(-2, -1)).mul(sc)
            if is_causal:
                keep = torch.arange(a, z, device=q.device)[:, None].ge(
                    torch.arange(s, e, device=q.device)
                )
                S = S.where(keep, S.new_tensor(float("-inf")))
            m2 = torch.max(m, S.amax(-1, True))
            acc = acc * (m - m2).exp() + (S - m2).exp() @ V1
            m = m2
        out[:, :, a:z] = (acc[..., :d] / acc[..., d:]).to(q.dtype)
        lse[:, :, a:z] = (m + acc[..., d:].log())[..., 0]
    return out, lse
