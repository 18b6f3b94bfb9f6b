"""Mistakes in p08."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.wrong import of

_BRIDGE = "scores = (scale * q_tile @ k_tile.mT).masked_fill(hidden, float(\"-inf\"))"
_B_P = "p = torch.exp(scores - lse_tile[..., None])"
_B_DP = "dp = dout_tile @ v_tile.mT"
_B_DELTA = "delta = (dout_tile * out_tile).sum(-1, keepdim=True)"
_B_DS = "ds = p * (dp - delta)"
_B_DQ = "dq[..., start:, :] += scale * ds @ k_tile"
_B_DK = "dk[..., start:end, :] = scale * (ds.mT @ q_tile).sum(2, keepdim=True)"
_B_DV = "dv[..., start:end, :] = (p.mT @ dout_tile).sum(2, keepdim=True)"
_DELTA = "delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)"
_Q_SCORES = 'scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2'
_Q_MASK = 'scores = tl.where(keys[None, :] <= queries[:, None], scores, float("-inf"))\n        p = '
_Q_P = "p = tl.exp2(scores - lse[:, None] * LOG2_E)"
_Q_DP = 'dp = tl.dot(dout, tl.trans(v), input_precision="ieee")'
_Q_DS = "ds = p * (dp - delta[:, None])"
_Q_DQ = 'dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")'
_Q_SCALE = "dq *= softmax_scale"
_OF_DQ = "dq, q, dout, lse, delta, k_ptr, v_ptr, k_strides[2], v_strides[2], queries,\n        "
_FIRST_LOOP = _OF_DQ + "0, query_start, seqlen, scale_log2, HEAD_DIM, BLOCK_N, False,"
_SECOND_LOOP = _OF_DQ + "query_start, end_key, seqlen, scale_log2, HEAD_DIM, BLOCK_N, True,"
_KV_P = 'p_t = tl.exp2(tl.where(keys[:, None] <= queries[None, :], log2_p_t, float("-inf")))'
_KV_LOG = "log2_p_t = scores_t * scale_log2 - lse[None, :] * LOG2_E"
_KV_DV = 'dv = tl.dot(p_t.to(dout.dtype), dout, dv, input_precision="ieee")'
_KV_DP = 'dp_t = tl.dot(v, tl.trans(dout), input_precision="ieee")'
_KV_DS = "ds_t = p_t * (dp_t - delta[None, :])"
_KV_DK = 'dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision="ieee")'
_KV_SCALE = "dk *= softmax_scale"
_HEAD = "q_head = kv_head * group_size + member"
_BEGIN = "begin = key_start\n"
_RETURN = "return dq, dk, dv, None"
_SAVE = "ctx.save_for_backward(q, k, v, out, lse)"
_APART_DS = "ds = p * (dp - delta[:, None]) * scale"
_APART_LOOP = "range(lo // BM * BM, N, BM)"

WRONG = (
    *of(
        "p08",
        ("dq masked before scaled", "odd_scales", "MASKED-BEFORE-SCALED", (_Q_SCORES, _Q_SCORES.replace(" * scale_log2", "")), (_Q_P, _Q_P.replace("scores -", "scores * scale_log2 -"))),
        ("dk and dv masked before scaled", "", "MASKED-BEFORE-SCALED", (_KV_LOG, 'scores_t = tl.where(keys[:, None] <= queries[None, :], scores_t, float("-inf"))\n        ' + _KV_LOG), (_KV_P, "p_t = tl.exp2(log2_p_t)")),
        ("bridge masked before scaled", "", "", (_BRIDGE, "scores = scale * (q_tile @ k_tile.mT).masked_fill(hidden, float(\"-inf\"))")),
        ("bridge without delta", "", "DELTA-MISSING", (_B_DS, "ds = p * dp")),
        ("bridge delta of the tile", "", "OTHER-TERMS", (_B_DELTA, "delta = (p * dp).sum(-1, keepdim=True)")),
        ("bridge delta without sum", "", "OTHER-TERMS", (_B_DELTA, "delta = (dout_tile * out_tile).mean(-1, keepdim=True)")),
        ("bridge dq overwritten", "", "DQ-OVERWRITTEN", (_B_DQ, _B_DQ.replace("+=", "="))),
        ("bridge dq unscaled", "", "DQ-UNSCALED", (_B_DQ, _B_DQ.replace("scale * ", ""))),
        ("bridge dk unscaled", "", "DK-UNSCALED", (_B_DK, _B_DK.replace("scale * ", ""))),
        ("bridge scaled twice", "", "GRADIENT-SCALED", (_B_DS, "ds = scale * p * (dp - delta)")),
        ("bridge ds without p", "", "OTHER-TERMS", (_B_DS, "ds = dp - delta")),
        ("bridge no mask", "", "OTHER-PROBABILITIES", (_BRIDGE, "scores = scale * q_tile @ k_tile.mT")),
        ("bridge scores unscaled", "", "OTHER-PROBABILITIES", (_BRIDGE, _BRIDGE.replace("scale * ", ""))),
        ("bridge softmax of the tile", "", "SOFTMAX-OF-EACH-TILE", (_B_P, "p = torch.softmax(scores, -1).nan_to_num(0.0)")),
        ("bridge divides by lse", "", "OTHER-PROBABILITIES", (_B_P, "p = torch.exp(scores) / lse_tile[..., None]")),
        ("bridge without lse", "", "OTHER-PROBABILITIES", (_B_P, "p = torch.exp(scores)")),
        ("bridge dv of ds", "", "DV-OF-DS", (_B_DV, _B_DV.replace("p.mT", "ds.mT"))),
        ("bridge dk of p", "", "OTHER-TERMS", (_B_DK, _B_DK.replace("ds.mT", "p.mT"))),
        ("bridge dp of k", "", "OTHER-TERMS", (_B_DP, _B_DP.replace("v_tile", "k_tile"))),
        ("bridge dk of k", "", "OTHER-TERMS", (_B_DQ, _B_DQ.replace("k_tile", "v_tile"))),
        ("bridge first of the group", "", "GROUP-FIRST-HEAD", (_B_DK, _B_DK.replace(".sum(2, keepdim=True)", "[:, :, :1]")), (_B_DV, _B_DV.replace(".sum(2, keepdim=True)", "[:, :, :1]"))),
        ("bridge mean of the group", "", "GRADIENT-SCALED", (_B_DV, _B_DV.replace(".sum(2", ".mean(2"))),
        ("bridge own key hidden", "", "BACKWARD-DIAGONAL-EXCLUDED", ("hidden = positions[start:end] > positions", "hidden = positions[start:end] >= positions")),
        ("bridge delta added", "", "DELTA-ADDED", (_B_DS, "ds = p * (dp + delta)")),
        ("bridge dscores of lse", "", "OTHER-PROBABILITIES", (_B_P, "p = torch.exp(scores - lse_tile[..., None] * scale)")),
        ("delta of the first half", "", "OTHER-DELTA", (_DELTA, "delta = tl.sum(tl.where(tl.arange(0, HEAD_DIM)[None, :] < HEAD_DIM // 2, out.to(tl.float32) * dout.to(tl.float32), 0.0), 1)")),
        ("delta divided by head_dim", "", "DELTA-SCALED", (_DELTA, _DELTA + " / HEAD_DIM")),
        ("delta of out squared", "", "OTHER-DELTA", (_DELTA, "delta = tl.sum(out.to(tl.float32) * out.to(tl.float32), 1)")),
        ("delta scaled for dq", "", "DELTA-SCALED", (_Q_DS, "ds = p * (dp - delta[:, None] * scale_log2)")),
        ("ds scaled before and after", "", "OUTPUT-SCALED", (_Q_DS, _Q_DS + " * scale_log2")),
        ("ds without p for dq", "", "NO-WEIGHTS", (_Q_DS, "ds = dp - delta[:, None]")),
        ("p squared for dq", "", "OTHER-TERMS", (_Q_DS, "ds = p * p * (dp - delta[:, None])")),
        ("softmax derivative forgotten", "", "NO-WEIGHTS", (_Q_DS, "ds = dp"), (_KV_DS, "ds_t = dp_t")),
        ("p of scores unscaled for dq", "", "", (_Q_SCORES, _Q_SCORES.replace(" * scale_log2", " * LOG2_E"))),
        ("p without lse for dq", "", "OTHER-PROBABILITIES", (_Q_P, "p = tl.exp2(scores)")),
        ("lse added for dq", "", "OTHER-PROBABILITIES", (_Q_P, _Q_P.replace("scores - lse", "scores + lse"))),
        ("diagonal loop missing for dq", "", "KEYS-NEVER-VISITED NO-PRODUCT DQ-ZERO", (_SECOND_LOOP, _SECOND_LOOP.replace("query_start, end_key", "query_start, query_start"))),
        ("full loop missing for dq", "", "KEYS-NEVER-VISITED", (_FIRST_LOOP, _FIRST_LOOP.replace("0, query_start", "query_start, query_start"))),
        ("diagonal loop from the start for dq", "", "KEYS-COUNTED-TWICE", (_SECOND_LOOP, _SECOND_LOOP.replace("query_start, end_key", "0, end_key"))),
        ("full loop one tile short for dq", "", "KEYS-NEVER-VISITED", (_FIRST_LOOP, _FIRST_LOOP.replace("0, query_start", "0, query_start - BLOCK_N"))),
        ("full loop over the diagonal for dq", "", "KEYS-AFTER-THE-QUERY", (_FIRST_LOOP, _FIRST_LOOP.replace("0, query_start", "0, query_start + BLOCK_M")), (_SECOND_LOOP, _SECOND_LOOP.replace("query_start, end_key", "end_key, end_key"))),
        ("one more key masked for dq", "", "VISIBLE-KEYS-MASKED", (_Q_MASK, _Q_MASK.replace("<=", "<"))),
        ("dq inverted scale", "", "OUTPUT-SCALED", (_Q_SCALE, "dq /= softmax_scale")),
        ("dq of log2 scale", "", "OUTPUT-SCALED", (_Q_SCALE, "dq *= scale_log2")),
        ("dq negative", "", "OUTPUT-SCALED", (_Q_SCALE, "dq *= -softmax_scale")),
        ("dp of q for dq", "", "WRONG-OPERAND", (_Q_DP, _Q_DP.replace("dout", "q"))),
        ("dq of v", "", "WRONG-PRODUCT", (_Q_DQ, _Q_DQ.replace(", k, dq", ", v, dq"))),
        ("p without mask for dk and dv", "", "KEYS-AFTER-THE-QUERY", (_KV_P, "p_t = tl.exp2(log2_p_t)")),
        ("mask of dk and dv the other way", "", "MASK-TRANSPOSED", (_KV_P, _KV_P.replace("<=", ">="))),
        ("lse twice for dk and dv", "", "OTHER-PROBABILITIES", (_KV_LOG, _KV_LOG + " * 2")),
        ("lse not in log2 for dk and dv", "", "DK-DV-LSE-UNITS", (_KV_LOG, "log2_p_t = scores_t * scale_log2 - lse[None, :]")),
        ("dk without delta", "", "DELTA-MISSING-DK", (_KV_DS, "ds_t = p_t * dp_t")),
        ("dk with delta outside", "", "OTHER-TERMS", (_KV_DS, "ds_t = p_t * dp_t - delta[None, :]")),
        ("dk of p", "", "OTHER-TERMS", (_KV_DK, _KV_DK.replace("ds_t", "p_t"))),
        ("dk of dout", "", "WRONG-PRODUCT", (_KV_DK, "dk = tl.dot(ds_t.to(q.dtype), dout, dk, input_precision=\"ieee\")")),
        ("dv of scores", "dv", "NO-WEIGHTS", (_KV_DV, _KV_DV.replace("p_t.to", "scores_t.to"))),
        ("dv negative", "", "OUTPUT-SCALED", (_KV_DV, _KV_DV.replace("p_t.to", "(-p_t).to"))),
        ("dv of scaled p", "", "OUTPUT-SCALED", (_KV_DV, _KV_DV.replace("p_t.to", "(p_t * scale_log2).to"))),
        ("dv divided by the group", "", "GROUP-MEAN", (_KV_SCALE, _KV_SCALE + "\n    dv /= group_size\n    dk /= group_size")),
        ("dp of k", "", "WRONG-OPERAND", (_KV_DP, _KV_DP.replace("tl.dot(v,", "tl.dot(k,"))),
        ("begin one tile late", "", "KEYS-NEVER-VISITED", (_BEGIN, "begin = key_start + BLOCK_M\n")),
        ("begin at key 0 and no mask", "", "KEYS-AFTER-THE-QUERY", (_BEGIN, "begin = 0\n"), (_KV_P, "p_t = tl.exp2(log2_p_t)")),
        ("begin one key late", "", "KEYS-NEVER-VISITED", (_BEGIN, "begin = key_start + 1\n")),
        ("end with the keys", "", "KEYS-NEVER-VISITED", ("keys, begin, seqlen, seqlen, scale_log2", "keys, begin, key_start + BLOCK_N, seqlen, scale_log2")),
        ("last query tile left out", "", "KEYS-NEVER-VISITED", ("keys, begin, seqlen, seqlen, scale_log2", "keys, begin, seqlen - BLOCK_M, seqlen, scale_log2")),
        ("head of the group by num_kv_heads", "", "WRONG-KV-HEAD", (_HEAD, "q_head = member * num_kv_heads + kv_head")),
        ("head of the group without kv head", "", "WRONG-KV-HEAD", (_HEAD, "q_head = member")),
        ("dout of the first head", "", "HEADS-APART", ("head_dout_ptr = dout_ptr + q_head * dout_strides[1]", "head_dout_ptr = dout_ptr + kv_head * group_size * dout_strides[1]")),
        ("delta of the kv head", "", "HEADS-APART GROUP-DELTA-FIRST-HEAD", ("head_delta_ptr = delta_ptr + q_head * seqlen", "head_delta_ptr = delta_ptr + kv_head * seqlen")),
        ("dk begun anew for each head", "", "GROUP-SUM-MISSING-DK", ("    for member in range(group_size):\n", "    for member in range(group_size):\n        dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)\n")),
        ("last head left out", "", "DV-ZERO HEADS-LEFT-OUT NO-PRODUCT", ("range(group_size)", "range(group_size - 1)")),
        ("gradients returned k first", "plain", "DQ-DK-SWAPPED", (_RETURN, "return dk, dq, dv, None")),
        ("gradients returned in reverse", "", "DK-DV-SWAPPED", (_RETURN, "return dq, dv, dk, None")),
        ("one gradient too few", "", "", (_RETURN, "return dq, dk, dv")),
        ("dv of k returned", "", "WRONG-PRODUCT", (_RETURN, "return dq, dk, dk, None")),
        ("saved k for v", "", "WRONG-OPERAND", (_SAVE, "ctx.save_for_backward(q, k, k, out, lse)")),
        ("saved q for out", "plain", "OTHER-DELTA", (_SAVE, "ctx.save_for_backward(q, k, v, q, lse)")),
        ("dout of out", "", "DOUT-IGNORED", ("delta = _launch_delta(out, dout)", "dout = torch.ones_like(dout)\n        delta = _launch_delta(out, dout)")),
        ("delta of ones", "", "DELTA-WITHOUT-DOUT", ("delta = _launch_delta(out, dout)", "delta = _launch_delta(out, torch.ones_like(out))")),
        ("scale of the default", "", "BACKWARD-SCALE-OPTION-IGNORED", ("ctx.softmax_scale = softmax_scale", "ctx.softmax_scale = q.shape[3] ** -0.5")),
        ("scale of the square", "", "OTHER-PROBABILITIES GRADIENT-SCALED", ("ctx.softmax_scale = softmax_scale", "ctx.softmax_scale = softmax_scale ** 2")),
        ("dq added to itself", "dq", "ACCUMULATOR-ADDED-TWICE", (_Q_DQ, _Q_DQ.replace("dq =", "dq +="))),
        ("dq in fp16", "", "OPERANDS-ROUNDED", ("ds.to(k.dtype), k, dq", "ds.to(tl.float16), k.to(tl.float16), dq")),
        ("dk and dv exchanged at the launch", "", "DK-DV-SWAPPED", ("q, k, v, dout, lse, delta, dk, dv,", "q, k, v, dout, lse, delta, dv, dk,")),
        ("lse and delta exchanged at the launch", "", "", ("q, k, v, dout, lse, delta, dq,", "q, k, v, dout, delta, lse, dq,")),
        ("q and k exchanged at the launch", "dq", "Q-AND-K-EXCHANGED", ("q, k, v, dout, lse, delta, dq,", "k, q, v, dout, lse, delta, dq,")),
        ("scales exchanged at the launch", "", "OTHER-PROBABILITIES", ("num_kv_heads, q.shape[1] // num_kv_heads, seqlen,\n        softmax_scale, softmax_scale * LOG2_E.value", "num_kv_heads, q.shape[1] // num_kv_heads, seqlen,\n        softmax_scale * LOG2_E.value, softmax_scale")),
        ("bridge dq added to itself", "attention_gradients", "OTHER-PAIRS", (_B_DQ, _B_DQ + " + dq[..., start:, :]")),
        ("lse by the member alone", "groups", "HEADS-APART", ("head_lse_ptr = lse_ptr + q_head * seqlen", "head_lse_ptr = lse_ptr + member * seqlen")),
    ),
    *of(
        "p08-heads_apart",
        ("delta stored before the sum", "", "OTHER-DELTA", ("delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)", "delta = tl.sum(o.to(tl.float32) * q.to(tl.float32), 1)")),
        ("dq scaled twice", "", "OUTPUT-SCALED", ("dq.to(DQ.dtype.element_ty)", "(dq * scale).to(DQ.dtype.element_ty)")),
        ("dq without scale", "", "DQ-UNSCALED", (_APART_DS, "ds = p * (dp - delta[:, None])")),
        ("dk without scale", "", "DK-UNSCALED", ("dk * scale, mask=ok", "dk, mask=ok")),
        ("dv scaled as well", "", "OUTPUT-SCALED", ("dv, mask=ok", "dv * scale, mask=ok")),
        ("p not transposed", "", "WEIGHTS-NOT-TRANSPOSED", ("tl.trans(p).to(do.dtype)", "p.to(do.dtype)")),
        ("ds not transposed", "", "WEIGHTS-NOT-TRANSPOSED", ("tl.trans(ds).to(q.dtype)", "ds.to(q.dtype)")),
        ("queries from the next tile", "", "KEYS-NEVER-VISITED", (_APART_LOOP, "range(lo // BM * BM + BM, N, BM)")),
        ("queries from zero to the keys", "", "KEYS-NEVER-VISITED", (_APART_LOOP, "range(0, lo + BN, BM)")),
        ("queries of every other tile", "", "KEYS-NEVER-VISITED", (_APART_LOOP, "range(lo // BM * BM, N, 2 * BM)")),
        ("dq over all keys without mask", "", "KEYS-AFTER-THE-QUERY", ("p = tl.where(n[None, :] <= m[:, None], tl.exp2(s - lse[:, None]), 0.0)", "p = tl.exp2(s - lse[:, None])")),
        ("lse natural where base 2 is due", "", "BACKWARD-LSE-UNITS", (" * 1.4426950408889634\n    delta", "\n    delta"), (" * 1.4426950408889634\n        delta", "\n        delta")),
        ("sum over the kv heads", "", "GROUP-SUM-INTERLEAVED", (".unflatten(1, group).sum(2)", ".unflatten(1, group[::-1]).sum(1)")),
        ("mean over the group", "", "GROUP-MEAN", (".unflatten(1, group).sum(2)", ".unflatten(1, group).mean(2)")),
        ("first of the group", "", "GROUP-FIRST-HEAD", (".unflatten(1, group).sum(2)", ".unflatten(1, group)[:, :, 0].contiguous()")),
        ("garbage for dq", "", "", ("    dq = tl.zeros([BM, D], tl.float32)\n", "    dq = q.to(tl.float32)\n")),
    ),
    *of(
        "p08-kernel_per_gradient",
        ("total not divided", "", "OTHER-PROBABILITIES", ("tl.exp(s - largest[:, None]) / total[:, None]", "tl.exp(s - largest[:, None])")),
        ("maximum not subtracted", "", "OTHER-PROBABILITIES", ("tl.exp(s - largest[:, None]) / total[:, None]", "tl.exp(s) / total[:, None]")),
        ("slope without delta", "", "DELTA-MISSING", ('input_precision="ieee") - delta[:, None])', 'input_precision="ieee"))')),
        ("delta not of out", "", "OTHER-DELTA", ("tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)", "tl.sum(do.to(tl.float32), 1)")),
        ("stats of another head", "", "OTHER-PROBABILITIES", ("stats = STATS + 2 * (b * H + h) * N\n            p = _weights(q, k, start, lo, stats, N, scale, BM, BN)\n            dv", "stats = STATS + 2 * (b * H + hk * G) * N\n            p = _weights(q, k, start, lo, stats, N, scale, BM, BN)\n            dv")),
        ("one head fewer for dv", "", "DV-ZERO HEADS-LEFT-OUT", ("    dv = tl.zeros([BN, D], tl.float32)\n    for h in range(hk * G, hk * G + G):", "    dv = tl.zeros([BN, D], tl.float32)\n    for h in range(hk * G + 1, hk * G + G):")),
        ("all heads for dk", "", "WRONG-KV-HEAD", ("    dk = tl.zeros([BN, D], tl.float32)\n    for h in range(hk * G, hk * G + G):", "    dk = tl.zeros([BN, D], tl.float32)\n    for h in range(H):")),
        ("dk scaled twice", "", "OUTPUT-SCALED", ("_slope(p, o, do, v) * scale", "_slope(p, o, do, v) * scale * scale")),
        ("out of the kv head for dk", "", "HEADS-APART", ("OUT + (b * H + h) * N * D, start, D", "OUT + (b * H + hk) * N * D, start, D")),
    ),
    *of(
        "p08-one_kernel",
        ("dq stored, not added", "", "LAST-STORE-WINS", ("tl.atomic_add(dq_ptrs, dq, mask=rows[:, None] < seqlen, sem=\"relaxed\")", "tl.store(dq_ptrs, dq, mask=rows[:, None] < seqlen)")),
        ("dk stored, not added", "", "LAST-STORE-WINS", ("tl.atomic_add(dk_ptr + offs, dk, mask=keys[:, None] < seqlen, sem=\"relaxed\")", "tl.store(dk_ptr + offs, dk, mask=keys[:, None] < seqlen)")),
        ("gradients begin with garbage", "", "UNWRITTEN-READ", ("torch.zeros_like(x, dtype", "torch.empty_like(x, dtype")),
        ("gradients begin with the inputs", "", "", ("(torch.zeros_like(x, dtype=torch.float32).contiguous() for", "(x.to(torch.float32).clone(memory_format=torch.contiguous_format) for")),
    ),
    *of(
        "p08-padded_to_tiles",
        ("queries behind the diagonal left out", "dv", "KEYS-NEVER-VISITED", ("rows, tile * B + B, N, D, B, False", "rows, tile * B + 2 * B, N, D, B, False")),
        ("dq with log2e", "", "OUTPUT-SCALED", (" * 0.6931471805599453)", ")")),
    ),
)
