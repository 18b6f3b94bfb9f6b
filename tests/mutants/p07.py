"""Mistakes in p07, attention with sink tokens."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from functools import partial

from tests.mutants.common import Mutant
from tests.mutants.forward import everywhere
from tests.mutants.p06 import CLAMP, END, FIRST, INTERLEAVED, KV_HEAD, NEXT_KEY_VISIBLE

_MUTANT = partial(Mutant, "p07")

_STOP = "stop = tl.where(keys < num_sink_tokens, seqlen, keys + window_size)"
_VISIBLE = "visible = (keys[None, :] <= queries) & (queries < stop[None, :])"
_SINK_END = "sink_end = tl.minimum(num_sink_tokens, first_key)"
_BEGIN = "begin = first_key - tl.cdiv(sink_end, BLOCK_N) * BLOCK_N"
_KEY_START = "key_start = tl.where(position < first_key, position - begin, position)"
_CLAMP_SINKS = "min(num_sink_tokens, seqlen)"
_SAFE_MAX = 'return tl.where(new_max == float("-inf"), 0.0, new_max)'
_EDGE = "if (position < full_start) |"

MUTANTS = (
    *everywhere("p07"),
    # -- step 1 -----------------------------------------------------------------------------------
    _MUTANT('one sink fewer', ('sinks', 'overlap'), ((_STOP, _STOP.replace('keys < num_sink_tokens', 'keys < num_sink_tokens - 1')),), 'SINKS-ONE-FEWER', step=1, keeps=0.5),
    _MUTANT('one sink more', ('sinks',), ((_STOP, _STOP.replace('keys < num_sink_tokens', 'keys <= num_sink_tokens')),), 'SINKS-ONE-MORE', step=1, keeps=0.5),
    _MUTANT('sinks ignored', ('sinks',), ((_CLAMP_SINKS, '0'),), 'SINKS-IGNORED', keeps=0.6),
    _MUTANT('sinks not causal', ('early_sinks',), ((_VISIBLE, 'visible = (keys[None, :] <= queries) & (queries < stop[None, :]) | (keys[None, :] < num_sink_tokens)'),), keeps=0.5),
    _MUTANT('sink tiles not masked', ('sinks',), ((_EDGE, 'if ((position >= first_key) & (position < full_start)) |'),), keeps=0.5),
    _MUTANT('window one smaller', ('window', 'sinks'), ((_STOP, _STOP.replace('keys + window_size', 'keys + window_size - 1')),), 'WINDOW-ONE-SMALLER', step=1, keeps=0.5),
    _MUTANT('window one larger', ('window', 'sinks'), ((_STOP, _STOP.replace('keys + window_size', 'keys + window_size + 1')),), 'WINDOW-ONE-LARGER', step=1, keeps=0.5),
    _MUTANT('window ignored', ('window', 'sinks'), ((CLAMP, 'seqlen'),), 'WINDOW-IGNORED', keeps=0.6),
    _MUTANT('own key hidden', ('plain', 'window'), ((_VISIBLE, _VISIBLE.replace('<=', '<')),), 'DIAGONAL-EXCLUDED', step=1),
    _MUTANT("next key visible", ("plain", "window"), NEXT_KEY_VISIBLE, "DIAGONAL-SHIFTED", step=1),
    # -- steps 2 and 3 ----------------------------------------------------------------------------
    _MUTANT('sinks in the window counted twice', ('overlap',), ((_SINK_END, 'sink_end = num_sink_tokens'), (_STOP, 'stop = tl.where((keys < num_sink_tokens) & (position < first_key), seqlen, keys + tl.where(position < first_key, 0, window_size))')), 'SINKS-COUNTED-TWICE', keeps=0.5),
    _MUTANT('sinks up to the window visited twice', ('overlap',), ((_SINK_END, 'sink_end = tl.minimum(num_sink_tokens, first_key + BLOCK_N)'),), keeps=0.5),
    _MUTANT('one tile of sinks at the most', ('sink_tiles',), ((_BEGIN, 'begin = first_key - tl.minimum(sink_end, 1) * BLOCK_N'),), keeps=0.6),
    _MUTANT('positions taken for keys', ('sinks',), ((_KEY_START, 'key_start = position'),), keeps=0.5),
    # -- the window of p06 ------------------------------------------------------------------------
    _MUTANT('no safe maximum', ('window',), ((_SAFE_MAX, 'return new_max'),), keeps=0.5),
    _MUTANT('positions taken for the keys of v', ('sinks',), (('load_tile(v_ptr, key_start, stride_vn,', 'load_tile(v_ptr, position, stride_vn,'),), keeps=0.5),
    _MUTANT("walk ends one tile early", ("plain",), ((END, END + " - BLOCK_N"),)),
    _MUTANT('window begins one tile late', ('window',), ((FIRST, FIRST + ' + BLOCK_N'),)),
    _MUTANT('heads interleaved', ('groups',), ((KV_HEAD, INTERLEAVED),), 'HEADS-INTERLEAVED', keeps=0.6),
    _MUTANT('window counted as a string of sinks', ('sinks',), ((_STOP, _STOP.replace('window_size', 'tl.maximum(window_size - num_sink_tokens, 1)')),), keeps=0.5),
)
