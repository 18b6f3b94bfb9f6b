"""Two passes over the keys: the first makes lse alone, the second the weights, never rescaled."""


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    scale = default_scale(softmax_scale, q.shape[-1])
    out, lse = torch.empty_like(q, memory_format=torch.contiguous_format), []

    def scores(i, j, stop):
        s = q[:, :, i : i + tile_q].float() @ k[:, :, j : min(j + tile_k, stop)].float().mT * scale
        if is_causal:
            rows = torch.arange(i, i + s.shape[2], device=q.device)[:, None]
            s = torch.where(torch.arange(j, j + s.shape[3], device=q.device) <= rows, s, -math.inf)
        return s

    for i in range(0, q.shape[2], tile_q):
        stop = min(i + tile_q, q.shape[2]) if is_causal else k.shape[2]
        total = scores(i, 0, stop).logsumexp(-1, keepdim=True)
        for j in range(tile_k, stop, tile_k):
            total = torch.logaddexp(total, scores(i, j, stop).logsumexp(-1, keepdim=True))
        acc = 0.0
        for j in range(0, stop, tile_k):
            weights = torch.exp(scores(i, j, stop) - total)
            acc = acc + weights @ v[:, :, j : min(j + tile_k, stop)].float()
        out[:, :, i : i + tile_q] = acc
        lse.append(total[..., 0])
    return out, torch.cat(lse, 2)
