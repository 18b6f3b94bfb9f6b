"""Mistakes in p06."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.mutants.forward import ACC, DEFAULT_SCALE, LSE, NEW_MAX, RESCALE, WEIGHTS
from tests.wrong import of

_LOOP = "for key_start in range(first_key, end_key, BLOCK_N):"
_TEST = "if (key_start < full_start) | (key_start >= full_end):"
_MASK = "visible = (keys[None, :] <= queries) & (keys[None, :] > queries - window_size)"
_HIDE = 'scores = tl.where(visible, scores, float("-inf"))'
_ADD = 'scores += tl.where(visible, 0.0, float("-inf"))'
_SAFE = 'safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)'
_FIRST = "first_key = tl.maximum(query_start - window_size + 1, 0) // BLOCK_N * BLOCK_N"
_END = "end_key = tl.minimum(query_start + BLOCK_M, seqlen)"
_START = "full_start = tl.cdiv(tl.maximum(end_key - window_size, 0), BLOCK_N) * BLOCK_N"
_FULL = "full_end = query_start // BLOCK_N * BLOCK_N"
_V = "v_ptr += batch * v_strides[0] + kv_head * v_strides[1]"
_CLAMP = "window_size = min(window_size, seqlen)"
_SIZES = "num_q_heads, num_q_heads // k.shape[1], seqlen, window_size, softmax_scale"
_DISTANCE = "seen = (distance >= 0) & (distance < W)"
_SEEN = "(n[None, :] <= m[:, None]) & (n[None, :] + W > m[:, None])"

WRONG = (
    *of(
        "p06",
        ("masked for the maximum alone", "plain", "KEYS-AFTER-THE-QUERY", (_TEST, "shown = scores\n        " + _TEST), ('scores = tl.where(visible, scores, float("-inf"))', 'shown = tl.where(visible, scores, float("-inf"))'), ("tl.max(scores, 1)", "tl.max(shown, 1)")),
        ("window to both sides", "", "KEYS-AFTER-THE-QUERY", (_MASK, "visible = (keys[None, :] < queries + window_size) & (keys[None, :] > queries - window_size)")),
        ("window of whole tiles", "", "VISIBLE-KEYS-MASKED KEYS-BEFORE-THE-WINDOW OTHER-PAIRS", (_MASK, _MASK.replace("> queries - window_size", "> (queries - window_size) // BLOCK_N * BLOCK_N"))),
        ("window counted from the tile", "", "KEYS-BEFORE-THE-WINDOW", (_MASK, _MASK.replace("> queries - window_size", "> queries // BLOCK_N * BLOCK_N - window_size"))),
        ("window and diagonal both off", "", "WINDOW-SHIFTED", (_MASK, "visible = (keys[None, :] < queries) & (keys[None, :] >= queries - window_size)")),
        ("window alone masked", "", "KEYS-AFTER-THE-QUERY", (_MASK, "visible = keys[None, :] > queries - window_size")),
        ("window half", "", "VISIBLE-KEYS-MASKED", (_MASK, _MASK.replace("- window_size", "- window_size // 2"))),
        ("added mask one key larger", "unaligned_window", "WINDOW-ONE-LARGER", (_MASK, _MASK.replace("> queries", ">= queries")), (_HIDE, _ADD)),
        ("added mask of half the window", "", "VISIBLE-KEYS-MASKED", (_MASK, _MASK.replace("- window_size", "- window_size // 2")), (_HIDE, _ADD)),
        ("mask without the tile", "", "MASK-INSIDE-THE-TILE", ("keys = key_start + tl.arange(0, BLOCK_N)", "keys = tl.arange(0, BLOCK_N)")),
        ("mask transposed", "plain", "MASK-TRANSPOSED", (_MASK, "visible = (keys[None, :] >= queries) & (keys[None, :] < queries + window_size)")),
        ("begins at the diagonal", "", "KEYS-NEVER-VISITED", (_FIRST, "first_key = query_start // BLOCK_N * BLOCK_N")),
        ("begins a window too late", "", "KEYS-NEVER-VISITED", (_FIRST, _FIRST.replace("- window_size + 1", "- window_size + BLOCK_N"))),
        ("begins at the last query's window", "", "KEYS-NEVER-VISITED", (_FIRST, _FIRST.replace("query_start -", "query_start + BLOCK_M -"))),
        ("begins at key 0", "", "KEYS-BEFORE-THE-WINDOW", (_FIRST, "first_key = 0"), (_TEST, "if key_start >= full_end:")),
        ("begins where the window does", "unaligned_window", "TILES-NOT-ALIGNED", (_FIRST, _FIRST.replace(" // BLOCK_N * BLOCK_N", ""))),
        ("begins at a tile number", "", "TILES-NOT-ALIGNED", (_FIRST, "first_key = tl.maximum(query_start - window_size + 1, 0) // BLOCK_N")),
        ("begins before key 0", "", "TILE-OUTSIDE", (_FIRST, "first_key = (query_start - window_size + 1) // BLOCK_N * BLOCK_N")),
        ("ends with the first query", "", "KEYS-BEFORE-THE-WINDOW", (_END, "end_key = tl.minimum(query_start + 1, seqlen)")),
        ("ends at the window", "window_lengths", "KEYS-NEVER-VISITED", (_END, "end_key = tl.minimum(query_start + window_size, seqlen)")),
        ("full tiles begin at the first tile", "", "KEYS-BEFORE-THE-WINDOW", (_START, "full_start = first_key")),
        ("full tiles end with the diagonal", "", "KEYS-AFTER-THE-QUERY", (_FULL, "full_end = (query_start + BLOCK_M) // BLOCK_N * BLOCK_N")),
        ("full bounds exchanged", "", "ARGUMENTS-EXCHANGED", ("queries, first_key, full_start, full_end,\n        end_key", "queries, first_key, full_end, full_start,\n        end_key")),
        ("masked where full", "", "KEYS-AFTER-THE-QUERY", (_TEST, "if (key_start >= full_start) & (key_start < full_end):")),
        ("masked where both", "", "KEYS-AFTER-THE-QUERY", (_TEST, "if (key_start < full_start) & (key_start >= full_end):")),
        ("safe maximum for all", "", "", (_SAFE, "safe_max = tl.maximum(new_max, 0.0)")),
        ("safe maximum of the old", "", "TILE-SHARES", (_SAFE, _SAFE.replace("0.0, new_max", "0.0, new_max * 0.0"))),
        ("steps without the last", "", "KEYS-NEVER-VISITED", (_LOOP, "for key_start in range(first_key, end_key - BLOCK_N, BLOCK_N):")),
        ("steps of two tiles", "", "KEYS-NEVER-VISITED", (_LOOP, "for key_start in range(first_key, end_key, 2 * BLOCK_N):")),
        ("window clamped too early", "", "OTHER-WINDOW", (_CLAMP, 'window_size = min(window_size, tiles["BLOCK_M"])')),
        ("window clamped one short", "", "OTHER-WINDOW", (_CLAMP, "window_size = min(window_size, seqlen - 1)")),
        ("window counts others alone", "", "WINDOW-ONE-LARGER", (_CLAMP, "window_size = min(window_size, seqlen) + 1")),
        ("seqlen and window exchanged", "", "ARGUMENTS-EXCHANGED", (_SIZES, "num_q_heads, num_q_heads // k.shape[1], window_size, seqlen, softmax_scale")),
        ("group for heads", "", "TILE-OUTSIDE", (_SIZES, "num_q_heads // k.shape[1], num_q_heads, seqlen, window_size, softmax_scale")),
        ("v of the query head", "", "WRONG-KV-HEAD", (_V, _V.replace("kv_head", "q_head"))),
        ("rescaled by exp", "", "TILE-SHARES", (RESCALE, RESCALE.replace("exp2", "exp"))),
        ("weights by exp", "", "EXPONENTIALS-MIXED", (WEIGHTS, WEIGHTS.replace("exp2", "exp"))),
        ("acc not rescaled", "", "RESCALE-ACC-MISSING", (ACC, ACC.replace("acc * rescale[:, None]", "acc"))),
        ("maximum of the tile alone", "", "SUM-OUT-OF-RANGE", (NEW_MAX, "new_max = tl.max(scores, 1) * scale_log2")),
        ("lse of the scaled log", "", "LSE-SUM-IN-LOG2", (LSE, "lse = running_max * LN_2 + tl.log2(running_sum)")),
        ("scale of the window", "", "OTHER-SCALE", (DEFAULT_SCALE, DEFAULT_SCALE.replace("math.sqrt(head_dim)", "math.sqrt(2 * head_dim)"))),
        ("first key not rounded", "unaligned_window", "TILES-NOT-ALIGNED", ("first_key = tl.maximum(query_start - window_size + 1, 0) // BLOCK_N * BLOCK_N", "first_key = tl.maximum(query_start - window_size + 1, 0)")),
    ),
    *of(
        "p06-distances",
        ("window one larger", "", "WINDOW-ONE-LARGER KEYS-BEFORE-THE-WINDOW", (_DISTANCE, "seen = (distance >= 0) & (distance <= W)")),
        ("window one smaller", "", "VISIBLE-KEYS-MASKED", (_DISTANCE, "seen = (distance >= 0) & (distance < W - 1)")),
        ("distance without sign", "", "KEYS-AFTER-THE-QUERY", (_DISTANCE, "seen = (distance > -W) & (distance < W)")),
        ("distance the other way", "", "MASK-TRANSPOSED", ("distance = m[:, None] - n[None, :]", "distance = n[None, :] - m[:, None]")),
        ("one round fewer", "", "KEYS-NEVER-VISITED", ("rounds = triton.cdiv(BM + window - 1, BN) + 1", "rounds = triton.cdiv(window, BN)")),
        ("key 0 left out", "", "KEYS-NEVER-VISITED", ("(last - i >= 0)", "(last - i > 0)")),
        ("skips by the wrong query", "", "KEYS-NEVER-VISITED", ("(last - i) * BN + BN > tile * BM - W + 1", "(last - i) * BN + BN > tile * BM + BM - W")),
        ("last tile not begun", "", "KEYS-NEVER-VISITED", ("last = (tl.minimum(tile * BM + BM, N) - 1) // BN", "last = tl.minimum(tile * BM, N - 1) // BN")),
        ("hidden as zero", "", "MASKED-SCORES-NOT-HIDDEN", ('* scale, -1.0e30)', '* scale, 0.0)'), ("p = tl.where(seen, tl.exp(s - now[:, None]), 0.0)", "p = tl.exp(s - now[:, None])")),
        ("hidden as -30", "", "MASKED-SCORES-NOT-HIDDEN", ('* scale, -1.0e30)', '* scale, -30.0)'), ("p = tl.where(seen, tl.exp(s - now[:, None]), 0.0)", "p = tl.exp(s - now[:, None])")),
        ("masked before scaled", "odd_scales", "MASKED-BEFORE-SCALED", ("tl.dot(q, k, input_precision=\"ieee\") * scale, -1.0e30)", "tl.dot(q, k, input_precision=\"ieee\"), -1.0e30) * scale")),
    ),
    *of(
        "p06-unaligned_start",
        ("begins one late", "", "KEYS-NEVER-VISITED", ("begin = tl.maximum(lo - W + 1, 0)", "begin = tl.maximum(lo - W + 2, 0)")),
        ("begins at the last row", "", "KEYS-NEVER-VISITED", ("begin = tl.maximum(lo - W + 1, 0)", "begin = tl.maximum(lo + BM - W, 0)")),
        ("pointers from key 0", "", "K-AND-V-APART", ("(begin + tl.arange(0, BN))[:, None] * skn", "tl.arange(0, BN)[:, None] * skn")),
        ("all pointers from key 0", "", "OTHER-PAIRS", ("(begin + tl.arange(0, BN))[:, None] * skn", "tl.arange(0, BN)[:, None] * skn"), ("(begin + tl.arange(0, BN))[:, None] * svn", "tl.arange(0, BN)[:, None] * svn")),
        ("keys from 0", "", "TILE-OUTSIDE", ("n = start + tl.arange(0, BN)", "n = start - begin + tl.arange(0, BN)")),
        ("window one larger", "", "WINDOW-ONE-LARGER KEYS-BEFORE-THE-WINDOW", (_SEEN, _SEEN.replace("+ W >", "+ W >="))),
        ("end not visited", "", "KEYS-NEVER-VISITED", ("tl.range(begin, end, BN)", "tl.range(begin, end - BN, BN)")),
        ("group of v", "", "WRONG-KV-HEAD", ("V + b * svb + h // G * svh", "V + b * svb + h % G * svh")),
        ("base of the old", "", "TILE-SHARES", ("p = tl.exp2(s - base)", "p = tl.exp2(s - tl.where(top > float(\"-inf\"), top, 0.0)[:, None])")),
    ),
    *of(
        "p06-three_loops",
        ("middle loop masked as the first", "", "KEYS-COUNTED-TWICE", ("    full_start = tl.minimum(full_start, full_end)\n", "")),
    ),
)
