"""The keys are halved until a tile is left, and the halves merged by logaddexp, as in a tree."""


def halves(q, k, v, scale, is_causal, query, begin, end, tile):
    if end - begin > tile:
        middle = begin + (end - begin + 2 * tile - 1) // (2 * tile) * tile
        parts = [(begin, middle), (middle, end)]
        (out, lse), (more, other) = (
            halves(q, k, v, scale, is_causal, query, *part, tile) for part in parts
        )
        both = torch.logaddexp(lse, other)
        known = both.clamp_min(torch.finfo(both.dtype).min)[..., None]  # no row may be all hidden
        return out * (lse[..., None] - known).exp() + more * (other[..., None] - known).exp(), both
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k[:, :, begin:end].float()) * scale
    if is_causal:
        rows, keys = torch.arange(query, query + q.shape[2]), torch.arange(begin, end)
        scores.masked_fill_((keys > rows[:, None]).to(q.device), -torch.inf)
    lse = scores.logsumexp(-1)
    p = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()
    return torch.einsum("bhqk,bhkd->bhqd", p, v[:, :, begin:end].float()), lse


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    found = []
    for start in range(0, q.shape[2], tile_q):
        rows = q[:, :, start : start + tile_q].float()
        end = start + rows.shape[2] if is_causal else k.shape[2]
        found.append(halves(rows, k, v, scale, is_causal, start, 0, end, tile_k))
    out, lse = (torch.cat(parts, 2) for parts in zip(*found, strict=True))
    return out.to(q.dtype), lse
