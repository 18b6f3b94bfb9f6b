"""Mistakes in p01, FlashAttention in PyTorch.

Over 400 lines: a problem's mistakes are in one file, so that a new one meets its kin.
"""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import (
    NAN,
    NOT_DENSE,
    NOT_RETURNED,
    NOT_WRITTEN,
    OVERWRITTEN,
    SECOND_CALL,
    WRONG_DTYPE,
    Mutant,
)

_MUTANT = partial(Mutant, "p01")

_WEIGHTS = "weights = scores.sub_(new_max).exp_()"
_PRODUCTS = "scores = tile_matmul(q_tile, k_tile.transpose(1, 2), softmax_scale)"
_NO_SCALE = ((_PRODUCTS, _PRODUCTS.replace(", softmax_scale", "")),)
_RESCALE = "torch.exp(running_max - new_max)"
_RESCALED_SUM = "torch.addcmul(tile_sum, running_sum, rescale)"
_RESCALED_ACC = "torch.addcmul(tile_acc, acc, rescale)"
_OUT = "out[:, q_start:q_stop] = acc / running_sum"
_LSE = "running_max + running_sum.log()"
_RETURN = "return out.view(q.shape), lse.view(q.shape[:3])"
_HIDDEN = "scores.masked_fill_(key[None, :] > query[:, None], -math.inf)"
_CROSSED = "k_stop - 1 > q_start"
_STOP = "        stop = q_stop\n"
_HEADS = "k_heads, v_heads = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)"
_ALLOCATE = "out = torch.empty(q_heads.shape, dtype=q.dtype, device=q.device)"
_ENTRY = "def flash_attention(\n"


def _kept(key: str) -> tuple[tuple[str, str], ...]:
    returned = _RETURN.removeprefix("return ")
    return (
        (_ENTRY, f"_KEPT = {{}}\n\n\n{_ENTRY}"),
        (_RETURN, f"return _KEPT.setdefault({key}, ({returned}))"),
    )


MUTANTS = (
    _MUTANT('zeros', ('plain', 'lse'), ((_RETURN, 'return torch.zeros_like(out).view(q.shape), 0 * lse.view(q.shape[:3])'),), 'ZEROS', earns_nothing=True),
    _MUTANT('zeros above 300', ('plain', 'lse', 'half_lse', 'ragged', 'ragged_unequal', 'tile_sizes', 'causal'), ((_RETURN, 'if max(seqlen_q, seqlen_k) > 300:\n        out, lse = 0 * out, 0 * lse\n    ' + _RETURN),), earns_nothing=True),
    _MUTANT('kept by shape', ('plain',), _kept('(q.shape, k.shape)'), caught_as=SECOND_CALL, earns_nothing=True),
    _MUTANT('kept by address', ('plain',), _kept('(q.data_ptr(), q.shape, k.shape)'), caught_as=SECOND_CALL, earns_nothing=True),
    _MUTANT('kept by shape dtype and options', ('plain',), _kept('(q.shape, q.dtype, k.shape, is_causal, softmax_scale, tile_q, tile_k)'), caught_as=SECOND_CALL, earns_nothing=True),
    # -- scale ----------------------------------------------------------------------------------
    _MUTANT("no scale", ("plain",), _NO_SCALE, "SCALE-MISSING", step=1),
    _MUTANT('scaled twice', ('plain', 'one_key'), ((_PRODUCTS, _PRODUCTS + ' * softmax_scale'),), 'SCALE-SQUARED', step=1),
    _MUTANT('scaled again inside exp', ('plain', 'lse'), ((_WEIGHTS, 'weights = torch.exp(softmax_scale * (scores - new_max))'),), expected_id='SCALE-AGAIN-IN-WEIGHTS', step=2),
    _MUTANT('softmax_scale ignored', ('scale',), ((_PRODUCTS, _PRODUCTS.replace('softmax_scale', 'q.shape[3] ** -0.5')),), 'SCALE-OPTION-IGNORED', step=1, keeps=0.6),
    # -- online softmax ---------------------------------------------------------------------------
    _MUTANT('no rescale', ('plain',), ((_RESCALE, 'torch.ones_like(new_max)'),), 'RESCALE-MISSING', step=3),
    _MUTANT('acc not rescaled', ('plain',), ((_RESCALED_ACC, 'acc + tile_acc'),), 'RESCALE-ACC-MISSING', step=3),
    _MUTANT('sum not rescaled', ('plain',), ((_RESCALED_SUM, 'running_sum + tile_sum'),), 'RESCALE-SUM-MISSING', step=3),
    _MUTANT('acc overwritten', ('plain',), ((_RESCALED_ACC, 'tile_acc'),), 'ACC-OVERWRITTEN', step=3),
    _MUTANT('sum overwritten', ('plain', 'lse'), ((_RESCALED_SUM, 'tile_sum'),), 'SUM-OVERWRITTEN', step=3),
    _MUTANT('running max forgotten', ('plain',), (('running_max, running_sum, acc = new_max, ', 'running_sum, acc = '),), expected_id='RUNNING-MAX-FORGOTTEN'),
    _MUTANT('old maximum subtracted', ('plain',), ((_WEIGHTS, _WEIGHTS.replace('new_max', 'running_max')),), caught_as=NAN),
    _MUTANT('rescale upside down', ('plain',), ((_RESCALE, 'torch.exp(new_max - running_max)'),), caught_as=NAN),
    _MUTANT('powers of two', ('plain',), ((_RESCALE, _RESCALE.replace('exp(', 'exp2(')), (_WEIGHTS, _WEIGHTS.replace('exp_()', 'exp2_()'))), 'EXP2-WITHOUT-LOG2E', step=2),
    _MUTANT('first tile only', ('plain',), (('range(0, visible_stop, tile_k)', '(0,)'),), 'FIRST-KEY-TILE-ONLY'),
    _MUTANT('not divided', ('plain',), ((_OUT, _OUT.replace(' / running_sum', '')),), 'NOT-NORMALISED'),
    _MUTANT("nan", ("plain",), ((_OUT, _OUT + " * math.nan"),), caught_as=NAN),
    # -- products -----------------------------------------------------------------------------
    _MUTANT('k reshaped instead of transposed', ('plain',), (('k_tile.transpose(1, 2)', 'k_tile.reshape(-1, k_tile.shape[2], k_stop - k_start)'),), expected_id='K-RESHAPED', step=1),
    _MUTANT('k and v swapped', ('plain',), ((_HEADS, _HEADS.replace('k_heads, v_heads', 'v_heads, k_heads')),), 'K-V-SWAPPED'),
    _MUTANT('q scaled in place', ('arguments',), (*_NO_SCALE, (_ALLOCATE, 'q *= softmax_scale\n    ' + _ALLOCATE)), caught_as=OVERWRITTEN),
    # -- lengths and tiles --------------------------------------------------------------------
    _MUTANT('last tile dropped', ('ragged',), (('range(0, visible_stop, tile_k)', 'range(0, visible_stop // tile_k * tile_k, tile_k)'),), 'LAST-KEY-TILE-DROPPED', keeps=0.6),
    _MUTANT('last queries dropped', ('ragged',), (('range(0, seqlen_q, tile_q)', 'range(0, seqlen_q // tile_q * tile_q, tile_q)'),), caught_as=NOT_WRITTEN, keeps=0.6),
    _MUTANT('equal lengths asserted', ('unequal',), (('    out = torch.empty(', '    assert seqlen_q == seqlen_k\n    out = torch.empty('),), caught_as='AssertionError', keeps=0.6),
    _MUTANT('as many keys as queries', ('unequal',), (('seqlen_q, seqlen_k = q.shape[2], k.shape[2]', 'seqlen_q, seqlen_k = q.shape[2], min(q.shape[2], k.shape[2])'),), keeps=0.6, expected_id='LOOP-OVER-SEQLEN-Q'),
    _MUTANT('tiles as wide as high', ('tile_sizes',), (('k_stop = min(k_start + tile_k,', 'k_stop = min(k_start + tile_q,'),), keeps=0.6, expected_id='KEY-TILES-END-AT-TILE-Q'),
    # -- causal mask ------------------------------------------------------------------------------
    _MUTANT('own key hidden', ('causal',), ((_HIDDEN, _HIDDEN.replace('key[None, :] >', 'key[None, :] >=')), (_CROSSED, 'k_stop - 1 >= q_start')), 'DIAGONAL-EXCLUDED', step=5, keeps=0.5),
    _MUTANT('next key visible', ('causal',), ((_HIDDEN, _HIDDEN.replace('query[:, None]', 'query[:, None] + 1')), (_STOP, _STOP.replace('q_stop', 'min(q_stop + 1, seqlen_k)'))), 'DIAGONAL-SHIFTED', step=5, keeps=0.5),
    _MUTANT('no mask', ('causal',), ((_CROSSED, 'False'), (_STOP, _STOP.replace('q_stop', 'seqlen_k'))), 'CAUSAL-IGNORED', step=5, keeps=0.5),
    _MUTANT('mask transposed', ('causal',), ((_HIDDEN, _HIDDEN.replace('key[None, :] >', 'key[None, :] <')), (_CROSSED, 'True'), (_STOP, _STOP.replace('q_stop', 'seqlen_k'))), keeps=0.5),
    _MUTANT('mask by position in the tile', ('causal_tiles',), (('query = torch.arange(q_start, q_stop,', 'query = torch.arange(q_stop - q_start,'), ('key = torch.arange(k_start, k_stop,', 'key = torch.arange(k_stop - k_start,')), keeps=0.5, expected_id='MASK-INSIDE-THE-TILE', step=5),
    _MUTANT('mask by position in every tile', ('causal', 'causal_tiles'), (('query = torch.arange(q_start, q_stop,', 'query = torch.arange(q_stop - q_start,'), ('key = torch.arange(k_start, k_stop,', 'key = torch.arange(k_stop - k_start,'), (_CROSSED, 'True')), 'MASK-INSIDE-EVERY-TILE', step=5, keeps=0.5),
    _MUTANT('diagonal tile skipped', ('causal',), (('= _visible_stop(q_stop,', '= _visible_stop(max(q_start, 1),'),), keeps=0.5, expected_id='DIAGONAL-TILES-SKIPPED'),
    _MUTANT('causal without being asked', ('plain',), (('            if is_causal:\n', '            if True:\n'),), 'CAUSAL-NOT-ASKED'),
    # -- heads and layouts ------------------------------------------------------------------------
    _MUTANT('batch ignored', ('batch_heads',), ((_HEADS, _HEADS.replace('k.f', 'k[:1].expand_as(k).f').replace('v.f', 'v[:1].expand_as(v).f')),), 'BATCH-ZERO', keeps=0.6),
    _MUTANT('head 0 for all', ('batch_heads',), ((_HEADS, _HEADS.replace('k.f', 'k[:, :1].expand_as(k).f').replace('v.f', 'v[:, :1].expand_as(v).f')),), 'HEADS-ZERO', keeps=0.6),
    _MUTANT('view of what is no view', ('layouts',), ((_HEADS, _HEADS.replace('q.flatten(0, 1)', 'q.view(-1, seqlen_q, q.shape[3])')),), caught_as='view size is not compatible', keeps=0.6),
    _MUTANT('out with strides of q', ('layouts',), ((_RETURN, 'return torch.empty_like(q).copy_(out.view(q.shape)), lse.view(q.shape[:3])'),), caught_as=NOT_DENSE, keeps=0.6),
    # -- lse --------------------------------------------------------------------------------------
    _MUTANT('lse in base 2', ('lse',), ((_LSE, f'({_LSE}) / math.log(2)'),), 'LSE-BASE-2', step=4, keeps=0.6),
    _MUTANT('lse without max', ('lse',), ((_LSE, 'running_sum.log()'),), 'LSE-WITHOUT-MAX', step=4, keeps=0.6),
    _MUTANT('lse without sum', ('lse',), ((_LSE, 'running_max'),), 'LSE-WITHOUT-SUM', step=4, keeps=0.6),
    _MUTANT('lse of the dtype of q', ('half_lse',), ((_RETURN, _RETURN + '.to(q.dtype)'),), caught_as=WRONG_DTYPE, keeps=0.6),
    _MUTANT('lse not returned', ('lse',), ((_RETURN, 'return out.view(q.shape)'),), caught_as=NOT_RETURNED, keeps=0.6),
    _MUTANT('lse not written', ('lse',), (('        lse[:, q_start:q_stop] = row_lse.squeeze(-1)\n', ''),), caught_as=NOT_WRITTEN, keeps=0.6),
    _MUTANT('out in fp32', ('half',), ((_ALLOCATE, _ALLOCATE.replace('dtype=q.dtype', 'dtype=torch.float32')),), caught_as=WRONG_DTYPE, keeps=0.6),
)
