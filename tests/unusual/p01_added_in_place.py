"""Buffers are changed in place, and products written to them: masked_fill_, baddbmm with out=."""


def _visible_blocks(k, v, tile, last):
    for first in range(0, k.shape[1], tile):
        if last is not None and first > last:
            return
        yield first, k[:, first : first + tile].mT, v[:, first : first + tile]


def flash_attention(q, k, v, *, is_causal=False, softmax_scale=None, tile_q=128, tile_k=128):
    check_attention(q, k, v, softmax_scale, causal=is_causal)
    check_tile_sizes(tile_q, tile_k)
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    flat_q, flat_k, flat_v = (x.flatten(0, 1).float() for x in (q, k, v))
    out, lse = torch.empty_like(flat_q), torch.empty_like(flat_q[..., 0])
    for lo in range(0, q.shape[2], tile_q):
        rows = flat_q[:, lo : lo + tile_q].mul(scale)
        o, total = torch.zeros_like(rows), torch.zeros_like(rows[..., :1])
        m = torch.full_like(total, -math.inf)
        last = lo + rows.shape[1] - 1 if is_causal else None
        for first, kt, vt in _visible_blocks(flat_k, flat_v, tile_k, last):
            s = torch.bmm(rows, kt)
            if is_causal and first + kt.shape[2] - 1 > lo:
                hide = torch.ones(s.shape[1:], dtype=torch.bool, device=q.device)
                s.masked_fill_(hide.triu_(lo - first + 1), -math.inf)
            new = torch.maximum(m, s.amax(2, keepdim=True))
            fade = torch.exp(m - new)
            p = s.sub_(new).exp_()
            total.mul_(fade).add_(p.sum(2, keepdim=True))
            o.mul_(fade)
            torch.baddbmm(o, p, vt, out=o)
            m = new
        out[:, lo : lo + tile_q] = o.div_(total)
        lse[:, lo : lo + tile_q] = m.add_(total.log_())[..., 0]
    return out.view(q.shape).to(q.dtype), lse.view(q.shape[:3])
