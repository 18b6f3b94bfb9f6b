"""Mistakes in p06, sliding-window attention."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import READ_OUTSIDE, Mutant
from tests.mutants.forward import everywhere
from tests.mutants.p05 import BATCH_IGNORED

_MUTANT = partial(Mutant, "p06")

CLAMP = "min(window_size, seqlen)"
KV_HEAD = "return batch, q_head, q_head // group_size, query_start"
INTERLEAVED = KV_HEAD.replace("// group_size", "% (num_q_heads // group_size)")
_VISIBLE = "visible = (keys[None, :] <= queries) & (keys[None, :] > queries - window_size)"
END = "end_key = tl.minimum(query_start + BLOCK_M, seqlen)"
FIRST = "first_key = tl.maximum(query_start - window_size + 1, 0) // BLOCK_N * BLOCK_N"
DIAGONAL = "full_end = query_start // BLOCK_N * BLOCK_N"
FULL = "full_start = tl.cdiv(tl.maximum(end_key - window_size, 0), BLOCK_N) * BLOCK_N"
SAFE_MAX = 'safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)'
# Rows past the end see what the last row sees; keys past the end stay hidden.
NEXT_KEY_VISIBLE = (
    ("(keys[None, :] <= queries)", "(keys[None, :] <= queries + 1) & (keys[None, :] < seqlen)"),
    (END, END.replace("BLOCK_M", "BLOCK_M + 1")),
)
_EDGE_OR_DIAGONAL = "if (key_start < full_start) | (key_start >= full_end):"
_WALK_DONE = "\n    out = acc / running_sum[:, None]"
_WALK = """\
    running_max, running_sum, acc = _loop(
        q, k_ptr, v_ptr, k_strides[2], v_strides[2], queries, {begin}, {end}, {end}, {end},
        seqlen, window_size, running_max, running_sum, acc, scale_log2, HEAD_DIM, BLOCK_N,
    )
"""


def _again(begin: str, end: str) -> tuple[tuple[str, str], ...]:
    """The edit that folds the key tiles from begin to end, masked, behind the walk."""
    return ((_WALK_DONE, _WALK.format(begin=begin, end=end) + _WALK_DONE),)


MUTANTS = (
    *everywhere("p06"),
    # -- the safe maximum -------------------------------------------------------------------------
    _MUTANT('no safe maximum', ('window', 'unaligned_window'), ((SAFE_MAX, 'safe_max = new_max'),), keeps=0.5),
    _MUTANT('safe maximum kept as the running one', ('unaligned_window',), (('running_max = new_max\n', 'running_max = safe_max\n'),), keeps=0.5),
    # -- the mask ---------------------------------------------------------------------------------
    _MUTANT('window one smaller', ('window', 'unaligned_window'), ((_VISIBLE, _VISIBLE.replace('- window_size', '- window_size + 1')),), 'WINDOW-ONE-SMALLER', step=1, keeps=0.5),
    _MUTANT('window one larger', ('window', 'unaligned_window'), ((_VISIBLE, _VISIBLE.replace('> queries', '>= queries')),), 'WINDOW-ONE-LARGER', step=1, keeps=0.5),
    _MUTANT('window ignored', ('window', 'unaligned_window'), ((CLAMP, 'seqlen'),), 'WINDOW-IGNORED', keeps=0.6),
    _MUTANT('left edge of the window forgotten', ('unaligned_window',), ((_VISIBLE, 'visible = keys[None, :] <= queries'),), 'WINDOW-EDGE-UNMASKED', keeps=0.6),
    _MUTANT('window from the first query of the tile', ('unaligned_window',), ((_VISIBLE, _VISIBLE.replace('> queries', '> tl.min(queries)')),), keeps=0.6),
    _MUTANT('own key hidden', ('plain', 'window'), ((_VISIBLE, _VISIBLE.replace('<= queries', '< queries')),), 'DIAGONAL-EXCLUDED', step=1),
    _MUTANT("next key visible", ("plain", "window"), NEXT_KEY_VISIBLE, "DIAGONAL-SHIFTED", step=1),
    _MUTANT('diagonal forgotten', ('plain',), ((_VISIBLE, 'visible = (keys[None, :] > queries - window_size) & (keys[None, :] < seqlen)'),)),
    _MUTANT('window or causal', ('plain', 'window'), ((_VISIBLE, _VISIBLE.replace('&', '|')),)),
    # -- each limit one tile off ------------------------------------------------------------------
    _MUTANT("walk ends one tile early", ("plain",), ((END, END + " - BLOCK_N"),)),
    _MUTANT('walk begins one tile late', ('window', 'unaligned_window'), ((FIRST, FIRST + ' + BLOCK_N'),)),
    _MUTANT('walk begins at the window of the last query', ('window',), ((FIRST, 'first_key = tl.maximum(end_key - window_size, 0) // BLOCK_N * BLOCK_N'),), keeps=0.5),
    _MUTANT("diagonal begins one tile late", ("plain",), ((DIAGONAL, DIAGONAL + " + BLOCK_N"),)),
    _MUTANT('full tiles begin one tile early', ('window', 'unaligned_window'), ((FULL, FULL + ' - BLOCK_N'),), keeps=0.5),
    _MUTANT('full tiles begin at the window of the first query', ('unaligned_window',), ((FULL, FULL.replace('end_key - window_size', 'query_start - window_size + 1')),), keeps=0.5),
    _MUTANT('edge tiles not masked', ('window', 'unaligned_window'), ((_EDGE_OR_DIAGONAL, 'if key_start >= full_end:'),), keeps=0.6),
    _MUTANT('diagonal tiles not masked', ('plain',), ((_EDGE_OR_DIAGONAL, 'if key_start < full_start:'),)),
    # -- the walk ---------------------------------------------------------------------------------
    _MUTANT('window not begun at a tile', ('unaligned_window',), ((FIRST, FIRST.replace(' // BLOCK_N * BLOCK_N', '')), *_again('first_key', 'tl.minimum(full_start, full_end)'), ('v_strides[2], queries, first_key, full_start, full_end,\n', 'v_strides[2], queries, tl.minimum(full_start, full_end), full_start, full_end,\n')), keeps=0.6),
    _MUTANT("diagonal tile counted twice", ("plain",), _again("full_end", "end_key")),
    _MUTANT('full tile counted twice', ('window',), _again('tl.maximum(full_end - BLOCK_N, full_start)', 'full_end')),
    _MUTANT('v read past the end', ('ragged',), (('stride_vn, seqlen, BLOCK_N,', 'stride_vn, seqlen + BLOCK_N, BLOCK_N,'),), caught_as=READ_OUTSIDE, keeps=0.6),
    # -- heads ------------------------------------------------------------------------------------
    _MUTANT('heads interleaved', ('groups',), ((KV_HEAD, INTERLEAVED),), 'HEADS-INTERLEAVED', keeps=0.6),
    _MUTANT("batch ignored", ("batch_heads",), BATCH_IGNORED, "BATCH-ZERO", keeps=0.6),
)
