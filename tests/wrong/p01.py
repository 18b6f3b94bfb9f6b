"""Mistakes in p01: a list, over 400 lines because it is laid out one edit a line."""

# ruff: noqa: E501  (an edit is one line of source)

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.wrong import of

_PRODUCT = "scores = tile_matmul(q_tile, k_tile.transpose(1, 2), softmax_scale)"
_NEW_MAX = "new_max = torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))"
_WEIGHTS = "weights = scores.sub_(new_max).exp_()"
_TILE_SUM = "tile_sum = weights.sum(dim=-1, keepdim=True)"
_RESCALE = "rescale = torch.exp(running_max - new_max)"
_NEW_SUM = "new_sum = torch.addcmul(tile_sum, running_sum, rescale)"
_NEW_ACC = "new_acc = torch.addcmul(tile_acc, acc, rescale)"
_OUT = "out[:, q_start:q_stop] = acc / running_sum"
_LSE = "row_lse = running_max + running_sum.log()"
_DEFAULT = "softmax_scale = default_scale(softmax_scale, q.shape[3])"

_OF_TEXTBOOK = "softmax_scale = q.shape[-1] ** -0.5"

WRONG = (
    *of(
        "p01",
        ('scale of dim', 'plain', 'SCALE-SQUARED', (_PRODUCT, _PRODUCT.replace('softmax_scale', '1 / q.shape[3]'))),
        ('scale by sqrt twice', 'plain', 'OTHER-SCALE SCALE-INVERTED', (_PRODUCT, _PRODUCT.replace('softmax_scale', 'math.sqrt(q.shape[3])'))),
        ('scale of seqlen', 'plain', 'OTHER-SCALE', (_PRODUCT, _PRODUCT.replace('softmax_scale', '1 / math.sqrt(seqlen_k)'))),
        ('scale of tile', 'plain', 'OTHER-SCALE', (_PRODUCT, _PRODUCT.replace('softmax_scale', 'tile_k ** -0.5'))),
        ('scale of heads', 'plain', 'OTHER-SCALE SCALE-MISSING', (_PRODUCT, _PRODUCT.replace('softmax_scale', 'q.shape[1] ** -0.5'))),
        ('scale ln2', 'plain', 'EXP2-WITHOUT-LOG2E OTHER-SCALE', (_PRODUCT, _PRODUCT.replace('softmax_scale', 'softmax_scale * math.log(2)'))),
        ('scale log2e', 'plain', 'EXP-WITH-LOG2E OTHER-SCALE', (_PRODUCT, _PRODUCT.replace('softmax_scale', 'softmax_scale / math.log(2)'))),
        ('scale half', 'plain', 'OTHER-SCALE', (_PRODUCT, _PRODUCT.replace('softmax_scale', 'softmax_scale / 2'))),
        ('scale cube root', 'plain', 'OTHER-SCALE', (_PRODUCT, _PRODUCT.replace('softmax_scale', 'q.shape[3] ** -0.25'))),
        ('scale negative', 'plain', 'OTHER-SCALE', (_PRODUCT, _PRODUCT.replace('softmax_scale', '-softmax_scale'))),
        ("scores squared", "plain", "", (_PRODUCT, _PRODUCT + " ** 2")),
        ('max of tile alone', 'large_logits', '', (_NEW_MAX, 'new_max = scores.amax(dim=-1, keepdim=True)')),
        ('max of tile alone and weights', 'plain', 'TILE-SHARES RESCALE-MISSING', (_NEW_MAX, 'new_max = scores.amax(dim=-1, keepdim=True)'), (_RESCALE, 'rescale = torch.ones_like(new_max)')),
        ("rescale squared", "plain", "TILE-SHARES", (_RESCALE, _RESCALE + " ** 2")),
        ('rescale upside down', 'plain', 'TILE-SHARES', (_RESCALE, 'rescale = torch.exp(new_max - running_max).nan_to_num(0.0, 0.0, 0.0)')),
        ('rescale by exp2', 'plain', 'TILE-SHARES', (_RESCALE, 'rescale = torch.exp2(running_max - new_max)')),
        ('rescale scaled', 'plain', 'TILE-SHARES', (_RESCALE, 'rescale = torch.exp((running_max - new_max) * softmax_scale)')),
        ('new tile rescaled too', 'plain', 'TILE-SHARES', (_NEW_ACC, 'new_acc = (acc + tile_acc) * rescale'), (_NEW_SUM, 'new_sum = (running_sum + tile_sum) * rescale')),
        ('new tile rescaled instead', 'plain', 'TILE-SHARES', (_NEW_ACC, 'new_acc = acc + tile_acc * rescale'), (_NEW_SUM, 'new_sum = running_sum + tile_sum * rescale')),
        ('normalised in each tile', 'plain', '', (_WEIGHTS, 'weights = torch.softmax(scores, dim=-1)')),
        ('acc divided in the loop', 'plain', 'TILE-SHARES', (_NEW_ACC, 'new_acc = torch.addcmul(tile_acc, acc, rescale) / new_sum'), (_OUT, 'out[:, q_start:q_stop] = acc')),
        ('acc divided in the loop and after', 'plain', 'TILE-SHARES', (_NEW_ACC, 'new_acc = torch.addcmul(tile_acc, acc, rescale) / new_sum')),
        ('out divided by tile sum', 'plain', 'SUM-OVERWRITTEN ROWS-SCALED', (_OUT, 'out[:, q_start:q_stop] = acc / tile_sum')),
        ('divided by maximum', 'plain', 'ROWS-SCALED', (_OUT, 'out[:, q_start:q_stop] = acc / running_max')),
        ('multiplied by the sum', 'plain', 'ROWS-SCALED', (_OUT, 'out[:, q_start:q_stop] = acc * running_sum')),
        ('sum over queries', 'plain', 'SOFTMAX-OVER-QUERIES ROWS-SCALED', (_TILE_SUM, 'tile_sum = weights.sum(dim=-2)[..., None][:, :q_stop - q_start]')),
        ('sum of mean', 'plain', 'OUTPUT-SCALED', (_TILE_SUM, 'tile_sum = weights.mean(dim=-1, keepdim=True)')),
        ('max over all of the tile', 'large_logits plain', '', (_NEW_MAX, 'new_max = torch.maximum(running_max, scores.amax(dim=(1, 2), keepdim=True))')),
        ('min for max', 'plain', '', (_NEW_MAX, 'new_max = torch.maximum(running_max, scores.amin(dim=-1, keepdim=True))')),
        ("weights without max", "plain", "TILE-SHARES", (_WEIGHTS, "weights = scores.exp_()")),
        ('softmax over queries', 'plain', '', (_WEIGHTS, 'weights = torch.softmax(scores, dim=1)'), (_NEW_ACC, 'new_acc = acc + tile_acc'), (_OUT, 'out[:, q_start:q_stop] = acc')),
        ('acc starts with ones', 'plain', '', ('acc = torch.zeros(q_tile.shape', 'acc = torch.ones(q_tile.shape'), ('running_max = torch.full_like(running_sum, -math.inf)', 'running_max = torch.zeros_like(running_sum)')),
        ('sum starts with one', 'plain', 'ROWS-SCALED', ('running_sum = torch.zeros_like(acc[:, :, :1])', 'running_sum = torch.ones_like(acc[:, :, :1])'), ('running_max = torch.full_like(running_sum, -math.inf)', 'running_max = torch.zeros_like(running_sum)')),
        ('max starts at zero', 'large_logits', '', ('running_max = torch.full_like(running_sum, -math.inf)', 'running_max = torch.zeros_like(running_sum)')),
        ('second tile on', 'plain', 'KEYS-NEVER-VISITED OTHER-KEYS', ('range(0, visible_stop, tile_k)', 'range(tile_k, visible_stop, tile_k)')),
        ('every other tile', 'plain', 'KEYS-NEVER-VISITED OTHER-KEYS', ('range(0, visible_stop, tile_k)', 'range(0, visible_stop, 2 * tile_k)')),
        ('all but the last tile', 'plain ragged', 'OTHER-KEYS LAST-KEY-TILE-DROPPED KEYS-NEVER-VISITED', ('range(0, visible_stop, tile_k)', 'range(0, visible_stop - tile_k, tile_k)')),
        ('tiles overlap', 'plain', 'OTHER-KEYS', ('range(0, visible_stop, tile_k)', 'range(0, visible_stop, tile_k // 2)')),
        ('one key fewer a tile', 'plain', 'KEYS-NEVER-VISITED OTHER-KEYS', ('k_stop = min(k_start + tile_k, visible_stop)', 'k_stop = min(k_start + tile_k - 1, visible_stop)')),
        ('one key more a tile', 'plain', 'OTHER-KEYS', ('k_stop = min(k_start + tile_k, visible_stop)', 'k_stop = min(k_start + tile_k + 1, visible_stop)')),
        ('last key dropped', 'plain', 'KEYS-NEVER-VISITED OTHER-KEYS', ('k_stop = min(k_start + tile_k, visible_stop)', 'k_stop = min(k_start + tile_k, max(visible_stop - 1, 1))')),
        ('first key dropped', 'plain', 'KEYS-NEVER-VISITED OTHER-KEYS', ('range(0, visible_stop, tile_k)', 'range(min(1, visible_stop - 1), visible_stop, tile_k)')),
        ('v of the first tile', 'plain', '', ('v_tile = v_heads[:, k_start:k_stop]', 'v_tile = v_heads[:, :k_stop - k_start]')),
        ('k of the first tile', 'plain', '', ('k_tile = k_heads[:, k_start:k_stop]', 'k_tile = k_heads[:, :k_stop - k_start]')),
        ('diagonal of the tile', 'causal', '', ('key[None, :] > query[:, None]', 'key[None, :] > query[:, None] + tile_k')),
        ('causal from the end', 'causal', 'MASK-INVERTED', ('key[None, :] > query[:, None]', 'key[None, :] < query[:, None]')),
        ('masked with zero', 'causal', 'MASKED-SCORES-NOT-HIDDEN', ('query[:, None], -math.inf)', 'query[:, None], 0.0)')),
        ('masked with minus one', 'causal', 'KEYS-AFTER-THE-QUERY', ('query[:, None], -math.inf)', 'query[:, None], -1.0)')),
        ('mask after max', 'causal', 'KEYS-AFTER-THE-QUERY', (_WEIGHTS, _WEIGHTS + '\n            if is_causal: weights = _hide_later_keys(weights, q_start, q_stop, k_start, k_stop)'), ('if is_causal:\n                scores = _hide', 'if False:\n                scores = _hide')),
        ("lse log10", "lse", "OTHER-LSE", (_LSE, "row_lse = running_max + running_sum.log10()")),
        ("lse minus max", "lse", "OTHER-LSE", (_LSE, "row_lse = running_sum.log() - running_max")),
        ("lse log1p", "lse", "", (_LSE, "row_lse = running_max + running_sum.log1p()")),
        ("lse times max", "lse", "", (_LSE, "row_lse = running_max * running_sum.log()")),
        ("lse of the tile", "plain lse", "", (_LSE, "row_lse = running_max + tile_sum.log()")),
        ('lse max unscaled', 'lse', 'LSE-UNSCALED-MAX', (_LSE, 'row_lse = running_max / softmax_scale + running_sum.log()')),
        ('lse scaled', 'lse', 'OUTPUT-SCALED', (_LSE, 'row_lse = (running_max + running_sum.log()) * softmax_scale')),
        ('acc in fp16', 'half', '', (_NEW_ACC, _NEW_ACC + '.half().float()')),
        ('weights in fp16', 'plain', '', ('tile_matmul(weights.to(v.dtype), v_tile)', 'tile_matmul(weights.half().float().to(v.dtype), v_tile)')),
        ('v not transposed heads', 'batch_heads', 'WRONG-KV-HEAD', ('v_heads = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)', 'v_heads = q.flatten(0, 1), k.flatten(0, 1), v.transpose(0, 1).flatten(0, 1)')),
        ('next head', 'batch_heads', 'WRONG-KV-HEAD', ('v_heads = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)', 'v_heads = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1).roll(1, 0)')),
        ('scale in fp16', 'plain head_dims', 'OTHER-SCALE', (_DEFAULT, _DEFAULT + '\n    softmax_scale = round(softmax_scale, 2)')),
        ('scale absolute', 'odd_scales', 'OTHER-SCALE', (_DEFAULT, _DEFAULT + '\n    softmax_scale = abs(softmax_scale)')),
    ),
    *of(
        "p01-textbook",
        ('scale on q and on scores', 'plain', 'SCALE-SQUARED', ('q[:, :, i : i + tile_q].float()', 'q[:, :, i : i + tile_q].float() * softmax_scale')),
        ('scale of dim', 'plain', 'SCALE-SQUARED OTHER-SCALE', (_OF_TEXTBOOK, 'softmax_scale = 1 / q.shape[-1]')),
        ('p not rescaled twice', 'plain', 'ROWS-SCALED', ('total = total * alpha + p.sum(-1, keepdim=True)', 'total = total * alpha * alpha + p.sum(-1, keepdim=True)')),
        ('o alpha twice', 'plain', 'TILE-SHARES', ('o = o * alpha + p @ vj', 'o = o * alpha * alpha + p @ vj')),
        ('alpha of old', 'plain', 'RESCALE-MISSING', ('            p = torch.exp(s - m_new)\n            alpha = torch.exp(m - m_new)', '            p = torch.exp(s - m_new)\n            m = m_new\n            alpha = torch.exp(m - m_new)')),
        ('mask one early', 'causal', 'DIAGONAL-EXCLUDED', ('keys > rows, -1e6', 'keys >= rows, -1e6')),
        ("break one early", "causal_tiles", "KEYS-NEVER-VISITED OTHER-KEYS", ("j >= i + qi.shape[2]", "j >= i + qi.shape[2] - 1")),
        ('break at tile', 'causal_tiles', 'KEYS-NEVER-VISITED OTHER-KEYS TILE-SHARES', ('j >= i + qi.shape[2]', 'j > i')),
        ('rows from zero', 'causal_tiles', 'MASK-INSIDE-EVERY-TILE', ('torch.arange(i, i + qi.shape[2]', 'torch.arange(0, qi.shape[2]')),
        ('keys from zero', 'causal_tiles', 'MASK-INSIDE-EVERY-TILE', ('torch.arange(j, j + kj.shape[2]', 'torch.arange(0, kj.shape[2]')),
        ("mask small", "causal", "KEYS-AFTER-THE-QUERY", ("keys > rows, -1e6", "keys > rows, -10.0")),
        ('mask times', 'causal', 'MASKED-SCORES-NOT-HIDDEN', ('s = s.masked_fill(keys > rows, -1e6)', 's = s * (keys <= rows)')),
        ('p not masked', 'causal', 'KEYS-AFTER-THE-QUERY', ('s = s.masked_fill(keys > rows, -1e6)', 's = s.triu(j - i)')),
        ('tril of tile', 'causal causal_tiles', 'MASK-INSIDE-THE-TILE MASK-INSIDE-EVERY-TILE', ('s = s.masked_fill(keys > rows, -1e6)', 's = s + torch.full_like(s, -1e6).triu(1)')),
        ('v not of tile', 'plain', '', ('v[:, :, j : j + tile_k].float()', 'v[:, :, i : i + tile_k].float()')),
        ('divided by sqrt of total', 'plain', 'ROWS-SCALED', ('outs.append(o / (total + 1e-6))', 'outs.append(o / (total + 1e-6).sqrt())')),
        ("big epsilon", "plain", "ROWS-SCALED", ("(total + 1e-6)", "(total + 1.0)")),
        ('out not divided by total but by m', 'plain', 'ROWS-SCALED', ('outs.append(o / (total + 1e-6))', 'outs.append(o / torch.exp(m))')),
        ('final exp m', 'plain', 'ROWS-SCALED', ('outs.append(o / (total + 1e-6))', 'outs.append(o * torch.exp(m) / (total + 1e-6))')),
        ('wrong dim max', 'plain', 'ROWS-SCALED', ('s.amax(-1, keepdim=True)', 's.amax(-2, keepdim=True).mT')),
        ('scaled k only first', 'plain', '', ('s = softmax_scale * (qi @ kj.transpose(-1, -2))', 's = qi @ kj.transpose(-1, -2)\n            if j == 0: s = s * softmax_scale')),
    ),
)
