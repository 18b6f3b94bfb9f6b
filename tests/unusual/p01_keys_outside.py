"""The loop order of the first FlashAttention: key tiles outside, query tiles inside."""


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    acc = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    running_max = torch.full(q.shape[:3], -math.inf, device=q.device)
    running_sum = torch.zeros(q.shape[:3], device=q.device)
    for k_start in reversed(range(0, seqlen_k, tile_k)):
        keys = torch.arange(k_start, min(k_start + tile_k, seqlen_k), device=q.device)
        k_tile, v_tile = k[:, :, keys].float(), v[:, :, keys].float()
        for q_start in range(k_start // tile_q * tile_q if is_causal else 0, seqlen_q, tile_q):
            rows = torch.arange(q_start, min(q_start + tile_q, seqlen_q), device=q.device)
            scores = q[:, :, rows].float() @ k_tile.mT * scale
            if is_causal:
                scores = scores.masked_fill(keys > rows[:, None], -math.inf)
            old_max = running_max[:, :, rows]
            new_max = torch.maximum(old_max, scores.amax(-1))
            safe_max = new_max.masked_fill(new_max == -math.inf, 0.0)
            weights = torch.exp(scores - safe_max[..., None])
            rescale = torch.exp(old_max - safe_max)
            running_sum[:, :, rows] = running_sum[:, :, rows] * rescale + weights.sum(-1)
            acc[:, :, rows] = acc[:, :, rows] * rescale[..., None] + weights @ v_tile
            running_max[:, :, rows] = new_max
    return (acc / running_sum[..., None]).to(q.dtype), running_max + running_sum.log()
