"""Mistakes in p07."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.mutants.forward import ACC, LSE, NEW_MAX, RESCALE, WEIGHTS
from tests.wrong import of

_STOP = "stop = tl.where(keys < num_sink_tokens, seqlen, keys + window_size)"
_MASK = "visible = (keys[None, :] <= queries) & (queries < stop[None, :])"
_TEST = "if (position < full_start) | (position >= full_end):"
_AT = "key_start = tl.where(position < first_key, position - begin, position)"
_SINKS = "sink_end = tl.minimum(num_sink_tokens, first_key)"
_BEGIN = "begin = first_key - tl.cdiv(sink_end, BLOCK_N) * BLOCK_N"
_LOOP = "for position in tl.range(begin, end_key, BLOCK_N, disable_licm=True):"
_FIRST = "first_key = tl.maximum(query_start - window_size + 1, 0) // BLOCK_N * BLOCK_N"
_START = "full_start = tl.cdiv(tl.maximum(end_key - window_size, 0), BLOCK_N) * BLOCK_N"
_CLAMP = "window_size, num_sink_tokens = min(window_size, seqlen), min(num_sink_tokens, seqlen)"
_SIZES = "num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, num_sink_tokens,\n        softmax_scale"
_HIDDEN = "hidden = (n[None, :] > m[:, None]) | ((n[None, :] <= m[:, None] - W) & (n[None, :] >= S))"
_OF_SINKS = "seen = (n[None, :] < S) & (m[:, None] - n[None, :] >= W)"
_RANGE = "range(0, tl.minimum(S, hi - W), BS)"

WRONG = (
    *of(
        "p07",
        ("one sink more", "", "KEYS-BEFORE-THE-WINDOW", (_STOP, _STOP.replace("keys <", "keys <="))),
        ("sinks of whole tiles", "", "SINKS-WHOLE-TILE", (_STOP, _STOP.replace("keys < num_sink_tokens", "key_start < num_sink_tokens"))),
        ("sinks before the window alone", "", "VISIBLE-KEYS-MASKED", (_STOP, "stop = tl.where((keys < num_sink_tokens) & (position < first_key), seqlen, keys + window_size)")),
        ("sinks only in their own tiles", "", "VISIBLE-KEYS-MASKED OTHER-PAIRS", (_STOP, "stop = tl.where(position < first_key, seqlen, keys + window_size)")),
        ("sinks for window_size queries more", "", "VISIBLE-KEYS-MASKED", (_STOP, _STOP.replace("seqlen, keys", "keys + 2 * window_size, keys"))),
        ("sinks or window", "", "KEYS-AFTER-THE-QUERY KEYS-BEFORE-THE-WINDOW OTHER-PAIRS", (_MASK, "visible = (keys[None, :] <= queries) | (keys[None, :] < num_sink_tokens)")),
        ("sinks put back after the mask", "sinks", "SINKS-NOT-CAUSAL KEYS-AFTER-THE-QUERY", (_MASK, 'within = (keys[None, :] <= queries) & (queries < keys[None, :] + window_size)\n            hidden = tl.where(within, scores, float("-inf"))'), ('scores = tl.where(visible, scores, float("-inf"))', "scores = tl.where(keys[None, :] < num_sink_tokens, scores, hidden)")),
        ("sinks and window", "", "VISIBLE-KEYS-MASKED", (_MASK, "visible = (keys[None, :] <= queries) & (keys[None, :] > queries - window_size) & (keys[None, :] < num_sink_tokens)")),
        ("window one larger", "", "KEYS-BEFORE-THE-WINDOW WINDOW-ONE-LARGER", (_MASK, "visible = (keys[None, :] <= queries) & (queries <= stop[None, :])")),
        ("sinks seen by earlier queries", "", "KEYS-AFTER-THE-QUERY", (_MASK, "visible = ((keys[None, :] <= queries) & (queries < keys[None, :] + window_size)) | (keys[None, :] < num_sink_tokens)")),
        ("window less the sinks", "", "VISIBLE-KEYS-MASKED", (_STOP, _STOP.replace("keys + window_size", "keys + window_size - num_sink_tokens"))),
        ("window and the sinks", "", "KEYS-BEFORE-THE-WINDOW", (_STOP, _STOP.replace("keys + window_size", "keys + window_size + num_sink_tokens"))),
        ("window and sinks not clamped", "extreme_options", "OPTION-OVERFLOWS", (_CLAMP, "pass")),
        ("sinks not clamped", "", "KEYS-COUNTED-TWICE", (_SINKS, "sink_end = num_sink_tokens")),
        ("sinks clamped to the window", "", "KEYS-COUNTED-TWICE", (_SINKS, "sink_end = tl.minimum(num_sink_tokens, window_size)")),
        ("sinks clamped to a tile", "", "KEYS-COUNTED-TWICE", (_SINKS, "sink_end = tl.minimum(num_sink_tokens, BLOCK_N)")),
        ("one tile of sinks always", "", "KEYS-COUNTED-TWICE", (_BEGIN, "begin = first_key - BLOCK_N")),
        ("begin by the sinks", "", "TILES-NOT-ALIGNED KEYS-NEVER-VISITED", (_BEGIN, "begin = first_key - sink_end")),
        ("sinks at their positions", "", "KEYS-NEVER-VISITED", (_AT, "key_start = position")),
        ("sinks from the window on", "", "KEYS-NEVER-VISITED", (_AT, "key_start = tl.where(position <= first_key, position - begin, position)")),
        ("all tiles shifted", "", "KEYS-NEVER-VISITED OTHER-PAIRS", (_AT, "key_start = position - begin")),
        ("sinks masked as full", "", "KEYS-BEFORE-THE-WINDOW", (_TEST, "if (position >= first_key) & ((position < full_start) | (position >= full_end)):")),
        ("left edge not masked", "", "KEYS-BEFORE-THE-WINDOW", (_TEST, "if (position < first_key) | (position >= full_end):")),
        ("diagonal not masked", "", "KEYS-AFTER-THE-QUERY", (_TEST, "if position < full_start:")),
        ("window begins late", "", "KEYS-NEVER-VISITED", (_FIRST, _FIRST.replace("- window_size + 1", "- window_size + BLOCK_N"))),
        ("full tiles too early", "", "KEYS-BEFORE-THE-WINDOW", (_START, _START.replace("end_key - window_size", "query_start - window_size"))),
        ("steps of two tiles", "", "KEYS-NEVER-VISITED", (_LOOP, _LOOP.replace("BLOCK_N, d", "2 * BLOCK_N, d"))),
        ("window and sinks exchanged", "sinks", "ARGUMENTS-EXCHANGED OTHER-WINDOW", (_SIZES, _SIZES.replace("window_size, num_sink_tokens", "num_sink_tokens, window_size"))),
        ("sinks part of the window", "", "OTHER-WINDOW", (_CLAMP, "window_size, num_sink_tokens = max(min(window_size, seqlen) - num_sink_tokens, 1), min(num_sink_tokens, seqlen)")),
        ("sinks clamped to the window size", "", "OTHER-WINDOW", (_CLAMP, "window_size, num_sink_tokens = min(window_size, seqlen), min(num_sink_tokens, window_size)")),
        ("sinks one short", "", "VISIBLE-KEYS-MASKED SINKS-ONE-FEWER", (_CLAMP, "window_size, num_sink_tokens = min(window_size, seqlen), max(min(num_sink_tokens, seqlen) - 1, 0)")),
        ("acc not rescaled", "", "RESCALE-ACC-MISSING", (ACC, ACC.replace("acc * rescale[:, None]", "acc"))),
        ("rescaled by exp", "", "TILE-SHARES", (RESCALE, RESCALE.replace("exp2", "exp"))),
        ("weights by exp", "", "EXPONENTIALS-MIXED", (WEIGHTS, WEIGHTS.replace("exp2", "exp"))),
        ("maximum of the tile alone", "", "STATE-PARTS", (NEW_MAX, "new_max = tl.max(scores, 1) * scale_log2")),
        ("lse natural", "", "LSE-UNITS-MIXED", (LSE, "lse = running_max + tl.log(running_sum)")),
        ("sinks begin between tiles", "sinks", "TILES-NOT-ALIGNED", ("begin = first_key - tl.cdiv(sink_end, BLOCK_N) * BLOCK_N", "begin = first_key - sink_end")),
    ),
    *of(
        "p07-two_states",
        ("sinks of the window counted again", "", "KEYS-COUNTED-TWICE", (_OF_SINKS, "seen = n[None, :] < S")),
        ("sinks counted again and not causal", "", "KEYS-COUNTED-TWICE", (_OF_SINKS, "seen = (n[None, :] < S) & (m[:, None] >= n[None, :])")),
        ("sink at the edge hidden", "", "VISIBLE-KEYS-MASKED", (_OF_SINKS, _OF_SINKS.replace(">= W", "> W"))),
        ("sink at the edge twice", "", "KEYS-COUNTED-TWICE", (_OF_SINKS, _OF_SINKS.replace(">= W", ">= W - 1"))),
        ("one sink more", "", "KEYS-BEFORE-THE-WINDOW", (_OF_SINKS, _OF_SINKS.replace("< S", "<= S"))),
        ("sinks merged unweighted", "", "SINK-SHARES", ("total = a * den + c * sink_den", "total = den + sink_den"), ("(acc * a[:, None] + sink_acc * c[:, None])", "(acc + sink_acc)")),
        ("acc of sinks unweighted", "", "SINK-SHARES", ("sink_acc * c[:, None]", "sink_acc")),
        ("sum of sinks left out", "", "ROWS-SCALED", ("total = a * den + c * sink_den", "total = a * den")),
        ("factors exchanged", "", "SUM-OUT-OF-RANGE", ("a, c = tl.exp(top - both), tl.exp(sink_top - both)", "c, a = tl.exp(top - both), tl.exp(sink_top - both)")),
        ("factors of exp2", "", "SINK-SHARES", ("a, c = tl.exp(top - both), tl.exp(sink_top - both)", "a, c = tl.exp2(top - both), tl.exp2(sink_top - both)")),
        ("averaged", "", "OUTPUT-SCALED", ("out = (acc * a[:, None] + sink_acc * c[:, None]) / total[:, None]", "out = (acc / den[:, None] + sink_acc / tl.maximum(sink_den, 1e-30)[:, None]) / 2")),
        ("lse of the window", "", "", ("both + tl.log(total), mask", "top + tl.log(tl.where(m < N, den, 1.0)), mask")),
        ("loop of sinks short", "", "KEYS-NEVER-VISITED", (_RANGE, "range(0, tl.minimum(S, lo - W), BS)")),
        ("loop of sinks in other steps", "", "KEYS-NEVER-VISITED", (_RANGE, "range(0, tl.minimum(S, hi - W), BN)")),
        ("first tile of sinks alone", "", "KEYS-NEVER-VISITED", (_RANGE, "range(0, tl.minimum(tl.minimum(S, hi - W), BS), BS)")),
    ),
    *of(
        "p07-window_then_sinks",
        ("one sink more", "", "KEYS-BEFORE-THE-WINDOW", (_HIDDEN, _HIDDEN.replace(">= S", "> S"))),
        ("sinks not causal", "", "KEYS-AFTER-THE-QUERY", (_HIDDEN, "hidden = (n[None, :] >= S) & ((n[None, :] > m[:, None]) | (n[None, :] <= m[:, None] - W))")),
        ("sinks or window hidden", "", "VISIBLE-KEYS-MASKED", (_HIDDEN, _HIDDEN.replace("- W) &", "- W) |"))),
        ("sinks counted up to the window", "", "KEYS-COUNTED-TWICE", ("sinks = tl.minimum(tl.cdiv(S, BN), first)", "sinks = tl.cdiv(S, BN)")),
        ("sink tiles rounded down", "", "KEYS-NEVER-VISITED", ("sinks = tl.minimum(tl.cdiv(S, BN), first)", "sinks = tl.minimum(S // BN, first)")),
        ("one tile fewer", "", "KEYS-NEVER-VISITED", ("while done < last - first + 1 + sinks:", "while done < last - first + sinks:")),
        ("sinks from the wrong tile", "", "KEYS-COUNTED-TWICE KEYS-NEVER-VISITED", ("tl.where(tile == first, sinks - 1, tile - 1)", "tl.where(tile == first, sinks, tile - 1)")),
        ("first from the last query", "", "KEYS-NEVER-VISITED", ("first = tl.maximum(lo - W + 1, 0) // BN", "first = tl.maximum(lo + BM - W, 0) // BN")),
        ("walks on through all", "", "KEYS-NEVER-VISITED", ("tl.where(tile == first, sinks - 1, tile - 1)", "tile - 1")),
    ),
)
