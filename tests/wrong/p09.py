"""Mistakes in p09."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.wrong import of

_LOGIT = "running_max = tl.maximum(running_max, sink_logit * LOG2_E)"
_ONE = "running_sum += 1.0"
_FOLDED = "\n    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)\n"
_LOOP = "for position in tl.range(begin, end_key, BLOCK_N, disable_licm=True):\n        key_start = tl.where(position < first_key, position - begin, position)\n        k = load_tile(k_ptr, key_start, k_strides[2]"
_DQ_P = "log2_p = scores * scale_log2 - lse[:, None] * LOG2_E"
_DQ_TEST = "if (position < full_start) | (position >= full_end):  # full tiles pay for no mask\n            keys = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)\n            visible = is_visible(queries, keys[None, :], seqlen, window_size, num_sink_tokens)\n            log2_p"
_DIAGONAL = "diagonal_end = tl.minimum(key_start + BLOCK_N, seqlen)"
_END = "end_query = tl.minimum(key_start + BLOCK_N - 1 + window_size, seqlen)"
_FULL = "full_queries = tl.maximum(tl.minimum(key_start + window_size, seqlen) - diagonal_end, 0)"
_FULL_END = "full_end = diagonal_end + full_queries // BLOCK_M * BLOCK_M"
_WINDOW = "is_pair = (keys <= queries) & (keys > queries - window_size)"
_SINK = "is_pair = (keys < num_sink_tokens) & (keys <= queries - window_size)"
_CHUNK = "begin = window_size + chunk * chunk_size"
_CHUNK_END = "end = tl.minimum(begin + chunk_size, seqlen)\n    # <<<"
_SINK_P = "sink_p = torch.exp(sink_logits.float()[:, None] - lse)"
_DSINK = "dsink_logits = -(sink_p * delta).sum((0, 2)).to(sink_logits.dtype)"
_CLAMP = "num_sink_tokens = min(num_sink_tokens, q.shape[2] - window_size)"
_CLAMP_W = "window_size = min(window_size, q.shape[2])"
_RETURN = "return dq, dk, dv, dsink_logits, None, None, None"
_KV_LOG = "log2_p_t = scores_t * scale_log2 - lse[None, :] * LOG2_E"
_SUMS = "return partial_dk.sum(0), partial_dv.sum(0)"
_COUNT = "num_chunks = triton.cdiv(max(seqlen - window_size, 0), chunk_size)"
_SINK_IN_DKDV = "if key_start < num_sink_tokens:"
_ONE_SEEN = "seen = (gap >= 0) & ((gap < W) | (n < S)[None, :]) & inside"
_ONE_TILES = "before = tl.minimum(tl.cdiv(S, BN), first)"
_DS_ONE = "ds = (p * (dp - delta[:, None]) * scale).to(k.dtype)"
_OF_SINK = "-tl.sum(tl.where(m < N, weight * delta, 0.0), 0)"

WRONG = (
    *of(
        "p09",
        ("logit not in log2", "", "SINK-LOGIT-UNITS", (_LOGIT, _LOGIT.replace(" * LOG2_E", ""))),
        ("logit without a term", "", "SINK-LOGIT-IGNORED", (_ONE, "running_sum += 0.0")),
        ("logit as the term", "", "OTHER-SINK-LOGIT", (_ONE, "running_sum += sink_logit")),
        ("logit of head 0", "", "OTHER-SINK-LOGIT", ("tl.load(sink_logits_ptr + q_head * sink_stride)", "tl.load(sink_logits_ptr)")),
        ("logit of the kv head", "", "OTHER-SINK-LOGIT", ("tl.load(sink_logits_ptr + q_head * sink_stride)", "tl.load(sink_logits_ptr + kv_head * sink_stride)")),
        ("logit negative", "", "OTHER-SINK-LOGIT", (_LOGIT, _LOGIT.replace("sink_logit *", "-sink_logit *"))),
        ("logit twice", "", "OTHER-SINK-LOGIT", (_ONE, "running_sum += 2.0")),
        ("logit with the factor of log2 twice", "", "OTHER-SINK-LOGIT", (_LOGIT, _LOGIT.replace("LOG2_E", "LOG2_E * LOG2_E"))),
        ("logit beside a maximum that was not subtracted", "forward_sink_logits", "OTHER-SINK-LOGIT", (_FOLDED, "    if sink_logits_ptr is not None:\n        running_sum += tl.exp2(tl.load(sink_logits_ptr + q_head * sink_stride).to(tl.float32) * LOG2_E)\n" + _FOLDED), (_LOGIT, ""), (_ONE + "\n    # <<<", "# <<<")),
        ("one at the end", "", "OTHER-SINK-LOGIT", (_FOLDED, "    if sink_logits_ptr is not None:\n        running_sum += 1.0\n" + _FOLDED), (_LOGIT, ""), (_ONE + "\n    # <<<", "# <<<")),
        ("logit as it is at the end", "", "OTHER-SINK-LOGIT", (_FOLDED, "    if sink_logits_ptr is not None:\n        running_sum += tl.load(sink_logits_ptr + q_head * sink_stride).to(tl.float32)\n" + _FOLDED), (_LOGIT, ""), (_ONE + "\n    # <<<", "# <<<")),
        ("maximum in log2 subtracted from a natural logit", "", "OTHER-SINK-LOGIT", (_FOLDED, "    if sink_logits_ptr is not None:\n        running_sum += tl.exp(tl.load(sink_logits_ptr + q_head * sink_stride).to(tl.float32) - running_max)\n" + _FOLDED), (_LOGIT, ""), (_ONE + "\n    # <<<", "# <<<")),
        ("logit of the next head", "", "OTHER-SINK-LOGIT", ("tl.load(sink_logits_ptr + q_head * sink_stride)", "tl.load(sink_logits_ptr + (q_head + 1) % num_q_heads * sink_stride)")),
        ("lse without the logit", "", "BACKWARD-LSE-WITHOUT-SINK", ("    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)\n", "    if sink_logits_ptr is not None:\n        running_sum -= tl.exp2(sink_logit * LOG2_E - running_max)\n    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)\n")),
        ("dq from key 0", "", "TILE-OUTSIDE", (_LOOP, _LOOP.replace("tl.range(begin,", "tl.range(0,"))),
        ("dq from the window", "", "KEYS-NEVER-VISITED", (_LOOP, _LOOP.replace("tl.range(begin,", "tl.range(first_key,"))),
        ("dq sinks at their positions", "", "KEYS-NEVER-VISITED", (_LOOP, _LOOP.replace("tl.where(position < first_key, position - begin, position)", "position"))),
        ("dq ends early", "", "KEYS-NEVER-VISITED", (_LOOP, _LOOP.replace("end_key,", "end_key - BLOCK_N,"))),
        ("dq without lse", "", "OTHER-PROBABILITIES", (_DQ_P, "log2_p = scores * scale_log2")),
        ("dq masked before scaled", "odd_scales", "MASKED-BEFORE-SCALED", (_DQ_P, 'keys = key_start + tl.arange(0, BLOCK_N)\n        scores = tl.where(is_visible(queries, keys[None, :], seqlen, window_size, num_sink_tokens), scores, float("-inf"))\n        ' + _DQ_P), (_DQ_TEST, _DQ_TEST.replace("(position < full_start) | (position >= full_end)", "position < 0"))),
        ("window and sinks not clamped", "extreme_options", "OPTION-OVERFLOWS", (_CLAMP_W, "pass"), (_CLAMP, "pass")),
        ("dq lse natural", "", "DQ-LSE-UNITS", (_DQ_P, _DQ_P.replace(" * LOG2_E", ""))),
        ("dq not masked", "", "KEYS-AFTER-THE-QUERY", (_DQ_TEST, _DQ_TEST.replace("(position < full_start) | (position >= full_end)", "position < 0"))),
        ("dq diagonal alone masked", "", "KEYS-BEFORE-THE-WINDOW", (_DQ_TEST, _DQ_TEST.replace("(position < full_start) | (position >= full_end)", "position >= full_end"))),
        ("dq sinks forgotten in the mask", "", "DQ-WITHOUT-SINKS", (_DQ_TEST, _DQ_TEST.replace("window_size, num_sink_tokens)", "window_size, 0)"))),
        ("diagonal one query", "", "KEYS-AFTER-THE-QUERY", (_DIAGONAL, "diagonal_end = tl.minimum(key_start + 1, seqlen)"), (_FULL, _FULL)),
        ("end without the last key", "", "KEYS-NEVER-VISITED OTHER-PAIRS", (_END, "end_query = tl.minimum(key_start + window_size, seqlen)")),
        ("end of the tile", "", "KEYS-NEVER-VISITED", (_END, "end_query = tl.minimum(key_start + BLOCK_N, seqlen)")),
        ("full one query more", "", "KEYS-COUNTED-TWICE KEYS-BEFORE-THE-WINDOW", (_FULL, _FULL.replace("key_start + window_size,", "key_start + window_size + BLOCK_M,"))),
        ("full rounded up", "", "KEYS-COUNTED-TWICE KEYS-BEFORE-THE-WINDOW", (_FULL_END, "full_end = diagonal_end + tl.cdiv(full_queries, BLOCK_M) * BLOCK_M")),
        ("full to the end", "", "KEYS-COUNTED-TWICE KEYS-BEFORE-THE-WINDOW", (_FULL_END, "full_end = end_query")),
        ("window one more", "", "KEYS-COUNTED-TWICE KEYS-BEFORE-THE-WINDOW", (_WINDOW, _WINDOW.replace("keys > queries", "keys >= queries"))),
        ("window without diagonal", "", "KEYS-AFTER-THE-QUERY", (_WINDOW, "is_pair = keys > queries - window_size")),
        ("window the other way", "", "MASK-TRANSPOSED", (_WINDOW, "is_pair = (queries <= keys) & (queries > keys - window_size)")),
        ("sink pairs inside the window", "", "KEYS-COUNTED-TWICE", (_SINK, "is_pair = (keys < num_sink_tokens) & (keys <= queries)")),
        ("sink pairs at the edge missing", "", "VISIBLE-KEYS-MASKED", (_SINK, _SINK.replace("keys <= queries", "keys < queries"))),
        ("chunks from zero", "", "KEYS-NEVER-VISITED", (_CHUNK, "begin = chunk * chunk_size")),
        ("chunks overlap", "", "KEYS-COUNTED-TWICE", (_CHUNK, "begin = window_size + chunk * chunk_size // 2")),
        ("chunk number alone", "", "KEYS-COUNTED-TWICE", (_CHUNK, "begin = window_size + chunk")),
        ("chunks to the end", "", "KEYS-COUNTED-TWICE", (_CHUNK_END, _CHUNK_END.replace("tl.minimum(begin + chunk_size, seqlen)", "seqlen"))),
        ("chunk of the first chunk's end", "", "KEYS-NEVER-VISITED", (_CHUNK_END, _CHUNK_END.replace("begin + chunk_size", "window_size + chunk_size"))),
        ("chunks rounded down", "", "SINK-KEYS-WITHOUT-GRADIENT", (_COUNT, "num_chunks = max(seqlen - window_size, 0) // chunk_size")),
        ("last chunk alone", "", "", (_SUMS, "return (partial_dk[-1], partial_dv[-1]) if num_chunks else (partial_dk.sum(0), partial_dv.sum(0))")),
        ("mean of chunks", "", "SINK-PAIRS", (_SUMS, "return partial_dk.sum(0) / max(num_chunks, 1), partial_dv.sum(0)")),
        ("sink sums left out", "", "SINK-KEYS-WITHOUT-GRADIENT", (_SINK_IN_DKDV, "if key_start < 0:")),
        ("sink sums of kv head 0", "", "", ("sink_dk_ptr += (batch * num_kv_heads + kv_head) * num_sink_tokens * HEAD_DIM", "sink_dk_ptr += batch * num_kv_heads * num_sink_tokens * HEAD_DIM")),
        ("sink sums exchanged", "", "SINK-PAIRS", ("lse, delta, sink_dk, sink_dv, dk, dv,", "lse, delta, sink_dv, sink_dk, dk, dv,")),
        ("sink sums scaled", "", "SINK-PAIRS", (_SUMS, "return softmax_scale * partial_dk.sum(0), partial_dv.sum(0)")),
        ("dsink positive", "", "DSINK-SIGN", (_DSINK, _DSINK.replace("-(", "("))),
        ("dsink without delta", "", "DSINK-WITHOUT-DELTA", (_DSINK, _DSINK.replace("sink_p * delta", "sink_p"))),
        ("dsink of delta alone", "", "OTHER-SINK-GRADIENT", (_DSINK, _DSINK.replace("sink_p * delta", "delta + 0.0 * sink_p"))),
        ("dsink of one batch", "", "DSINK-FIRST-BATCH", (_DSINK, _DSINK.replace(".sum((0, 2))", "[0].sum(1)"))),
        ("dsink mean over rows", "dsink_logits", "OTHER-SINK-GRADIENT", (_DSINK, _DSINK.replace(".sum((0, 2))", ".mean(2).sum(0)"))),
        ("dsink last row", "", "OTHER-SINK-GRADIENT", (_DSINK, _DSINK.replace(".sum((0, 2))", "[:, :, -1].sum(0)"))),
        ("dsink scaled", "", "OTHER-SINK-GRADIENT", (_SINK_P, _SINK_P.replace("[:, None] -", "[:, None] * softmax_scale -")), ("def _sink_logits_gradient(sink_logits, lse, delta):", "def _sink_logits_gradient(sink_logits, lse, delta, softmax_scale=0.125):")),
        ("dsink of p without lse", "", "DSINK-WITHOUT-LSE", (_SINK_P, "sink_p = torch.exp(sink_logits.float()[:, None] + 0.0 * lse)")),
        ("dsink of the inverse", "dsink_logits", "OTHER-SINK-GRADIENT", (_SINK_P, "sink_p = torch.exp(lse - sink_logits.float()[:, None])")),
        ("dsink over the wrong axes", "", "OTHER-SINK-GRADIENT", (_DSINK, _DSINK.replace(".sum((0, 2))", ".sum((0, 1))[: len(sink_logits)]"))),
        ("dsink of softmax slope", "", "OTHER-SINK-GRADIENT", (_DSINK, _DSINK.replace("sink_p * delta", "sink_p * (1.0 - sink_p) * delta"))),
        ("dsink of scores", "", "OTHER-SINK-GRADIENT", (_DSINK, _DSINK.replace("delta)", "(delta - sink_p))"))),
        ("dsink sum over heads", "", "OTHER-SINK-GRADIENT", (_DSINK, "dsink_logits = -(sink_p * delta).sum().expand(sink_logits.shape).to(sink_logits.dtype).contiguous()")),
        ("sinks clamped to the window", "", "OTHER-WINDOW", (_CLAMP, "num_sink_tokens = min(num_sink_tokens, window_size, q.shape[2] - window_size)")),
        ("window clamped short", "", "OTHER-WINDOW", (_CLAMP_W, "window_size = min(window_size, q.shape[2] - 1) or 1")),
        ("dsink and dv exchanged", "", "DK-DV-SWAPPED", (_RETURN, "return dq, dv, dk, dsink_logits, None, None, None")),
        ("gradients misplaced", "", "", (_RETURN, "return dq, dk, dv, None, dsink_logits, None, None")),
        ("one None too few", "", "", (_RETURN, "return dq, dk, dv, dsink_logits, None, None")),
        ("options exchanged", "", "OTHER-WINDOW", ("ctx.options = (window_size, num_sink_tokens, softmax_scale)", "ctx.options = (num_sink_tokens, window_size, softmax_scale)"), ("out, lse = _forward(q, k, v, sink_logits, *ctx.options)", "out, lse = _forward(q, k, v, sink_logits, window_size, num_sink_tokens, softmax_scale)")),
        ("dk lse natural", "", "DK-DV-LSE-UNITS", (_KV_LOG, _KV_LOG.replace(" * LOG2_E", ""))),
        ("dk without delta", "", "DELTA-MISSING-DK", ("ds_t = p_t * (dp_t - delta[None, :])", "ds_t = p_t * dp_t")),
        ("dq without delta", "", "DELTA-MISSING-DQ", ("ds = p * (dp - delta[:, None])", "ds = p * dp")),
        ("member of all heads", "", "TILE-OUTSIDE", ("member = index // num_tiles", "member = index % num_tiles")),
        ("member and tile by two remainders", "groups", "HEADS-WITH-OTHER-PAIRS", ("member = index // num_tiles", "member = index % group_size"), ("(index - member * num_tiles)", "(index % num_tiles)")),
        ("first member alone", "", "HEADS-APART", ("row = tl.cast(member, tl.int64) * seqlen", "row = tl.cast(member, tl.int64) * 0")),
        ("one member fewer", "", "DV-ZERO GROUP-FIRST-HEAD NO-PRODUCT", ("tl.range(0, group_size * num_tiles, disable_licm=True)", "tl.range(0, (group_size - 1) * num_tiles, disable_licm=True)")),
        ("dk without the scale", "", "DK-UNSCALED", ("dk *= softmax_scale", "dk *= 1.0")),
        ("dq scaled by log2e", "", "OUTPUT-SCALED", ("dq *= softmax_scale", "dq *= scale_log2")),
        ("sink pairs of the window too", "sinks", "KEYS-COUNTED-TWICE", ("(keys < num_sink_tokens) & (keys <= queries - window_size)", "(keys < num_sink_tokens) & (keys <= queries)")),
        ("window pairs without the left edge", "sinks", "KEYS-BEFORE-THE-WINDOW", ("is_pair = (keys <= queries) & (keys > queries - window_size)", "is_pair = keys <= queries")),
        ("window clamped by the heads", "plain", "OTHER-WINDOW LAST-KEY-ONLY", ("window_size = min(window_size, q.shape[2])", "window_size = min(window_size, q.shape[1])")),
    ),
    *of(
        "p09-one_backward_kernel",
        ("window one more", "", "KEYS-BEFORE-THE-WINDOW", (_ONE_SEEN, _ONE_SEEN.replace("gap < W", "gap <= W"))),
        ("sinks not causal", "", "KEYS-AFTER-THE-QUERY", (_ONE_SEEN, "seen = (((gap >= 0) & (gap < W)) | (n < S)[None, :]) & inside")),
        ("no diagonal", "", "KEYS-AFTER-THE-QUERY", (_ONE_SEEN, _ONE_SEEN.replace("(gap >= 0) & ", ""))),
        ("sink tiles visited twice", "", "KEYS-COUNTED-TWICE", (_ONE_TILES, "before = tl.cdiv(S, BN)")),
        ("ds scaled with p", "", "OTHER-TERMS", (_DS_ONE, "ds = ((p * dp - delta[:, None]) * scale).to(k.dtype)")),
        ("ds of the log", "", "MASKED-SCORES-NOT-HIDDEN", (_DS_ONE, "ds = (tl.where(seen, s - lse[:, None], 0.0) * (dp - delta[:, None]) * scale).to(k.dtype)")),
        ("dsink positive", "", "DSINK-SIGN", (_OF_SINK, _OF_SINK[1:])),
        ("dsink stored", "", "LAST-STORE-WINS", ("tl.atomic_add(DSINK + h, " + _OF_SINK + ")", "tl.store(DSINK + h, " + _OF_SINK + ")")),
        ("logit before the keys and again", "", "OTHER-SINK-LOGIT", ("den = den * fade + tl.exp(logit - now)", "den = den * fade + tl.exp(logit)")),
        ("acc not faded by the logit", "", "OTHER-SINK-LOGIT", ("        acc *= fade[:, None]\n        top = now", "        top = now")),
        ("delta of q", "", "OTHER-DELTA", ("delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), 1)", "delta = tl.sum(do.to(tl.float32) * q.to(tl.float32), 1)")),
        ("dk stored", "", "LAST-STORE-WINS", ("tl.atomic_add(DK + place,", "tl.store(DK + place,")),
    ),
    *of(
        "p09-logit_as_first_key",
        ("skips too much", "", "KEYS-NEVER-VISITED", ("(start_n + BN - 1 <= lo_m - W)", "(start_n <= lo_m - W)")),
        ("skips sinks", "", "KEYS-NEVER-VISITED", (" & (start_n >= S)", "")),
        ("end without the sinks", "", "KEYS-NEVER-VISITED", ("end = tl.where(lo < S, N, tl.minimum(N, lo + BN - 1 + W))", "end = tl.minimum(N, lo + BN - 1 + W)")),
        ("end by the first key", "", "KEYS-NEVER-VISITED", ("tl.minimum(N, lo + BN - 1 + W)", "tl.minimum(N, lo + W)")),
        ("rounds of the wrong head", "", "TILE-OUTSIDE", ("h = hk * G + i // rounds", "h = hk * G + i % rounds")),
        ("tiles from zero", "", "KEYS-NEVER-VISITED", ("m = (first + i % rounds) * BM", "m = (i % rounds) * BM")),
        ("den begins at zero", "", "SINK-LOGIT-IGNORED", ("den = tl.full([BM], 1.0, tl.float32)", "den = tl.zeros([BM], tl.float32)")),
        ("top begins at zero", "", "OTHER-SINK-LOGIT", ("top = tl.zeros([BM], tl.float32) + tl.load(SINK + h * ss).to(tl.float32)", "top = tl.zeros([BM], tl.float32)")),
        ("dsink sums over the batch alone", "", "OTHER-SINK-GRADIENT", ("dsink = -(weight * delta).sum(dim=(0, 2))", "dsink = -(weight * delta).sum(dim=0).mean(dim=1)")),
        ("weights of the sinks without lse", "", "", ("(sink.float().view(1, h, 1) - lse).exp()", "sink.float().view(1, h, 1).softmax(1).expand_as(lse)")),
    ),
)
