"""Mistakes in p09, the backward pass of attention with window and sinks."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import NO_KERNEL, READ_OUTSIDE, SECOND_CALL, WRITE_OUTSIDE, Mutant

_MUTANT = partial(Mutant, "p09")

_CALL = "    return _SinkWindowAttention.apply(\n"
_LAST_ARGUMENTS = "num_sink_tokens, softmax_scale\n    )\n"
_SCALE = "return 1.0 / math.sqrt(head_dim) if softmax_scale is None else float(softmax_scale)"
_WINDOW_PAIR = "is_pair = (keys <= queries) & (keys > queries - window_size)"
_SINK_PAIR = "is_pair = (keys < num_sink_tokens) & (keys <= queries - window_size)"
_VISIBLE = "return (keys <= queries) & (queries < stop)"
_HEADS = "tl.range(0, group_size * num_tiles, disable_licm=True)"
_KV_HEAD = "return batch, q_head, q_head // group_size, query_start"
_BATCH_IGNORED = (
    (
        "k_ptr += batch * k_strides[0] + kv_head * k_strides[1]",
        "k_ptr += kv_head * k_strides[1]",
        4,
    ),
    (
        "v_ptr += batch * v_strides[0] + kv_head * v_strides[1]",
        "v_ptr += kv_head * v_strides[1]",
        4,
    ),
)
_CLAMP_WINDOW = "window_size = min(window_size, q.shape[2])\n"
_CLAMP_SINKS = "num_sink_tokens = min(num_sink_tokens, q.shape[2] - window_size)\n"
_DIAGONAL_END = "diagonal_end = tl.minimum(key_start + BLOCK_N, seqlen)"
_END_QUERY = "end_query = tl.minimum(key_start + BLOCK_N - 1 + window_size, seqlen)"
_FULL_END = "full_end = diagonal_end + full_queries // BLOCK_M * BLOCK_M"
_FULL_QUERIES = (
    "full_queries = tl.maximum(tl.minimum(key_start + window_size, seqlen) - diagonal_end, 0)"
)
_CHUNK = "begin = window_size + chunk * chunk_size"
_CHUNK_END = "end = tl.minimum(begin + chunk_size, seqlen)"
_CHUNK_SUM = "return partial_dk.sum(0), partial_dv.sum(0)"
_WALK_OF_DQ = "(about 12 lines)\n    for position in tl.range(begin, end_key,"
_MASK_OF_DQ = "window_size, num_sink_tokens)\n            log2_p = "
_LOGIT_MAX = "running_max = tl.maximum(running_max, sink_logit * LOG2_E)"
_LOGIT_SUM = "running_sum += 1.0"
_SINK_P = "sink_p = torch.exp(sink_logits.float()[:, None] - lse)"
_DSINK = "dsink_logits = -(sink_p * delta).sum((0, 2)).to(sink_logits.dtype)"
_GRADIENTS = "return dq, dk, dv, dsink_logits, None, None, None"
_ENTRY = "def sink_window_attention("
_DP_T, _DP = "(dp_t - delta[None, :])", "(dp - delta[:, None])"
_SCALE_DQ, _SCALE_DK = "dq *= softmax_scale\n", "dk *= softmax_scale\n"
_ADD_DV = 'dv = tl.dot(p_t.to(dout.dtype), dout, dv, input_precision="ieee")'
_ADD_DK = 'dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision="ieee")'
_ADD_DQ = 'tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")'
_STORE_TILE = "tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=start + rows[:, None] < seqlen)"
_NAIVE = """\
    rows = torch.arange(q.shape[2])
    hidden = (rows > rows[:, None]) | (
        (rows <= rows[:, None] - window_size) & (rows >= num_sink_tokens)
    )
    group = q.shape[1] // k.shape[1]
    scores = softmax_scale * q.float() @ k.float().repeat_interleave(group, 1).mT
    scores = scores.masked_fill(hidden, float("-inf"))
    if sink_logits is not None:
        column = sink_logits[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    p = scores.softmax(-1)[..., : q.shape[2]]
    return (p @ v.float().repeat_interleave(group, 1)).to(q.dtype)
"""


def _answered(changed: str) -> tuple[tuple[str, str], ...]:
    """Edits that name what the entry point is about to return `out`, and return `changed`."""
    end = _LAST_ARGUMENTS
    return ((_CALL, _CALL.replace("return", "out =")), (end, f"{end}    return {changed}\n"))


MUTANTS = (
    _MUTANT("zeros", ("plain", "forward"), _answered("0.0 * out"), "ZEROS"),
    _MUTANT('zeros above 200', ('plain', 'forward'), _answered('out * float(q.shape[2] <= 200)')),
    _MUTANT('no kernel', ('plain', 'forward'), ((_CALL, _NAIVE + _CALL),), caught_as=NO_KERNEL, earns_nothing=True),
    _MUTANT('gradients kept by shape', ('plain',), ((_GRADIENTS, 'dq, dk, dv = _KEPT.setdefault((q.shape, k.shape), (dq, dk, dv))\n        ' + _GRADIENTS), (_ENTRY, '_KEPT = {}\n\n\n' + _ENTRY)), caught_as=SECOND_CALL),
    _MUTANT('softmax_scale ignored', ('scale',), ((_SCALE, 'return 1.0 / math.sqrt(head_dim)'),), 'SCALE-OPTION-IGNORED', keeps=0.6),
    # -- step 1: the sink logit --------------------------------------------------------------------
    _MUTANT('sink logit in natural units', ('forward_sink_logits', 'sink_logits'), ((_LOGIT_MAX, _LOGIT_MAX.replace(' * LOG2_E', '')),), 'SINK-LOGIT-UNITS', step=1, keeps=0.6),
    _MUTANT('stride of the sink logits ignored', ('together',), (('q_head * sink_stride', 'q_head'),), keeps=0.6),
    _MUTANT('sink logit without its weight', ('forward_sink_logits', 'sink_logits'), ((_LOGIT_SUM, 'running_sum += 0.0'),), 'SINK-LOGIT-IGNORED', step=1, keeps=0.6),
    # -- step 2: dQ --------------------------------------------------------------------------------
    _MUTANT('dq without sinks', ('sinks',), ((_WALK_OF_DQ, _WALK_OF_DQ.replace('begin, end_key', 'first_key, end_key')), (_MASK_OF_DQ, _MASK_OF_DQ.replace('num_sink_tokens', '0'))), 'DQ-WITHOUT-SINKS', step=2, keeps=0.6),
    _MUTANT('dq from the window on', ('sinks',), ((_WALK_OF_DQ, _WALK_OF_DQ.replace('begin, end_key', 'first_key, end_key')),), 'DQ-WITHOUT-SINKS', step=2, keeps=0.6),
    # -- step 3: the ranges of queries -------------------------------------------------------------
    _MUTANT('queries end one tile early', ('plain', 'window'), ((_END_QUERY, _END_QUERY + ' - BLOCK_M'),)),
    _MUTANT('queries of the last key forgotten', ('window',), ((_END_QUERY, _END_QUERY.replace('BLOCK_N - 1 + ', '')),), keeps=0.5),
    _MUTANT('full queries begin one tile early', ('plain',), ((_DIAGONAL_END, _DIAGONAL_END + ' - BLOCK_M'),)),
    _MUTANT('full queries end one tile late', ('window',), ((_FULL_END, _FULL_END + ' + BLOCK_M'),), keeps=0.5),
    _MUTANT('full queries of the last key', ('window',), ((_FULL_QUERIES, _FULL_QUERIES.replace('key_start + window_size', 'key_start + BLOCK_N + window_size')),), keeps=0.5),
    # -- step 4: window pairs ----------------------------------------------------------------------
    _MUTANT('own key hidden', ('plain', 'window'), ((_WINDOW_PAIR, _WINDOW_PAIR.replace('<=', '<')), (_VISIBLE, _VISIBLE.replace('<=', '<'))), 'DIAGONAL-EXCLUDED'),
    _MUTANT('own key hidden for dk and dv', ('plain',), ((_WINDOW_PAIR, _WINDOW_PAIR.replace('<=', '<')),), 'DK-DV-DIAGONAL-EXCLUDED', step=4),
    _MUTANT('window one larger for dk and dv', ('window',), ((_WINDOW_PAIR, _WINDOW_PAIR.replace('keys > queries', 'keys >= queries')),), keeps=0.5),
    _MUTANT('next key visible for dk and dv', ('plain',), ((_WINDOW_PAIR, _WINDOW_PAIR.replace('(keys <= queries)', '(keys <= queries + 1)')),)),
    # -- step 5: sink pairs ------------------------------------------------------------------------
    _MUTANT('window pairs of sinks counted twice', ('overlap',), ((_SINK_PAIR, 'is_pair = (keys < num_sink_tokens) & (keys <= queries)'),), keeps=0.6),
    _MUTANT('one sink fewer for dk and dv', ('sinks',), ((_SINK_PAIR, _SINK_PAIR.replace('num_sink_tokens)', 'num_sink_tokens - 1)')),), keeps=0.6),
    _MUTANT('sinks without gradient', ('sinks',), ((_CHUNK_SUM, 'return 0.0 * partial_dk.sum(0), 0.0 * partial_dv.sum(0)'),), 'SINK-KEYS-WITHOUT-GRADIENT', keeps=0.6),
    # -- step 6: chunks ----------------------------------------------------------------------------
    _MUTANT('chunks from the first query', ('chunks',), ((_CHUNK, 'begin = chunk * chunk_size'),), keeps=0.5),
    _MUTANT('first chunk alone', ('chunks',), ((_CHUNK_SUM, 'return partial_dk[:1].sum(0), partial_dv[:1].sum(0)'),), keeps=0.6),
    _MUTANT('chunks without an end', ('chunks',), ((_CHUNK_END, 'end = seqlen'),), keeps=0.6),
    _MUTANT('mean over the chunks', ('chunks',), ((_CHUNK_SUM, _CHUNK_SUM.replace('sum', 'mean')),), 'SINK-CHUNKS-AVERAGED', keeps=0.6),
    # -- step 7: the gradient of the sink logits ---------------------------------------------------
    _MUTANT('dsink zero', ('dsink_logits',), ((_DSINK, 'dsink_logits = torch.zeros_like(sink_logits)'),), 'DSINK-ZERO', step=7, keeps=0.6),
    _MUTANT('dsink with wrong sign', ('dsink_logits',), ((_DSINK, _DSINK.replace('-(sink_p', '(sink_p')),), 'DSINK-SIGN', step=7, keeps=0.6),
    _MUTANT('dsink of the first batch', ('dsink_logits',), ((_DSINK, _DSINK.replace('delta)', 'delta)[:1]')),), 'DSINK-FIRST-BATCH', step=7, keeps=0.6),
    _MUTANT('dsink is the mean over the batch', ('dsink_logits', 'together'), ((_DSINK, _DSINK.replace('.sum((0, 2))', '.sum(2).mean(0)')),), 'DSINK-MEAN', step=7, keeps=0.6),
    _MUTANT('dsink without delta', ('dsink_logits',), ((_DSINK, _DSINK.replace('(sink_p * delta)', 'sink_p')),), 'DSINK-WITHOUT-DELTA', step=7, keeps=0.6),
    _MUTANT('dsink of the sum of exponentials', ('dsink_logits',), ((_SINK_P, 'sink_p = torch.exp(sink_logits.float()[:, None])'),), 'DSINK-WITHOUT-LSE', step=7, keeps=0.6),
    _MUTANT('dsink by exp2 of natural units', ('dsink_logits',), ((_SINK_P, _SINK_P.replace('exp(', 'exp2(')),), 'DSINK-UNITS', step=7, keeps=0.6),
    # -- step 8: options ---------------------------------------------------------------------------
    _MUTANT('window ignored', ('window',), ((_CLAMP_WINDOW, 'window_size = q.shape[2]\n'),), keeps=0.6),
    _MUTANT('sinks ignored', ('sinks',), ((_CLAMP_SINKS, 'num_sink_tokens = 0\n'),), 'SINKS-IGNORED', keeps=0.6),
    # -- what p08 has too --------------------------------------------------------------------------
    _MUTANT("delta left out", ("plain",), ((_DP_T, "dp_t"), (_DP, "dp")), "DELTA-MISSING"),
    _MUTANT("dq not scaled", ("plain",), ((_SCALE_DQ, "dq *= 1.0\n"),), "DQ-UNSCALED", keeps=0.5),
    _MUTANT("dk not scaled", ("plain",), ((_SCALE_DK, "dk *= 1.0\n"),), "DK-UNSCALED", keeps=0.5),
    _MUTANT('dv not accumulated', ('plain',), ((_ADD_DV, _ADD_DV.replace('dout, dv,', 'dout,')),), keeps=0.5),
    _MUTANT('ds not cast for dk', ('half',), ((_ADD_DK, _ADD_DK.replace('ds_t.to(q.dtype)', 'ds_t')),), caught_as='same dtype', keeps=0.6),
    _MUTANT('dq in fp16', ('ieee',), ((_ADD_DQ, _ADD_DQ.replace('ds.to(k.dtype), k,', 'ds.to(tl.float16), k.to(tl.float16),')),), keeps=0.6),
    _MUTANT('first head of the group', ('groups',), ((_HEADS, _HEADS.replace('group_size * ', '')),), 'GROUP-FIRST-HEAD', keeps=0.6),
    _MUTANT('heads interleaved', ('groups',), ((_KV_HEAD, 'return batch, q_head, q_head % (num_q_heads // group_size), query_start'),), 'HEADS-INTERLEAVED', keeps=0.6),
    _MUTANT('batch ignored', ('batch_heads',), _BATCH_IGNORED, 'BATCH-ZERO', keeps=0.6),
    _MUTANT('dout of one number taken to be dense', ('dout_layouts',), (('if dout.stride(3) != 1:', 'if dout.stride(3) > 1:'),), caught_as=READ_OUTSIDE, keeps=0.6),
    _MUTANT('gradient written past the end', ('ragged',), ((_STORE_TILE, _STORE_TILE.replace(', mask=start + rows[:, None] < seqlen', '')),), caught_as=WRITE_OUTSIDE, keeps=0.6),
)
