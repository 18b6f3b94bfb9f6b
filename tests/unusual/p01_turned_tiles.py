"""Tiles lie transposed, keys down and queries across; the last keys come first; base 2."""


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    scale = default_scale(softmax_scale, q.shape[-1]) / math.log(2)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    for q_start in range(0, q.shape[2], tile_q):
        q_end = min(q.shape[2], q_start + tile_q)
        turned = q[:, :, q_start:q_end].float().mT * scale
        top = torch.full((*q.shape[:2], q_end - q_start), -math.inf, device=q.device)
        total, acc = torch.zeros_like(top), torch.zeros_like(turned)
        stop = q_end if is_causal else k.shape[2]
        for k_start in reversed(range(0, stop, tile_k)):
            k_end = min(stop, k_start + tile_k)
            t = k[:, :, k_start:k_end].float() @ turned
            if is_causal and k_end - 1 > q_start:
                late = torch.ones(t.shape[2:], dtype=torch.bool, device=q.device)
                t[:, :, late.tril(k_start - q_start - 1)] = -math.inf
            new = torch.maximum(top, t.amax(-2))
            base = new.clamp(min=-1e30)
            weights, fade = torch.exp2(t - base[:, :, None]), torch.exp2(top - base)
            total = total * fade + weights.sum(-2)
            acc = acc * fade[:, :, None] + v[:, :, k_start:k_end].float().mT @ weights
            top = new
        out[:, :, q_start:q_end] = (acc / total[:, :, None]).mT
        lse[:, :, q_start:q_end] = (top + total.log2()) * math.log(2)
    return out, lse
