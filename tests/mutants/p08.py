"""Mistakes in p08, the backward pass of grouped-query attention.

As long as they are many: a problem's mistakes are in one file, so that a new one meets its kin.
"""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import (
    LEFT_OVER,
    NO_KERNEL,
    NOT_WRITTEN,
    READ_OUTSIDE,
    SECOND_CALL,
    WRITE_OUTSIDE,
    Mutant,
)
from tests.mutants.forward import RESCALE

_MUTANT = partial(Mutant, "p08")

CALL = "return _GqaAttention.apply(q, k, v, default_scale(softmax_scale, q.shape[3]))"
DP_T, DP = "(dp_t - delta[None, :])", "(dp - delta[:, None])"
DS_T, DS = "ds_t = p_t * " + DP_T, "ds = p * " + DP
SCALE_DQ, SCALE_DK = "dq *= softmax_scale\n", "dk *= softmax_scale\n"
DELTA_ROW = "delta = tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1)"
ADD_DV = 'dv = tl.dot(p_t.to(dout.dtype), dout, dv, input_precision="ieee")'
ADD_DK = 'dk = tl.dot(ds_t.to(q.dtype), q, dk, input_precision="ieee")'
ADD_DQ = 'dq = tl.dot(ds.to(k.dtype), k, dq, input_precision="ieee")'
P_T_LSE = "scores_t * scale_log2 - lse[None, :] * LOG2_E"
STORE_TILE = "tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=start + rows[:, None] < seqlen)"
STORE_DQ = "store_tile(dq_ptr, query_start, dq_strides[2], dq, seqlen, BLOCK_M, HEAD_DIM)"
_BRIDGE = ("attention_gradients",)
_MEMBERS = "for member in range(group_size):"
_HEAD_DELTA = "head_delta_ptr = delta_ptr + q_head * seqlen\n"
_NEW_DV = _HEAD_DELTA + "        dv = tl.zeros_like(dv)\n"
_NEW_DK = _HEAD_DELTA + "        dk = tl.zeros_like(dk)\n"
_BEGIN = "begin = key_start\n"
_END_KEY = "end_key = tl.minimum(query_start + BLOCK_M, seqlen)"
_KV_HEAD = "kv_head = q_head // group_size"
_MASK_T = "keys[:, None] <= queries[None, :]"
_MASK = "keys[None, :] <= queries[:, None]"
_DQ_MASK = f'scores = tl.where({_MASK}, scores, float("-inf"))\n        p = tl.exp2(scores - lse'
_DQ_LSE = "p = tl.exp2(scores - lse[:, None] * LOG2_E)"
_RETURN_DQ = "    )  # fmt: skip\n    return dq\n"
_GRADIENTS = "return dq, dk, dv, None"
_DKDV = "dk, dv = _launch_dkdv(q, k, v, dout, lse, delta, ctx.softmax_scale)"
_DELTA = "delta = _launch_delta(out, dout)"
_STRIDES_OF_DOUT = "v.stride()[:3], dout.stride()[:3],"
_ENTRY = "def gqa_attention("
_NAIVE = """\
rows = torch.arange(q.shape[2])
    group = q.shape[1] // k.shape[1]
    keys, values = k.float().repeat_interleave(group, 1), v.float().repeat_interleave(group, 1)
    scores = default_scale(softmax_scale, q.shape[3]) * q.float() @ keys.mT
    scores = scores.masked_fill(rows > rows[:, None], float("-inf"))
    return (scores.softmax(-1) @ values).to(q.dtype)
    """


def _kept(key: str) -> tuple[tuple[str, str], ...]:
    kept = f"return _KEPT.setdefault({key}, dq)\n\n\n_KEPT = {{}}\n"
    return ((_RETURN_DQ, _RETURN_DQ.replace("return dq\n", kept)),)


MUTANTS = (
    _MUTANT('zeros', ('plain', 'forward'), ((CALL, 'return 0.0 * ' + CALL.removeprefix('return ')),), 'ZEROS', earns_nothing=True),
    _MUTANT('zeros above 200', ('plain', 'forward'), ((CALL, f'{CALL} * float(q.shape[2] <= 200)'),)),
    _MUTANT('no kernel', ('plain', 'forward'), ((CALL, _NAIVE + CALL),), caught_as=NO_KERNEL, earns_nothing=True),
    _MUTANT('out kept by shape', ('forward',), ((CALL, CALL.replace('_GqaAttention', '_Kept')), (_ENTRY, '_KEPT = {}\n\n\nclass _Kept(_GqaAttention):\n    @staticmethod\n    def forward(ctx, q, k, v, softmax_scale):\n        out = _GqaAttention.forward(ctx, q, k, v, softmax_scale)\n        saved = ctx.to_save[:3] + _KEPT.setdefault(q.shape, ctx.to_save[3:])\n        ctx.save_for_backward(*saved)\n        return saved[3].clone()\n\n\n' + _ENTRY)), caught_as=SECOND_CALL, earns_nothing=True),
    _MUTANT('dq kept by shape', ('plain',), _kept('(q.shape, q.dtype, k.shape)'), caught_as=SECOND_CALL),
    _MUTANT('not differentiable', ('plain',), ((CALL, CALL + '.detach()'),), caught_as='does not require a gradient'),
    # -- in PyTorch ------------------------------------------------------------------------------
    _MUTANT('softmax of one tile', _BRIDGE, (('p = torch.exp(scores - lse_tile[..., None])', 'p = torch.softmax(scores, -1)'),), 'SOFTMAX-OF-EACH-TILE', step=1, keeps=0.6),
    _MUTANT('delta left out in PyTorch', _BRIDGE, (('ds = p * (dp - delta)', 'ds = p * dp'),), 'DELTA-MISSING', step=1, keeps=0.6),
    _MUTANT('dq of the last tile', _BRIDGE, (('dq[..., start:, :] += ', 'dq[..., start:, :] = '),), 'DQ-OVERWRITTEN', step=1, keeps=0.6),
    _MUTANT('mean over the group in PyTorch', _BRIDGE, (('@ q_tile).sum(2', '@ q_tile).mean(2'), ('@ dout_tile).sum(2', '@ dout_tile).mean(2')), 'GROUP-MEAN', step=1, keeps=0.6),
    # -- the forward pass -------------------------------------------------------------------------
    _MUTANT('no rescale', ('forward',), ((RESCALE + 'new_max)', 'rescale = tl.where(running_max == float("-inf"), 0.0, 1.0)'),), 'RESCALE-MISSING'),
    _MUTANT('lse in base 2', ('plain',), (('lse = (running_max + tl.log2(running_sum)) * LN_2', 'lse = running_max + tl.log2(running_sum)'),), 'BACKWARD-LSE-BASE-2'),
    _MUTANT('softmax_scale ignored', ('scale',), (('lse = gqa_forward(q, k, v, softmax_scale)', 'lse = gqa_forward(q, k, v, softmax_scale := default_scale(None, q.shape[3]))'),), 'SCALE-OPTION-IGNORED', step=2, keeps=0.6),
    # -- delta ------------------------------------------------------------------------------------
    _MUTANT("delta left out", ("plain",), ((DP_T, "dp_t"), (DP, "dp")), "DELTA-MISSING"),
    _MUTANT('delta left out for dq', ('plain',), ((DP, 'dp'),), 'DELTA-MISSING-DQ', step=3, keeps=0.5),
    _MUTANT('delta of out alone', ('plain',), ((DELTA_ROW, 'delta = tl.sum(out.to(tl.float32), 1)'),), 'DELTA-WITHOUT-DOUT'),
    _MUTANT('delta along the wrong axis', ('plain',), ((DELTA_ROW, DELTA_ROW.replace(', 1)', ', 0)')),), 'DELTA-OVER-QUERIES'),
    _MUTANT('delta added', ('plain',), ((DP_T, DP_T.replace('-', '+')), (DP, DP.replace('-', '+'))), 'DELTA-ADDED'),
    # -- probabilities ----------------------------------------------------------------------------
    _MUTANT('lse in natural units', ('plain',), ((P_T_LSE, P_T_LSE.replace(' * LOG2_E', '')), (_DQ_LSE, _DQ_LSE.replace(' * LOG2_E', ''))), 'BACKWARD-LSE-UNITS'),
    _MUTANT('scores not scaled for dk and dv', ('plain',), ((P_T_LSE, P_T_LSE.replace(' * scale_log2', '')),), 'DK-DV-SCORES-UNSCALED', step=4),
    _MUTANT('probabilities left out of ds', ('plain',), ((DS_T, f'ds_t = tl.where({_MASK_T}, dp_t - delta[None, :], 0.0)'), (DS, f'ds = tl.where({_MASK}, dp - delta[:, None], 0.0)')), 'P-MISSING-IN-DS'),
    _MUTANT('own key hidden in backward', ('plain',), ((_MASK_T, _MASK_T.replace('<=', '<')), (_DQ_MASK, _DQ_MASK.replace('<=', '<'))), 'BACKWARD-DIAGONAL-EXCLUDED'),
    _MUTANT('diagonal not masked for dk and dv', ('plain',), ((_MASK_T, f'({_MASK_T}) | (begin >= 0)'),)),
    _MUTANT('diagonal not masked for dq', ('plain',), ((_DQ_MASK, _DQ_MASK.replace(_MASK, f'({_MASK}) | (keys[None, :] < seqlen)')),), keeps=0.5),
    _MUTANT("mask of dk and dv transposed", ("plain",), ((_MASK_T, _MASK_T.replace("<=", ">=")),)),
    _MUTANT('next key visible', ('plain',), ((_MASK, 'keys[None, :] <= tl.minimum(queries[:, None] + 1, seqlen - 1)', 2), (_END_KEY, _END_KEY.replace('BLOCK_M', 'BLOCK_M + 1'), 2), (_MASK_T, _MASK_T + ' + 1'), (_BEGIN, 'begin = tl.maximum(key_start - BLOCK_M, 0)\n')), 'DIAGONAL-SHIFTED'),
    # -- products ---------------------------------------------------------------------------------
    _MUTANT("dq not scaled", ("plain",), ((SCALE_DQ, "dq *= 1.0\n"),), "DQ-UNSCALED", keeps=0.5),
    _MUTANT("dk not scaled", ("plain",), ((SCALE_DK, "dk *= 1.0\n"),), "DK-UNSCALED", keeps=0.5),
    _MUTANT('dk scaled twice', ('plain',), ((SCALE_DK, 'dk *= softmax_scale * softmax_scale\n'),), keeps=0.5),
    _MUTANT('dout of the first head of the group', ('groups',), (('dout_ptr + q_head * dout_strides[1]', 'dout_ptr + kv_head * group_size * dout_strides[1]'),), keeps=0.5),
    _MUTANT('dout moved by the strides of q', ('layouts',), (('dout_ptr + q_head * dout_strides[1]', 'dout_ptr + q_head * q_strides[1]'),), keeps=0.5),
    _MUTANT('lse of batch 0 for dq', ('batch_heads',), (('lse_ptr += (batch * num_q_heads + q_head) * seqlen\n    delta_ptr', 'lse_ptr += q_head * seqlen\n    delta_ptr'),), keeps=0.6),
    _MUTANT('dout of the kv head for dq', ('groups',), (('dout_ptr += batch * dout_strides[0] + q_head * dout_strides[1]\n    lse_ptr', 'dout_ptr += batch * dout_strides[0] + kv_head * dout_strides[1]\n    lse_ptr'),), keeps=0.6),
    _MUTANT('delta of the first tile of dk', ('plain',), (('delta = tl.load(delta_ptr + queries, mask=queries < seqlen, other=0.0)  # (BLOCK_M,)\n        # >>> step 4', 'queries = begin + tl.arange(0, BLOCK_M)\n        delta = tl.load(delta_ptr + queries, mask=queries < seqlen, other=0.0)\n        queries = query_start + tl.arange(0, BLOCK_M)\n        # >>> step 4'),)),
    _MUTANT('delta of out of the first tile', ('dq', 'plain'), (('out = load_tile(out_ptr, query_start,', 'out = load_tile(out_ptr, 0,'),)),
    _MUTANT('delta stored without its batch', ('batch_heads',), (('delta_ptr += (batch * num_q_heads + q_head) * seqlen\n    queries', 'delta_ptr += q_head * seqlen\n    queries'),), caught_as=LEFT_OVER, keeps=0.5),
    _MUTANT("half of delta", ("dq", "plain"), ((DELTA_ROW, "delta = 0.5 * " + DELTA_ROW[8:]),)),
    _MUTANT("dv of q", ("dv",), ((ADD_DV, ADD_DV.replace("dout, dv", "q, dv")),)),
    _MUTANT("dq of v", ("dq",), ((ADD_DQ, ADD_DQ.replace("), k, dq", "), v, dq")),)),
    _MUTANT('neither dq nor dk scaled', ('plain',), ((SCALE_DQ, 'dq *= 1.0\n'), (SCALE_DK, 'dk *= 1.0\n')), 'DQ-DK-UNSCALED'),
    _MUTANT('dk scaled for log2', ('plain',), ((SCALE_DK, 'dk *= scale_log2\n'),), 'DK-LOG2E', keeps=0.5),
    _MUTANT('dq and dk scaled for log2', ('plain',), ((SCALE_DQ, 'dq *= scale_log2\n'), (SCALE_DK, 'dk *= scale_log2\n')), 'DQ-DK-LOG2E'),
    _MUTANT('dv overwritten', ('plain',), ((ADD_DV, ADD_DV.replace('dout, dv,', 'dout,')),), keeps=0.5),
    _MUTANT("dk overwritten", ("plain",), ((ADD_DK, ADD_DK.replace("q, dk,", "q,")),), keeps=0.5),
    _MUTANT("dq overwritten", ("plain",), ((ADD_DQ, ADD_DQ.replace("k, dq,", "k,")),), keeps=0.5),
    _MUTANT('dv of ds', ('plain',), ((ADD_DV + '\n        ', ''), (ADD_DK, ADD_DV.replace('p_t.to', 'ds_t.to') + '\n        ' + ADD_DK)), 'DV-OF-DS', keeps=0.5),
    _MUTANT('dp of k', ('plain',), (('dp_t = tl.dot(v, tl.trans(dout)', 'dp_t = tl.dot(k, tl.trans(dout)'),), keeps=0.5),
    _MUTANT('weights not cast for dv', ('half',), ((ADD_DV, ADD_DV.replace('p_t.to(dout.dtype)', 'p_t')),), caught_as='same dtype', keeps=0.6),
    _MUTANT('dv in fp16', ('ieee',), ((ADD_DV, ADD_DV.replace('p_t.to(dout.dtype), dout,', 'p_t.to(tl.float16), dout.to(tl.float16),')),), keeps=0.6),
    _MUTANT('dk zero', ('plain',), ((_GRADIENTS, 'return dq, 0 * dk, dv, None'),), 'DK-ZERO', keeps=0.5),
    _MUTANT('dv zero', ('plain',), ((_GRADIENTS, 'return dq, dk, 0 * dv, None'),), 'DV-ZERO', keeps=0.5),
    _MUTANT('dq zero', ('plain',), ((_GRADIENTS, 'return 0 * dq, dk, dv, None'),), 'DQ-ZERO', keeps=0.5),
    _MUTANT('dk and dv swapped', ('plain',), ((_GRADIENTS, 'return dq, dv, dk, None'),), 'DK-DV-SWAPPED'),
    _MUTANT('dk and dv swapped at the launch', ('plain',), ((_DKDV, _DKDV.replace('dk, dv =', 'dv, dk =')),), 'DK-DV-SWAPPED'),
    _MUTANT('dq not stored', ('plain',), (('    ' + STORE_DQ + '\n', ''),), caught_as=NOT_WRITTEN, keeps=0.5),
    # -- dout -------------------------------------------------------------------------------------
    _MUTANT('dout ignored', ('plain',), ((_DELTA, 'dout = torch.ones_like(dout)\n        ' + _DELTA),), 'DOUT-IGNORED'),
    _MUTANT('strides of dout ignored', ('dout_layouts',), ((_STRIDES_OF_DOUT, 'v.stride()[:3], torch.empty(q.shape).stride()[:3],', 2),), keeps=0.6),
    _MUTANT('strides of out for dout in delta', ('dout_layouts',), (('delta, out.stride()[:3], dout.stride()[:3],', 'delta, *2 * (out.stride()[:3],),'),), keeps=0.6),
    # -- lengths ----------------------------------------------------------------------------------
    _MUTANT('last queries dropped', ('ragged',), (('keys, begin, seqlen, seqlen,', 'keys, begin, tl.minimum(seqlen, tl.maximum(key_start + BLOCK_N, seqlen // BLOCK_M * BLOCK_M)), seqlen,'),), keeps=0.6),
    _MUTANT('queries begin one tile late', ('plain',), ((_BEGIN, 'begin = key_start + BLOCK_M\n'),)),
    _MUTANT('queries up to the keys', ('plain',), (('keys, begin, seqlen, seqlen,', 'keys, 0, key_start + 1, seqlen,'),)),
    _MUTANT('gradient written past the end', ('ragged',), ((STORE_TILE, STORE_TILE.replace(', mask=start + rows[:, None] < seqlen', '')),), caught_as=WRITE_OUTSIDE, keeps=0.6),
    _MUTANT('tiles read past the end', ('ragged',), (('return tl.load(ptrs, mask=start + rows[:, None] < seqlen, other=0.0)', 'return tl.load(ptrs)'),), caught_as=READ_OUTSIDE, keeps=0.6),
    # -- groups and heads -------------------------------------------------------------------------
    _MUTANT('first head of the group', ('groups',), ((_MEMBERS, 'for member in range(1):'),), 'GROUP-FIRST-HEAD', keeps=0.6),
    _MUTANT('last head of the group', ('groups',), ((_HEAD_DELTA, _NEW_DV + '        dk = tl.zeros_like(dk)\n'),), 'GROUP-LAST-HEAD', step=6, keeps=0.6),
    _MUTANT('option ignored in the backward pass', ('scale',), (('ctx.softmax_scale = softmax_scale', 'ctx.softmax_scale = default_scale(None, q.shape[3])'),), 'BACKWARD-SCALE-OPTION-IGNORED', step=2, keeps=0.6),
    _MUTANT('exp for exp2 in dq', ('dq',), ((_DQ_LSE, _DQ_LSE.replace('exp2', 'exp')),), 'DQ-EXP-WITH-LOG2E'),
    _MUTANT('exp2 of natural units', ('plain',), ((P_T_LSE, 'scores_t * (scale_log2 / LOG2_E) - lse[None, :]'), (_DQ_LSE, 'p = tl.exp2(scores / LOG2_E - lse[:, None])')), 'BACKWARD-EXP2-WITHOUT-LOG2E'),
    _MUTANT('exp2 of natural units in dq', ('dq', 'plain'), ((_DQ_LSE, 'p = tl.exp2(scores / LOG2_E - lse[:, None])'),), 'DQ-EXP2-WITHOUT-LOG2E'),
    _MUTANT('exp2 of natural units in dk and dv', ('dv', 'plain'), ((P_T_LSE, 'scores_t * (scale_log2 / LOG2_E) - lse[None, :]'),), 'DK-DV-EXP2-WITHOUT-LOG2E'),
    _MUTANT('dv of the last head', ('groups',), ((_HEAD_DELTA, _NEW_DV),), 'GROUP-SUM-MISSING-DV', step=6, keeps=0.6),
    _MUTANT('dk of the last head', ('groups',), ((_HEAD_DELTA, _NEW_DK),), 'GROUP-SUM-MISSING-DK', step=6, keeps=0.6),
    _MUTANT('mean over the group', ('groups',), ((SCALE_DK, 'dk *= softmax_scale / group_size\n    dv *= 1.0 / group_size\n'),), 'GROUP-MEAN', keeps=0.6),
    _MUTANT('lse of the first head of the group', ('groups',), (('head_lse_ptr = lse_ptr + q_head * seqlen', 'head_lse_ptr = lse_ptr + kv_head * group_size * seqlen'),), 'GROUP-LSE-FIRST-HEAD', step=6, keeps=0.6),
    _MUTANT('heads interleaved', ('groups',), ((_KV_HEAD, 'kv_head = q_head % (num_q_heads // group_size)', 2),), 'HEADS-INTERLEAVED', keeps=0.6),
    _MUTANT('batch ignored', ('batch_heads',), tuple((f'{x}_ptr += batch * {x}_strides[0] + kv_head', f'{x}_ptr += kv_head', 3) for x in 'kv'), 'BATCH-ZERO', keeps=0.6),
)
