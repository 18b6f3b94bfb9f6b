"""Mistakes in p05, grouped-query attention."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import NOT_WRITTEN, READ_OUTSIDE, Mutant
from tests.mutants.forward import everywhere
from tests.mutants.p04 import NEXT_KEY_VISIBLE, OWN_KEY_HIDDEN

_MUTANT = partial(Mutant, "p05")

KV_HEAD = "kv_head = q_head // group_size"
OFFSET_Q = "q_ptr += batch * q_strides[0] + q_head * q_strides[1]"
OFFSET_K = "k_ptr += batch * k_strides[0] + kv_head * k_strides[1]"
OFFSET_V = "v_ptr += batch * v_strides[0] + kv_head * v_strides[1]"
GRID = "return section, num_tiles, batch * num_q_heads // section"
BATCH_IGNORED = (
    (OFFSET_K, "k_ptr += kv_head * k_strides[1]"),
    (OFFSET_V, "v_ptr += kv_head * v_strides[1]"),
)

MUTANTS = (
    *everywhere("p05"),
    _MUTANT("own key hidden", ("plain",), OWN_KEY_HIDDEN, "DIAGONAL-EXCLUDED"),
    _MUTANT("next key visible", ("plain",), NEXT_KEY_VISIBLE, "DIAGONAL-SHIFTED"),
    _MUTANT('divided by the sum twice', ('plain',), (('out = acc / running_sum[:, None]', 'out = acc / (running_sum * running_sum)[:, None]'),)),
    _MUTANT('kv head 0 for all', ('groups', 'batch_heads'), ((KV_HEAD, 'kv_head = q_head * 0'),), 'HEADS-ZERO', step=2, keeps=0.5),
    _MUTANT('heads interleaved', ('groups',), ((KV_HEAD, 'kv_head = q_head % (num_q_heads // group_size)'),), 'HEADS-INTERLEAVED', step=2, keeps=0.5),
    _MUTANT('divided by kv heads', ('groups',), ((KV_HEAD, 'kv_head = q_head // (num_q_heads // group_size)'),), 'HEADS-DIVIDED-BY-KV-HEADS', keeps=0.5),
    _MUTANT('groups for k alone', ('groups',), ((OFFSET_V, 'v_ptr += batch * v_strides[0] + (q_head % (num_q_heads // group_size)) * v_strides[1]'),), keeps=0.5),
    _MUTANT("batch ignored", ("batch_heads",), BATCH_IGNORED, "BATCH-ZERO", step=2, keeps=0.6),
    _MUTANT('batch counted in kv heads', ('groups',), (('batch_and_head(num_q_heads)', 'batch_and_head(num_q_heads // group_size)'),), caught_as='outside a tensor', keeps=0.5),
    _MUTANT('sections left out of the grid', ('batch_heads',), ((GRID, 'return section, num_tiles'),), caught_as=NOT_WRITTEN, keeps=0.5),
    _MUTANT('one head of each group', ('groups',), ((GRID, GRID.replace('num_q_heads', 'num_kv_heads')),), caught_as=NOT_WRITTEN, keeps=0.5),
    _MUTANT('batch stride of q for k', ('groups',), ((OFFSET_K, OFFSET_K.replace('k_strides[0]', 'q_strides[0]')),), caught_as='outside a tensor', keeps=0.6),
    _MUTANT('query read by the kv head', ('groups',), ((OFFSET_Q, OFFSET_Q.replace('q_head', '(q_head // group_size)')),), keeps=0.6),
    _MUTANT('lse of all batches in one', ('lse_heads',), (('lse_ptr += (batch * num_q_heads + q_head) * seqlen', 'lse_ptr += q_head * seqlen'),), caught_as=NOT_WRITTEN, keeps=0.9),
    _MUTANT('batch and head exchanged', ('batch_heads',), (('batch, q_head = batch_and_head(num_q_heads)', 'q_head, batch = batch_and_head(num_q_heads)'),), caught_as=READ_OUTSIDE, keeps=0.6),
)
