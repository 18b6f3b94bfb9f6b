"""Each tile is a softmax of its own; two results are merged by their lse, as in ring attention."""


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    out = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    lse = torch.full(q.shape[:3], -math.inf, device=q.device)
    for q_start in range(0, q.shape[2], tile_q):
        rows = slice(q_start, min(q_start + tile_q, q.shape[2]))
        for k_start in range(0, rows.stop if is_causal else k.shape[2], tile_k):
            keys = slice(k_start, min(k_start + tile_k, k.shape[2]))
            scores = scale * q[:, :, rows].float() @ k[:, :, keys].float().mT
            if is_causal:
                query = torch.arange(rows.start, rows.stop, device=q.device)[:, None]
                key = torch.arange(keys.start, keys.stop, device=q.device)
                scores = scores.masked_fill(key > query, -math.inf)
            tile_lse = scores.logsumexp(-1)
            new_lse = torch.logaddexp(lse[:, :, rows], tile_lse)
            weights = torch.exp(scores - new_lse[..., None])
            kept = torch.exp(lse[:, :, rows] - new_lse)[..., None]
            out[:, :, rows] = kept * out[:, :, rows] + weights @ v[:, :, keys].float()
            lse[:, :, rows] = new_lse
    return out.to(q.dtype), lse
