"""Mistakes in p04, causal attention."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import NAN, NOT_WRITTEN, READ_OUTSIDE, Mutant
from tests.mutants.forward import RESCALE, everywhere

_MUTANT = partial(Mutant, "p04")

VISIBLE = "visible = keys[None, :] <= queries[:, None]"
END = "end_key = tl.minimum(query_start + BLOCK_M, seqlen)"
OWN_KEY_HIDDEN = ((VISIBLE, "visible = keys[None, :] < queries[:, None]"),)
NEXT_KEY_VISIBLE = (
    (VISIBLE, "visible = (keys[None, :] <= queries[:, None] + 1) & (keys[None, :] < seqlen)"),
    (END, "end_key = tl.minimum(query_start + BLOCK_M + 1, seqlen)"),
)
_FULL_END = "full_end = query_start // BLOCK_N * BLOCK_N"
_HIDE = 'scores = tl.where(visible, scores, float("-inf"))'

MUTANTS = (
    *everywhere("p04"),
    # -- the mask ---------------------------------------------------------------------------------
    _MUTANT("own key hidden", ("plain",), OWN_KEY_HIDDEN, "DIAGONAL-EXCLUDED", step=1),
    _MUTANT("next key visible", ("plain",), NEXT_KEY_VISIBLE, "DIAGONAL-SHIFTED", step=1),
    _MUTANT('future visible', ('plain',), ((VISIBLE, 'visible = (keys[None, :] < seqlen) & (queries[:, None] >= 0)'), (END, 'end_key = seqlen')), 'CAUSAL-IGNORED'),
    _MUTANT('mask transposed', ('plain',), ((VISIBLE, 'visible = keys[None, :] >= queries[:, None]'),)),
    _MUTANT('mask inverted', ('plain',), ((_HIDE, 'scores = tl.where(visible, float("-inf"), scores)'),)),
    _MUTANT('mask by position in the tile', ('plain',), ((VISIBLE, 'visible = offs_n[None, :] <= queries[:, None]'),)),
    _MUTANT('queries by position in the tile', ('plain',), ((VISIBLE, 'visible = keys[None, :] <= queries[:, None] - tl.min(queries)'),)),
    _MUTANT('hidden scores zero', ('plain',), ((_HIDE, _HIDE.replace('float("-inf")', '0.0')),)),
    _MUTANT('scores times the mask', ('plain',), ((_HIDE, 'scores *= visible.to(tl.float32)'),)),
    _MUTANT('diagonal tile not masked', ('plain',), ((_FULL_END, _FULL_END + ' + BLOCK_N'),)),
    # -- the walk ---------------------------------------------------------------------------------
    _MUTANT('walk ends one key early', ('ragged',), ((END, END + ' - 1'),), keeps=0.6),
    _MUTANT('walk ends one tile early', ('plain',), ((END, 'end_key = tl.minimum(query_start + BLOCK_M, seqlen) - BLOCK_N'),)),
    _MUTANT('walk ends at the query tile', ('plain',), ((END, 'end_key = query_start'),)),
    _MUTANT('sum and maximum swapped', ('plain',), (('        new_max = tl.maximum(', '        running_max, running_sum = running_sum, running_max\n        new_max = tl.maximum('),), 'SUM-AND-MAX-SWAPPED', step=1),
    _MUTANT('rescale inverted', ('plain',), ((RESCALE + 'new_max)', 'rescale = tl.exp2(new_max - running_max)'),), caught_as=NAN),
    _MUTANT('k read past the end', ('ragged',), (('IS_EVEN=seqlen % tiles["BLOCK_N"] == 0', 'IS_EVEN=True'),), caught_as=READ_OUTSIDE, keeps=0.6),
    # -- programs ---------------------------------------------------------------------------------
    _MUTANT('query tiles counted from one', ('plain',), (('tl.num_programs(1) - 1 - tl.program_id(1)', 'tl.num_programs(1) - tl.program_id(1)'),), caught_as=NOT_WRITTEN),
    _MUTANT('section ignored', ('batch_heads',), (('tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)', 'tl.program_id(0)'),), caught_as=NOT_WRITTEN, keeps=0.6),
)
