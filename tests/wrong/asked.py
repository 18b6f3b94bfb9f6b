"""Mistakes of students that public threads on attention kernels tell of, and others beside them."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.wrong import of

WRONG = (
    *of(
        "p03",
        ("mask by seqlen_q", "", "LOOP-OVER-SEQLEN-Q", ('visible = keys[None, :] < seqlen_k', 'visible = keys[None, :] < seqlen_q')),
        ("lse by the length of k", "", "STORED-ELSEWHERE", ('lse_ptr += batch_head * seqlen_q', 'lse_ptr += batch_head * seqlen_k')),
        ("p of old maximum", "plain", "WEIGHTS-INFINITE", ('p = tl.exp2(scores * scale_log2 - new_max[:, None])', 'p = tl.exp2(scores * scale_log2 - running_max[:, None])')),
        ("weights times rescale", "", "RESCALE-ACC-LATE", ('acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None]', 'acc = tl.dot((p * rescale[:, None]).to(v.dtype), v, acc * rescale[:, None]')),
        ("sum of scores for p", "", "ROWS-SCALED", ('running_sum = running_sum * rescale + tl.sum(p, 1)', 'running_sum = running_sum * rescale + tl.sum(tl.exp2(scores * scale_log2), 1)')),
    ),
    *of(
        "p03-scores_transposed",
        ("fade not in the sum", "", "RESCALE-SUM-MISSING", ('den = den * fade + tl.sum(p_t, axis=0)', 'den = den + tl.sum(p_t, axis=0)')),
        ("reduced over queries", "", "STATE-PARTS", ('now = tl.maximum(top, tl.max(s_t, 0))', 'now = tl.maximum(top, tl.max(tl.max(s_t, 0), 0))')),
        ("lse of the scaled sum only in log2", "", "LSE-BASE-2", ('(top + tl.log2(den)) * 0.6931471805599453', 'top + tl.log2(den)')),
    ),
    *of(
        "p04",
        ("queries of the mirrored tile", "", "OTHER-PAIRS", ('queries = query_start + tl.arange(0, BLOCK_M)', 'queries = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)')),
        ("always even", "", "EDGE-NOT-MASKED", ('IS_EVEN=seqlen % tiles["BLOCK_N"] == 0', 'IS_EVEN=True')),
        ("masked by zero", "", "MASKED-SCORES-NOT-HIDDEN", ('scores = tl.where(visible, scores, float("-inf"))', 'scores = tl.where(visible, scores, 0.0)')),
        ("scores times mask", "", "MASKED-SCORES-NOT-HIDDEN", ('scores = tl.where(visible, scores, float("-inf"))', 'scores = scores * visible')),
    ),
    *of(
        "p05-grid_of_three",
        ("lse from the new tile", "", "LSE-WITHOUT-MAX", ('mx + tl.log(z), mask=r < T', 'tl.log(z), mask=r < T')),
        ("rescale by exp2", "", "TILE-SHARES", ('    new = tl.maximum(mx, tl.max(s, axis=1))\n    alpha = tl.exp(mx - new)\n    e = tl.exp(s - new[:, None])', '    new = tl.maximum(mx, tl.max(s, axis=1))\n    alpha = tl.exp2(mx - new)\n    e = tl.exp(s - new[:, None])')),
        ("q rows of the wrong tile", "plain", "QUERIES-NEVER-LOADED WRONG-STRIDE", ('Q + b * qb + h * qh + r[:, None] * qt', 'Q + b * qb + h * qh + (r[:, None] - r[:, None] % BC) * qt')),
        ("v of the key after", "", "TILE-OUTSIDE", ('v_ptrs = V + b * vb + g * vh + n[:, None] * vt', 'v_ptrs = V + b * vb + g * vh + (n[:, None] + 1) * vt')),
        ("p not rounded as v", "", "ROUNDED-TO-16-BITS", ('o += tl.dot(e.to(v.dtype), v', 'o += tl.dot(e.to(tl.float16).to(v.dtype), v')),
        ("group by ceil", "", "WRONG-KV-HEAD", ('g = h * KVH // H', 'g = (h * KVH + H - 1) // H')),
    ),
    *of(
        "p05-group_in_the_tile",
        ("head before position", "", "KEYS-NEVER-VISITED", ('m = r // G\n    h = hk * G + r % G', 'm = r % N\n    h = hk * G + r // N')),
        ("mask by packed rows", "", "KEYS-AFTER-THE-QUERY", ('n[None, :] <= m[:, None]', 'n[None, :] <= r[:, None]')),
        ("end of unpacked tiles", "", "KEYS-NEVER-VISITED", ('(tl.program_id(0) * BM + BM - 1) // G + 1', 'tl.program_id(0) * BM // G + 1')),
    ),
    *of(
        "p06-diagonal_then_back",
        ("back from the diagonal again", "", "KEYS-COUNTED-TWICE", ('for i_s in range(i_t * BT - BS,', 'for i_s in range(i_t * BT,')),
        ("back skips a tile", "", "KEYS-NEVER-VISITED", ('for i_s in range(i_t * BT - BS,', 'for i_s in range(i_t * BT - 2 * BS,')),
        ("window mask on the diagonal alone", "", "KEYS-BEFORE-THE-WINDOW", ('        if USE_W:\n            b_s = tl.where(o_q[:, None] - o_k[None, :] < W, b_s, float("-inf"))\n', '')),
        ("b_mp after the update", "", "TILE-SHARES", ('        b_m, b_mp = tl.maximum(b_m, tl.max(b_s, 1)), b_m\n        b_ms = tl.where(b_m == float("-inf"), 0.0, b_m)\n        b_r = tl.exp2(b_mp - b_ms)', '        b_m = tl.maximum(b_m, tl.max(b_s, 1))\n        b_mp = b_m\n        b_ms = tl.where(b_m == float("-inf"), 0.0, b_m)\n        b_r = tl.exp2(b_mp - b_ms)', 2)),
        ("b_o without rescale", "", "TILE-SHARES", ('b_o = b_o * b_r[:, None] + tl.dot', 'b_o = b_o + tl.dot', 2)),
        ("scale without log2e behind", "", "SCALE-OF-SOME-TILES", ('        b_s = tl.dot(b_q, b_k, input_precision="ieee") * (scale * RCP_LN2)\n        if USE_W', '        b_s = tl.dot(b_q, b_k, input_precision="ieee") * scale\n        if USE_W')),
        ("last tile counted from w", "", "KEYS-NEVER-VISITED", ('tl.maximum(i_t * BT - W, 0) // BS * BS - BS, -BS', 'tl.maximum(i_t * BT - W, 0) // BS * BS, -BS')),
    ),
    *of(
        "p06-distances",
        ("distance absolute", "", "KEYS-AFTER-THE-QUERY", ('seen = (distance >= 0) & (distance < W)', 'seen = tl.abs(distance) < W')),
        ("rounds of the window alone", "", "KEYS-NEVER-VISITED", ('rounds = triton.cdiv(BM + window - 1, BN) + 1', 'rounds = triton.cdiv(window, BN)')),
        ("window of the tile", "", "KEYS-BEFORE-THE-WINDOW", ('seen = (distance >= 0) & (distance < W)', 'seen = (distance >= 0) & (tile * BM - n[None, :] < W)')),
    ),
    *of(
        "p07",
        ("window without the sinks", "", "VISIBLE-KEYS-MASKED", ('stop = tl.where(keys < num_sink_tokens, seqlen, keys + window_size)', 'stop = tl.where(keys < num_sink_tokens, seqlen, keys + window_size - num_sink_tokens)')),
        ("sinks only behind the window", "", "VISIBLE-KEYS-MASKED", ('visible = (keys[None, :] <= queries) & (queries < stop[None, :])', 'visible = (keys[None, :] <= queries) & tl.where((keys < num_sink_tokens)[None, :], queries >= window_size, queries < stop[None, :])')),
        ("sinks relative to the window", "", "KEYS-BEFORE-THE-WINDOW", ('stop = tl.where(keys < num_sink_tokens', 'stop = tl.where(keys - first_key < num_sink_tokens')),
        ("sinks and window swapped at the launch", "", "ARGUMENTS-EXCHANGED", ('seqlen, window_size, num_sink_tokens,\n        softmax_scale', 'seqlen, num_sink_tokens, window_size,\n        softmax_scale')),
        ("no safe maximum", "", "NAN-FROM-INF-MINUS-INF", ('safe_max = safe_maximum(new_max)  #', 'safe_max = new_max  #')),
    ),
    *of(
        "p08-heads_apart",
        ("last of the group", "", "GROUP-LAST-HEAD", ('.unflatten(1, group).sum(2)', '.unflatten(1, group)[:, :, -1].contiguous()')),
    ),
    *of(
        "p08-one_kernel",
        ("lse along keys", "", "ALONG-THE-KEYS", ('* scale - lse[:, None])', '* scale - lse[None, :])')),
        ("delta along keys", "", "ALONG-THE-KEYS", ('ds = p * (dp - delta[:, None]) * scale', 'ds = p * (dp - delta[None, :]) * scale')),
        ("scale in dk only", "", "DQ-UNSCALED", ('dq = tl.dot(ds.to(k.dtype), k, input', 'dq = tl.dot((ds / scale).to(k.dtype), k, input')),
        ("dv of ds", "", "OTHER-TERMS", ('dv += tl.dot(tl.trans(p.to(dout.dtype)), dout', 'dv += tl.dot(tl.trans(ds.to(dout.dtype)), dout')),
        ("dk of last tile", "", "PRODUCT-DISCARDED", ('dk += tl.dot', 'dk = tl.dot')),
        ("dk scaled each time", "plain", "SHARES-OF-A-GRADIENT", ('dk += tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")', 'dk = dk * scale + tl.dot(tl.trans(ds.to(q.dtype)), q, input_precision="ieee")')),
        ("dk stored not added", "", "LAST-STORE-WINS", ('tl.atomic_add(dk_ptr + offs, dk, mask=keys[:, None] < seqlen, sem="relaxed")', 'tl.store(dk_ptr + offs, dk, mask=keys[:, None] < seqlen)')),
        ("dq accumulated in the loop", "", "", ('        dq = tl.dot(ds.to(k.dtype), k, input_precision="ieee")\n', '        dq = tl.dot(ds.to(k.dtype), k, input_precision="ieee") + (dk * 0.01)\n')),
        ("out of half for delta", "", "ROUNDED-TO-16-BITS", ('delta = (out.float() * dout.float()).sum(-1)', 'delta = (out.half() * dout.half()).sum(-1).float()')),
    ),
    *of(
        "p08-one_pass_by_queries",
        ("dv scaled", "", "OUTPUT-SCALED", ('tl.dot(P.to(dOi.dtype).T', 'tl.dot((P * 0.5).to(dOi.dtype).T')),
        ("sum of dout for delta", "", "OTHER-DELTA", ('Di = tl.sum(dOi.to(tl.float32) * Oi.to(tl.float32), axis=1)', 'Di = tl.sum(dOi.to(tl.float32), axis=1)')),
        ("scale twice in S", "", "OTHER-PROBABILITIES", ('tl.exp(S - L[:, None])', 'tl.exp(S * sm_scale - L[:, None])')),
        ("lse rounded to fp16", "", "ROUNDED-TO-16-BITS", ('tl.exp(S - L[:, None])', 'tl.exp(S - L.to(tl.float16)[:, None])')),
        ("log2 of lse", "", "BACKWARD-LSE-BASE-2", ('tl.exp(S - L[:, None])', 'tl.exp(S - tl.log2(tl.exp(L))[:, None])')),
    ),
    *of(
        "p09",
        ("sinks in dkdv not causal", "", "KEYS-COUNTED-TWICE", ('is_pair = (keys < num_sink_tokens) & (keys <= queries - window_size)', 'is_pair = keys < num_sink_tokens')),
        ("partial sums of k for v", "", "SINK-PAIRS", ('return partial_dk.sum(0), partial_dv.sum(0)', 'return partial_dk.sum(0), partial_dk.sum(0)')),
        ("lse saved before the logit", "", "OTHER-SINK-GRADIENT", ('sink_p = torch.exp(sink_logits.float()[:, None] - lse)', 'sink_p = torch.exp(sink_logits.float()[:, None] - torch.logaddexp(lse, sink_logits.float()[:, None]))')),
        ("sink weight by sigmoid", "", "OTHER-SINK-GRADIENT", ('sink_p = torch.exp(sink_logits.float()[:, None] - lse)', 'sink_p = torch.sigmoid(sink_logits.float()[:, None] - lse)')),
        ("dsink over the sequence mean", "", "OTHER-SINK-GRADIENT", ('dsink_logits = -(sink_p * delta).sum((0, 2))', 'dsink_logits = -(sink_p * delta).mean((0, 2))')),
        ("P added to dS", "", "OTHER-TERMS", ('ds = p * (dp - delta[:, None])', 'ds = p * (dp - delta[:, None]) + p * 0.01')),
    ),
    *of(
        "p09-logit_at_the_end",
        ("logit counted double", "", "OTHER-SINK-LOGIT", ('z = z * a + tl.exp(sink - new)', 'z = z * a + tl.exp(sink - new) * 2.0')),
        ("window by le", "", "KEYS-BEFORE-THE-WINDOW", ('see = (d >= 0) & ((d < W) | (n < S)[None, :]) & live', 'see = (d >= 0) & ((d < W) | (n <= S)[None, :]) & live')),
        ("sink tokens visible to all in dq", "", "KEYS-AFTER-THE-QUERY", ('see = (d >= 0) & ((d < W) | (n < S)[None, :]) & live', 'see = (((d >= 0) & (d < W)) | (n < S)[None, :]) & live')),
        ("delta by half too much", "", "DELTA-SCALED", ('delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)', 'delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1) * 1.5')),
        ("dk of twice q", "", "OUTPUT-SCALED", ('tl.dot(tl.trans(ds), q,', 'tl.dot(tl.trans(ds), q * 2.0,')),
    ),
    *of(
        "p09-one_backward_kernel",
        ("logit on key zero", "", "OTHER-SINK-LOGIT WEIGHTS-INFINITE", ('s = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, -1.0e30)\n        now', 's = tl.dot(q, tl.trans(k), input_precision="ieee") * scale\n        if SINK is not None:\n            s += tl.where(n[None, :] == 0, tl.load(SINK + h * ss).to(tl.float32), 0.0)\n        s = tl.where(seen, s, -1.0e30)\n        now'), ('    if SINK is not None:  # the logit', '    if SINK is None and BM < 0:  # the logit')),
        ("delta without the sink", "", "OTHER-DELTA", ('delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)\n    if SINK is not None:\n        weight = tl.exp(tl.load(SINK + h * ss).to(tl.float32) - lse)', 'delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)\n    if SINK is not None:\n        weight = tl.exp(tl.load(SINK + h * ss).to(tl.float32) - lse)\n        delta = delta / (1.0 - weight)')),
        ("dsink of dp", "", "OTHER-SINK-GRADIENT", ('tl.where(m < N, weight * delta, 0.0)', 'tl.where(m < N, weight * delta * delta, 0.0)')),
        ("window larger for dq only", "", "", ('ds = (p * (dp', 'ds = (tl.where((gap >= 0) & (gap <= W) & inside, tl.exp(s - lse[:, None]), p) * (dp')),
        ("lse stored without log", "", "ROWS-SCALED", ('tl.store(L + row, top + tl.log(den), mask=m < N)', 'tl.store(L + row, top + den, mask=m < N)')),
        ("sinks by the window edge", "", "KEYS-NEVER-VISITED", ('before = tl.minimum(tl.cdiv(S, BN), first)', 'before = tl.minimum(S // BN, first)')),
    ),
)
