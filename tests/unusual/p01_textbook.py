"""Written as in a textbook: scores scaled first, masked with -1e6, nothing done in place."""


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    if softmax_scale is None:
        softmax_scale = q.shape[-1] ** -0.5
    outs, lses = [], []
    for i in range(0, q.shape[2], tile_q):
        qi = q[:, :, i : i + tile_q].float()
        m = torch.full((*qi.shape[:3], 1), -math.inf, device=q.device)
        total = torch.zeros_like(m)
        o = torch.zeros_like(qi)
        for j in range(0, k.shape[2], tile_k):
            if is_causal and j >= i + qi.shape[2]:
                break
            kj, vj = k[:, :, j : j + tile_k].float(), v[:, :, j : j + tile_k].float()
            s = softmax_scale * (qi @ kj.transpose(-1, -2))
            if is_causal:
                rows = torch.arange(i, i + qi.shape[2], device=q.device)[:, None]
                keys = torch.arange(j, j + kj.shape[2], device=q.device)
                s = s.masked_fill(keys > rows, -1e6)
            m_new = torch.maximum(m, s.amax(-1, keepdim=True))
            p = torch.exp(s - m_new)
            alpha = torch.exp(m - m_new)
            total = total * alpha + p.sum(-1, keepdim=True)
            o = o * alpha + p @ vj
            m = m_new
        outs.append(o / (total + 1e-6))
        lses.append((m + torch.log(total)).squeeze(-1))
    return torch.cat(outs, 2).to(q.dtype), torch.cat(lses, 2)
