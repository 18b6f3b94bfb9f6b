"""One head at a time, and a function that halves the list of key tiles until one is left."""


def _leaf(q, k, v, rows, keys, is_causal):
    s = q @ k[keys].float().t()
    if is_causal:
        s = s.masked_fill(keys > rows[:, None], -math.inf)
    m = s.amax(1)
    m = torch.where(m.isneginf(), 0.0, m)
    p = torch.exp(s - m[:, None])
    return m, p.sum(1), p.mm(v[keys].float())


def _tree(q, k, v, rows, tiles, is_causal):
    if len(tiles) == 1:
        return _leaf(q, k, v, rows, tiles[0], is_causal)
    half = len(tiles) // 2
    m1, l1, a1 = _tree(q, k, v, rows, tiles[:half], is_causal)
    m2, l2, a2 = _tree(q, k, v, rows, tiles[half:], is_causal)
    m = torch.maximum(m1, m2)
    c1, c2 = torch.exp(m1 - m), torch.exp(m2 - m)
    return m, c1 * l1 + c2 * l2, c1[:, None] * a1 + c2[:, None] * a2


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    scale = default_scale(softmax_scale, q.shape[-1])
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for rows in torch.arange(q.shape[2], device=q.device).split(tile_q):
                end = int(rows[-1]) + 1 if is_causal else k.shape[2]
                tiles = torch.arange(end, device=q.device).split(tile_k)
                q_tile = q[b, h, rows].float() * scale
                m, total, acc = _tree(q_tile, k[b, h], v[b, h], rows, tiles, is_causal)
                out[b, h, rows] = (acc / total[:, None]).to(q.dtype)
                lse[b, h, rows] = m + total.log()
    return out, lse
