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
        ("bridge without delta", "", "", (_B_DS, "ds = p * dp")),
        ("bridge delta of the tile", "", "", (_B_DELTA, "delta = (p * dp).sum(-1, keepdim=True)")),
        ("bridge delta without sum", "", "", (_B_DELTA, "delta = (dout_tile * out_tile).mean(-1, keepdim=True)")),
        ("bridge dq overwritten", "", "", (_B_DQ, _B_DQ.replace("+=", "="))),
        ("bridge dq unscaled", "", "", (_B_DQ, _B_DQ.replace("scale * ", ""))),
        ("bridge dk unscaled", "", "", (_B_DK, _B_DK.replace("scale * ", ""))),
        ("bridge scaled twice", "", "", (_B_DS, "ds = scale * p * (dp - delta)")),
        ("bridge ds without p", "", "", (_B_DS, "ds = dp - delta")),
        ("bridge no mask", "", "", (_BRIDGE, "scores = scale * q_tile @ k_tile.mT")),
        ("bridge scores unscaled", "", "", (_BRIDGE, _BRIDGE.replace("scale * ", ""))),
        ("bridge softmax of the tile", "", "", (_B_P, "p = torch.softmax(scores, -1).nan_to_num(0.0)")),
        ("bridge without lse", "", "", (_B_P, "p = torch.exp(scores)")),
        ("bridge dv of ds", "", "", (_B_DV, _B_DV.replace("p.mT", "ds.mT"))),
        ("bridge dk of p", "", "", (_B_DK, _B_DK.replace("ds.mT", "p.mT"))),
        ("bridge dp of k", "", "", (_B_DP, _B_DP.replace("v_tile", "k_tile"))),
        ("bridge dk of k", "", "", (_B_DQ, _B_DQ.replace("k_tile", "v_tile"))),
        ("bridge first of the group", "", "", (_B_DK, _B_DK.replace(".sum(2, keepdim=True)", "[:, :, :1]")), (_B_DV, _B_DV.replace(".sum(2, keepdim=True)", "[:, :, :1]"))),
        ("bridge mean of the group", "", "", (_B_DV, _B_DV.replace(".sum(2", ".mean(2"))),
        ("bridge own key hidden", "", "", ("hidden = positions[start:end] > positions", "hidden = positions[start:end] >= positions")),
        ("bridge delta added", "", "", (_B_DS, "ds = p * (dp + delta)")),
        ("bridge dscores of lse", "", "", (_B_P, "p = torch.exp(scores - lse_tile[..., None] * scale)")),
        ("delta of the first half", "", "", (_DELTA, "delta = tl.sum(tl.where(tl.arange(0, HEAD_DIM)[None, :] < HEAD_DIM // 2, out.to(tl.float32) * dout.to(tl.float32), 0.0), 1)")),
        ("delta divided by head_dim", "", "", (_DELTA, _DELTA + " / HEAD_DIM")),
        ("delta of out squared", "", "", (_DELTA, "delta = tl.sum(out.to(tl.float32) * out.to(tl.float32), 1)")),
        ("delta scaled for dq", "", "", (_Q_DS, "ds = p * (dp - delta[:, None] * scale_log2)")),
        ("ds scaled before and after", "", "", (_Q_DS, _Q_DS + " * scale_log2")),
        ("ds without p for dq", "", "", (_Q_DS, "ds = dp - delta[:, None]")),
        ("p squared for dq", "", "", (_Q_DS, "ds = p * p * (dp - delta[:, None])")),
        ("softmax derivative forgotten", "", "", (_Q_DS, "ds = dp"), (_KV_DS, "ds_t = dp_t")),
        ("p of scores unscaled for dq", "", "", (_Q_SCORES, _Q_SCORES.replace(" * scale_log2", " * LOG2_E"))),
        ("p without lse for dq", "", "", (_Q_P, "p = tl.exp2(scores)")),
        ("lse added for dq", "", "", (_Q_P, _Q_P.replace("scores - lse", "scores + lse"))),
        ("lse along the keys for dq", "", "", (_Q_P, "p = tl.exp2(scores - tl.trans(lse[:, None] * LOG2_E + scores * 0.0))"),),
        ("diagonal loop missing for dq", "", "", (_SECOND_LOOP, _SECOND_LOOP.replace("query_start, end_key", "query_start, query_start"))),
        ("full loop missing for dq", "", "", (_FIRST_LOOP, _FIRST_LOOP.replace("0, query_start", "query_start, query_start"))),
        ("diagonal loop from the start for dq", "", "", (_SECOND_LOOP, _SECOND_LOOP.replace("query_start, end_key", "0, end_key"))),
        ("full loop one tile short for dq", "", "", (_FIRST_LOOP, _FIRST_LOOP.replace("0, query_start", "0, query_start - BLOCK_N"))),
        ("full loop over the diagonal for dq", "", "", (_FIRST_LOOP, _FIRST_LOOP.replace("0, query_start", "0, query_start + BLOCK_M")), (_SECOND_LOOP, _SECOND_LOOP.replace("query_start, end_key", "end_key, end_key"))),
        ("one more key masked for dq", "", "", (_Q_MASK, _Q_MASK.replace("<=", "<"))),
        ("dq inverted scale", "", "", (_Q_SCALE, "dq /= softmax_scale")),
        ("dq of log2 scale", "", "", (_Q_SCALE, "dq *= scale_log2")),
        ("dq negative", "", "", (_Q_SCALE, "dq *= -softmax_scale")),
        ("dp of q for dq", "", "", (_Q_DP, _Q_DP.replace("dout", "q"))),
        ("dq of v", "", "", (_Q_DQ, _Q_DQ.replace(", k, dq", ", v, dq"))),
        ("p without mask for dk and dv", "", "", (_KV_P, "p_t = tl.exp2(log2_p_t)")),
        ("mask of dk and dv the other way", "", "", (_KV_P, _KV_P.replace("<=", ">="))),
        ("lse twice for dk and dv", "", "", (_KV_LOG, _KV_LOG + " * 2")),
        ("lse not in log2 for dk and dv", "", "", (_KV_LOG, "log2_p_t = scores_t * scale_log2 - lse[None, :]")),
        ("dk without delta", "", "", (_KV_DS, "ds_t = p_t * dp_t")),
        ("dk with delta outside", "", "", (_KV_DS, "ds_t = p_t * dp_t - delta[None, :]")),
        ("dk of p", "", "", (_KV_DK, _KV_DK.replace("ds_t", "p_t"))),
        ("dk of dout", "", "", (_KV_DK, "dk = tl.dot(ds_t.to(q.dtype), dout, dk, input_precision=\"ieee\")")),
        ("dv negative", "", "", (_KV_DV, _KV_DV.replace("p_t.to", "(-p_t).to"))),
        ("dv of scaled p", "", "", (_KV_DV, _KV_DV.replace("p_t.to", "(p_t * scale_log2).to"))),
        ("dv divided by the group", "", "", (_KV_SCALE, _KV_SCALE + "\n    dv /= group_size\n    dk /= group_size")),
        ("dp of k", "", "", (_KV_DP, _KV_DP.replace("tl.dot(v,", "tl.dot(k,"))),
        ("begin one tile late", "", "", (_BEGIN, "begin = key_start + BLOCK_M\n")),
        ("begin at key 0 and no mask", "", "", (_BEGIN, "begin = 0\n"), (_KV_P, "p_t = tl.exp2(log2_p_t)")),
        ("begin one key late", "", "", (_BEGIN, "begin = key_start + 1\n")),
        ("end with the keys", "", "", ("keys, begin, seqlen, seqlen, scale_log2", "keys, begin, key_start + BLOCK_N, seqlen, scale_log2")),
        ("last query tile left out", "", "", ("keys, begin, seqlen, seqlen, scale_log2", "keys, begin, seqlen - BLOCK_M, seqlen, scale_log2")),
        ("head of the group by num_kv_heads", "", "", (_HEAD, "q_head = member * num_kv_heads + kv_head")),
        ("same head of the group", "", "", (_HEAD, "q_head = kv_head * group_size")),
        ("head of the group without kv head", "", "", (_HEAD, "q_head = member")),
        ("dout of the first head", "", "", ("head_dout_ptr = dout_ptr + q_head * dout_strides[1]", "head_dout_ptr = dout_ptr + kv_head * group_size * dout_strides[1]")),
        ("delta of the kv head", "", "", ("head_delta_ptr = delta_ptr + q_head * seqlen", "head_delta_ptr = delta_ptr + kv_head * seqlen")),
        ("dk begun anew for each head", "", "", ("    for member in range(group_size):\n", "    for member in range(group_size):\n        dk = tl.zeros((BLOCK_N, HEAD_DIM), tl.float32)\n")),
        ("last head left out", "", "", ("range(group_size)", "range(group_size - 1)")),
        ("gradients returned k first", "", "", (_RETURN, "return dk, dq, dv, None")),
        ("gradients returned in reverse", "", "", (_RETURN, "return dq, dv, dk, None")),
        ("one gradient too few", "", "", (_RETURN, "return dq, dk, dv")),
        ("dv of k returned", "", "", (_RETURN, "return dq, dk, dk, None")),
        ("saved k for v", "", "", (_SAVE, "ctx.save_for_backward(q, k, k, out, lse)")),
        ("saved q for out", "", "", (_SAVE, "ctx.save_for_backward(q, k, v, q, lse)")),
        ("dout of out", "", "", ("delta = _launch_delta(out, dout)", "dout = torch.ones_like(dout)\n        delta = _launch_delta(out, dout)")),
        ("delta of ones", "", "", ("delta = _launch_delta(out, dout)", "delta = _launch_delta(out, torch.ones_like(out))")),
        ("scale of the default", "", "", ("ctx.softmax_scale = softmax_scale", "ctx.softmax_scale = q.shape[3] ** -0.5")),
        ("scale of the square", "", "", ("ctx.softmax_scale = softmax_scale", "ctx.softmax_scale = softmax_scale ** 2")),
        ("dout not made dense", "", "", ("if dout.stride(3) != 1:", "if dout.stride(3) > 1:")),
        ("dq in fp16", "", "", ("ds.to(k.dtype), k, dq", "ds.to(tl.float16), k.to(tl.float16), dq")),
        ("dk and dv exchanged at the launch", "", "", ("q, k, v, dout, lse, delta, dk, dv,", "q, k, v, dout, lse, delta, dv, dk,")),
        ("lse and delta exchanged at the launch", "", "", ("q, k, v, dout, lse, delta, dq,", "q, k, v, dout, delta, lse, dq,")),
        ("q and k exchanged at the launch", "", "", ("q, k, v, dout, lse, delta, dq,", "k, q, v, dout, lse, delta, dq,")),
        ("scales exchanged at the launch", "", "", ("num_kv_heads, q.shape[1] // num_kv_heads, seqlen,\n        softmax_scale, softmax_scale * LOG2_E.value", "num_kv_heads, q.shape[1] // num_kv_heads, seqlen,\n        softmax_scale * LOG2_E.value, softmax_scale")),
    ),
    *of(
        "p08-heads_apart",
        ("delta stored before the sum", "", "", ("delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)", "delta = tl.sum(o.to(tl.float32) * q.to(tl.float32), 1)")),
        ("dq scaled twice", "", "", ("dq.to(DQ.dtype.element_ty)", "(dq * scale).to(DQ.dtype.element_ty)")),
        ("dq without scale", "", "", (_APART_DS, "ds = p * (dp - delta[:, None])")),
        ("dk without scale", "", "", ("dk * scale, mask=ok", "dk, mask=ok")),
        ("dv scaled as well", "", "", ("dv, mask=ok", "dv * scale, mask=ok")),
        ("p not transposed", "", "", ("tl.trans(p).to(do.dtype)", "p.to(do.dtype)")),
        ("ds not transposed", "", "", ("tl.trans(ds).to(q.dtype)", "ds.to(q.dtype)")),
        ("queries from the next tile", "", "", (_APART_LOOP, "range(lo // BM * BM + BM, N, BM)")),
        ("queries from zero to the keys", "", "", (_APART_LOOP, "range(0, lo + BN, BM)")),
        ("queries of every other tile", "", "", (_APART_LOOP, "range(lo // BM * BM, N, 2 * BM)")),
        ("dq over all keys without mask", "", "", ("p = tl.where(n[None, :] <= m[:, None], tl.exp2(s - lse[:, None]), 0.0)", "p = tl.exp2(s - lse[:, None])")),
        ("lse natural where base 2 is due", "", "", ("tl.store(L + row, top + tl.log2(den), mask=m < N)", "tl.store(L + row, (top + tl.log2(den)) * 0.6931471805599453, mask=m < N)")),
        ("sum over the kv heads", "", "", (".unflatten(1, group).sum(2)", ".unflatten(1, group[::-1]).sum(1)")),
        ("mean over the group", "", "", (".unflatten(1, group).sum(2)", ".unflatten(1, group).mean(2)")),
        ("first of the group", "", "", (".unflatten(1, group).sum(2)", ".unflatten(1, group)[:, :, 0].contiguous()")),
        ("past rows with lse 0", "", "", ("m < N, other=float(\"inf\")", "m < N, other=0.0")),
        ("garbage for dq", "", "", ("    dq = tl.zeros([BM, D], tl.float32)\n", "    dq = q.to(tl.float32)\n")),
    ),
    *of(
        "p08-kernel_per_gradient",
        ("total not divided", "", "", ("tl.exp(s - largest[:, None]) / total[:, None]", "tl.exp(s - largest[:, None])")),
        ("maximum not subtracted", "", "", ("tl.exp(s - largest[:, None]) / total[:, None]", "tl.exp(s) / total[:, None]")),
        ("slope without delta", "", "", ('input_precision="ieee") - delta[:, None])', 'input_precision="ieee"))')),
        ("delta not of out", "", "", ("tl.sum(o.to(tl.float32) * do.to(tl.float32), 1)", "tl.sum(do.to(tl.float32), 1)")),
        ("stats of another head", "", "", ("stats = STATS + 2 * (b * H + h) * N\n            p = _weights(q, k, start, lo, stats, N, scale, BM, BN)\n            dv", "stats = STATS + 2 * (b * H + hk * G) * N\n            p = _weights(q, k, start, lo, stats, N, scale, BM, BN)\n            dv")),
        ("one head fewer for dv", "", "", ("    dv = tl.zeros([BN, D], tl.float32)\n    for h in range(hk * G, hk * G + G):", "    dv = tl.zeros([BN, D], tl.float32)\n    for h in range(hk * G + 1, hk * G + G):")),
        ("all heads for dk", "", "", ("    dk = tl.zeros([BN, D], tl.float32)\n    for h in range(hk * G, hk * G + G):", "    dk = tl.zeros([BN, D], tl.float32)\n    for h in range(H):")),
        ("dk scaled twice", "", "", ("_slope(p, o, do, v) * scale", "_slope(p, o, do, v) * scale * scale")),
        ("out of the kv head for dk", "", "", ("OUT + (b * H + h) * N * D, start, D", "OUT + (b * H + hk) * N * D, start, D")),
    ),
    *of(
        "p08-one_kernel",
        ("dq stored, not added", "", "", ("tl.atomic_add(dq_ptrs, dq, mask=rows[:, None] < seqlen, sem=\"relaxed\")", "tl.store(dq_ptrs, dq, mask=rows[:, None] < seqlen)")),
        ("dk stored, not added", "", "", ("tl.atomic_add(dk_ptr + offs, dk, mask=keys[:, None] < seqlen, sem=\"relaxed\")", "tl.store(dk_ptr + offs, dk, mask=keys[:, None] < seqlen)")),
        ("rows past the end taken", "", "", ("(keys[None, :] <= rows[:, None]) & (rows[:, None] < seqlen)", "keys[None, :] <= rows[:, None]")),
        ("gradients begin with garbage", "", "", ("torch.zeros_like(x, dtype", "torch.empty_like(x, dtype")),
        ("gradients begin with the inputs", "", "", ("(torch.zeros_like(x, dtype=torch.float32).contiguous() for", "(x.to(torch.float32).clone(memory_format=torch.contiguous_format) for")),
    ),
)
