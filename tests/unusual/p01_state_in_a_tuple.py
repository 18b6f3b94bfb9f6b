"""Maximum, sum and accumulator are one tuple, which a function takes from tile to tile."""


def _step(state, q, k, v, hidden):
    m, den, acc = state
    s = torch.einsum("bhid,bhjd->bhij", q, k)
    if hidden is not None:
        s = s.masked_fill(hidden, -math.inf)
    m_new = torch.maximum(m, s.amax(-1, keepdim=True))
    p = torch.exp2(s - m_new)
    shrink = torch.exp2(m - m_new)
    den = den * shrink + p.sum(-1, keepdim=True)
    acc = acc * shrink + torch.einsum("bhij,bhjd->bhid", p, v)
    return m_new, den, acc


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    scale = default_scale(softmax_scale, q.shape[-1]) * math.log2(math.e)
    n_q, n_k = q.shape[2], k.shape[2]
    outs, lses = [], []
    for i in range(0, n_q, tile_q):
        qi = q[:, :, i : i + tile_q].float() * scale
        rows = torch.arange(i, i + qi.shape[2], device=q.device)[:, None]
        m = torch.full((*qi.shape[:3], 1), -math.inf, device=q.device)
        state = (m, torch.zeros_like(m), torch.zeros_like(qi))
        for j in range(0, n_k, tile_k):
            if is_causal and j > i + qi.shape[2] - 1:
                break
            kj, vj = k[:, :, j : j + tile_k].float(), v[:, :, j : j + tile_k].float()
            hidden = None
            if is_causal and j + kj.shape[2] - 1 > i:
                hidden = torch.arange(j, j + kj.shape[2], device=q.device) > rows
            state = _step(state, qi, kj, vj, hidden)
        m, den, acc = state
        outs.append((acc / den).to(q.dtype))
        lses.append(((m + torch.log2(den)) * math.log(2)).squeeze(-1))
    return torch.cat(outs, 2), torch.cat(lses, 2)
