"""Mistakes in p03, non-causal attention."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import NAN, READ_OUTSIDE, Mutant
from tests.mutants.forward import ALLOCATE, NEW_MAX, PRODUCTS, everywhere

_MUTANT = partial(Mutant, "p03")

_EXISTS = "visible = keys[None, :] < seqlen_k"
_HIDE = 'tl.where(visible, scores, float("-inf"))'
_PADDED = "if not IS_EVEN:"
_LOAD_K = "load_keys(k_ptr + k_offs, keys, seqlen_k, IS_EVEN)"
_OFFSET_K = "k_ptr += batch * k_strides[0] + head * k_strides[1]"
_OFFSET_V = "v_ptr += batch * v_strides[0] + head * v_strides[1]"

_ROW = partial(_MUTANT, checks=("row_logsumexp",), step=1, keeps=0.6)
_ROW_SUM = "row_sum * tl.exp2(row_max - new_max) + tl.sum("
_ROW_LSE = "(row_max + tl.log2(row_sum)) * LN_2)"
_COLUMNS = "range(0, cols, BLOCK_N)"

MUTANTS = (
    *everywhere("p03"),
    # -- the log-sum-exp of a row -----------------------------------------------------------------
    _ROW('row in natural units', edits=(('.to(tl.float32) * LOG2_E', '.to(tl.float32)'),), expected_id='ROW-IN-NATURAL-UNITS'),
    _ROW('row to base 2', edits=((_ROW_LSE, _ROW_LSE.replace(' * LN_2', '')),), expected_id='ROW-LSE-BASE-2'),
    _ROW('row in mixed units', edits=(('.to(tl.float32) * LOG2_E', '.to(tl.float32)'), ('tl.exp2(row_max - new_max)', 'tl.exp(row_max - new_max)'), ('tl.exp2(x - new_max)', 'tl.exp(x - new_max)')), expected_id='ROW-UNITS-MIXED'),
    _ROW('row sum not rescaled', edits=((_ROW_SUM, 'row_sum + tl.sum('),), expected_id='ROW-RESCALE-MISSING'),
    _ROW('row sum overwritten', edits=((_ROW_SUM, 'tl.sum('),), expected_id='ROW-SUM-OVERWRITTEN'),
    _ROW('row padded with zeros', edits=(('mask=offs_n < cols, other=float("-inf")', 'mask=offs_n < cols, other=0.0'),), expected_id='ROW-PADDING-COUNTED'),
    _ROW('last columns of the row dropped', edits=((_COLUMNS, 'range(0, cols // BLOCK_N * BLOCK_N, BLOCK_N)'),), expected_id='ROW-LAST-TILE-DROPPED'),
    _ROW('first columns of the row alone', edits=((_COLUMNS, 'range(0, 1, BLOCK_N)'),), expected_id='ROW-FIRST-TILE-ONLY'),
    _ROW('row without its maximum', edits=((_ROW_LSE, 'tl.log2(row_sum) * LN_2)'),), expected_id='ROW-WITHOUT-MAX'),
    # -- scores -----------------------------------------------------------------------------------
    _MUTANT('maximum not scaled', ('plain',), ((NEW_MAX, NEW_MAX.replace(' * scale_log2', '')),)),
    _MUTANT('maximum begins at zero', ('large_logits',), (('running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)', 'running_max = tl.zeros((BLOCK_M,), tl.float32)'),), caught_as=NAN, keeps=0.6),
    # -- lengths ----------------------------------------------------------------------------------
    _MUTANT('padded keys not masked', ('ragged',), ((_PADDED, 'if key_start < 0:'),), 'PADDED-KEYS-COUNTED', step=4, keeps=0.6),
    _MUTANT('padded scores of zero', ('ragged',), ((_HIDE, 'tl.where(visible, scores, 0.0)'),), 'PADDED-KEYS-COUNTED', step=4, keeps=0.6),
    _MUTANT('last tile dropped', ('ragged',), (('range(0, seqlen_k, BLOCK_N)', 'range(0, seqlen_k // BLOCK_N * BLOCK_N, BLOCK_N)'),), 'LAST-KEY-TILE-DROPPED', keeps=0.6),
    _MUTANT('keys counted by queries', ('unequal',), (('num_q_heads, seqlen_q, seqlen_k, softmax', 'num_q_heads, seqlen_q, min(seqlen_q, seqlen_k), softmax'),), keeps=0.6),
    _MUTANT('equal lengths asserted', ('unequal',), ((ALLOCATE, 'assert q.shape == k.shape\n    ' + ALLOCATE),), caught_as='AssertionError', keeps=0.6),
    _MUTANT('k read past the end', ('ragged',), ((_LOAD_K, 'load_keys(k_ptr + k_offs, keys, seqlen_k, True)'),), caught_as=READ_OUTSIDE, keeps=0.6),
    # -- heads ------------------------------------------------------------------------------------
    _MUTANT('head 0 for all', ('batch_heads',), ((_OFFSET_K, 'k_ptr += batch * k_strides[0]'), (_OFFSET_V, 'v_ptr += batch * v_strides[0]')), 'HEADS-ZERO', step=3, keeps=0.6),
    _MUTANT('batch 0 for all', ('batch_heads',), ((_OFFSET_K, 'k_ptr += head * k_strides[1]'), (_OFFSET_V, 'v_ptr += head * v_strides[1]')), 'BATCH-ZERO', step=3, keeps=0.6),
    _MUTANT('batch divided by one head', ('batch_heads',), (('batch, head = batch_head // num_q_heads, batch_head % num_q_heads', 'head, batch = batch_head // num_q_heads, batch_head % num_q_heads'),), caught_as='outside a tensor', keeps=0.6),
    _MUTANT('k not transposed', ('plain',), ((PRODUCTS, PRODUCTS.replace('tl.trans(k)', 'k')),)),
)
