"""Mistakes in p04."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.mutants.forward import (
    ACC,
    DEFAULT_SCALE,
    DIVIDE,
    LSE,
    NEW_MAX,
    PRODUCTS,
    RESCALE,
    SUM,
    WEIGHTS,
)
from tests.wrong import of

_FIRST_MAX = 'running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)'
_LOOP = "for key_start in range(0, end_key, BLOCK_N):"
_MASK = "visible = keys[None, :] <= queries[:, None]"
_FULL = "full_end = query_start // BLOCK_N * BLOCK_N"
_END = "end_key = tl.minimum(query_start + BLOCK_M, seqlen)"
_QUERIES = "queries = query_start + tl.arange(0, BLOCK_M)"
_Q = "load_tile(q_ptr, query_start, q_strides[2]"
_OUT = "store_tile(out_ptr, query_start, out_strides[2]"
_LSE_AT = "lse_ptr += (batch * num_q_heads + head) * seqlen"
_K = "k_ptr += batch * k_strides[0] + head * k_strides[1]"

WRONG = (
    *of(
        "p04",
        ("diagonal taken as full", "", "KEYS-AFTER-THE-QUERY", (_FULL, "full_end = query_start + BLOCK_M")),
        ("every tile masked", "", "MASK-INSIDE-THE-TILE", (_FULL, "full_end = 0"), (_MASK, "visible = keys[None, :] <= (queries - tl.min(queries, 0))[:, None]")),
        ("walk from the diagonal", "plain", "OTHER-PAIRS", (_LOOP, "for key_start in range(full_end, end_key, BLOCK_N):")),
        ("walk from the second tile", "", "OTHER-PAIRS", (_LOOP, "for key_start in range(BLOCK_N, end_key, BLOCK_N):")),
        ("walk of half steps", "", "TILE-OUTSIDE", (_LOOP, "for key_start in range(0, end_key, BLOCK_N // 2):")),
        ("walk one tile too long and unmasked", "", "KEYS-AFTER-THE-QUERY", (_END, "end_key = tl.minimum(query_start + BLOCK_M + BLOCK_N, seqlen)"), (_FULL, "full_end = query_start + 2 * BLOCK_M")),
        ("last key hidden", "", "VISIBLE-KEYS-MASKED", (_MASK, _MASK + " - (keys[None, :] == seqlen - 1)")),
        ("keys counted in tiles", "", "MASK-INSIDE-THE-TILE", ("keys = key_start + offs_n", "keys = key_start * BLOCK_N + offs_n")),
        ("mask by the tile number", "plain", "MASK-BY-TILE-NUMBER", (_MASK, "visible = keys[None, :] <= (queries - tl.min(queries, 0) + tl.min(queries, 0) // 64)[:, None]")),
        ("keys without start", "", "MASK-INSIDE-THE-TILE", ("keys = key_start + offs_n", "keys = offs_n")),
        ("q of the tile number", "", "STORED-ELSEWHERE", (_Q, _Q.replace("query_start", "query_tile"))),
        ("out at the tile number", "", "STORED-ELSEWHERE", (_OUT, _OUT.replace("query_start", "query_tile"))),
        ("lse of the first tile", "", "STORED-ELSEWHERE", ("lse_ptr + queries, lse", "lse_ptr + tl.arange(0, BLOCK_M), lse")),
        ("maximum not scaled", "plain", "MAXIMUM-IN-ANOTHER-UNIT", (NEW_MAX, "new_max = tl.maximum(running_max, tl.max(scores, 1))")),
        ("maximum of the tile alone", "", "SUM-OUT-OF-RANGE", (NEW_MAX, "new_max = tl.max(scores, 1) * scale_log2")),
        ("maximum of all", "half", "STATE-PARTS", (NEW_MAX, "new_max = tl.maximum(running_max, tl.max(tl.max(scores, 1), 0) * scale_log2)")),
        ("maximum starts at plus infinity", "plain", "NAN-FROM-PLUS-INFINITY", (_FIRST_MAX, _FIRST_MAX.replace("-inf", "inf"))),
        ("maximum starts at 1e30", "plain", "SUM-OUT-OF-RANGE", (_FIRST_MAX, _FIRST_MAX.replace('float("-inf")', "1.0e30"))),
        ("minimum for maximum", "", "NAN-FROM-INF-MINUS-INF", (NEW_MAX, NEW_MAX.replace("maximum", "minimum").replace("tl.max(", "tl.min("))),
        ("batch and head exchanged", "", "TILE-OUTSIDE", ("batch = (batch_head // num_q_heads)", "batch = (batch_head % num_q_heads)"), ("head = (batch_head % num_q_heads)", "head = (batch_head // num_q_heads)")),
        ("batch stride of k for head", "", "WRONG-BATCH", (_K, "k_ptr += batch * k_strides[1] + head * k_strides[0]")),
        ("head of k missing", "", "WRONG-KV-HEAD", (_K, "k_ptr += batch * k_strides[0]")),
        ("lse by heads first", "", "STORED-ELSEWHERE", (_LSE_AT, "lse_ptr += (head * (tl.num_programs(0) * tl.num_programs(2) // num_q_heads) + batch) * seqlen")),
        ("lse over ln 2", "", "OUTPUT-SCALED", (LSE, "lse = (running_max + tl.log2(running_sum)) / LN_2")),
        ("lse of the last sum", "", "LSE-WITHOUT-SUM", (LSE, "lse = running_max * LN_2")),
        ("divided by the maximum", "", "ROWS-SCALED", (DIVIDE, "out = acc / running_max[:, None]")),
        ("times the sum", "", "ROWS-SCALED", (DIVIDE, "out = acc * running_sum[:, None]")),
        ("scale 0 taken for none", "", "OTHER-SCALE", (DEFAULT_SCALE, "return float(softmax_scale or 1.0 / math.sqrt(head_dim))")),
        ("scale of head_dim", "", "SCALE-SQUARED OTHER-SCALE", (DEFAULT_SCALE, DEFAULT_SCALE.replace("math.sqrt(head_dim)", "head_dim"))),
        ("sign of the scale lost", "", "OTHER-SCALE", ("q, softmax_scale = -q, -softmax_scale", "softmax_scale = -softmax_scale")),
        ("rescaled by exp", "", "TILE-SHARES", (RESCALE, RESCALE.replace("exp2", "exp"))),
        ("weights by exp", "plain", "EXPONENTIALS-MIXED", (WEIGHTS, WEIGHTS.replace("exp2", "exp"))),
        ("sum of all weights", "", "ROWS-SCALED", (SUM, "running_sum = running_sum * rescale + tl.sum(tl.sum(p, 1), 0)")),
        ("v from k", "", "WRONG-PRODUCT", ("v = load_keys(v_ptr + v_offs", "v = load_keys(k_ptr + v_offs")),
        ("k from v", "", "WRONG-OPERAND", ("k = load_keys(k_ptr + k_offs", "k = load_keys(v_ptr + k_offs")),
        ("scores of q and v", "", "WRONG-OPERAND", (PRODUCTS, PRODUCTS.replace("tl.trans(k)", "tl.trans(v)"))),
        ("maximum begins at zero", "", "", ('running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)', "running_max = tl.zeros((BLOCK_M,), tl.float32)")),
        ("sum and maximum begin as a key of zero", "", "ROWS-SCALED", ("running_sum = tl.zeros((BLOCK_M,), tl.float32)", "running_sum = tl.full((BLOCK_M,), 1.0, tl.float32)"), ('running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)', "running_max = tl.zeros((BLOCK_M,), tl.float32)")),
        ("grid of tiles of 128", "", "ROWS-NEVER-STORED", ("num_tiles = triton.cdiv(seqlen, block_m)", "num_tiles = triton.cdiv(seqlen, 2 * block_m)")),
        ("product counted once more", "", "TILE-SHARES", (ACC, ACC.replace("acc * rescale[:, None]", "acc * rescale[:, None] + acc"))),
        ("k advanced by head_dim rows", "head_dims", "K-AND-V-APART", ("k_ptr += BLOCK_N * stride_kn", "k_ptr += k_offs.shape[1] * stride_kn")),
    ),
    *of(
        "p04-from_the_diagonal",
        ("first tile never", "", "KEYS-NEVER-VISITED", ("while start >= 0:", "while start > 0:")),
        ("begins one tile early", "", "KEYS-NEVER-VISITED", ("last = (tl.minimum(start_m + BM, N) - 1) // BN * BN", "last = (tl.minimum(start_m + BM, N) - 1) // BN * BN - BN")),
        ("k goes the other way", "", "TILE-OUTSIDE", ("k_ptrs -= BN * skn", "k_ptrs += BN * skn")),
        ("k without stride", "plain", "POINTER-WITHOUT-STRIDE", ("k_ptrs -= BN * skn", "k_ptrs -= BN")),
        ("mask of the first tile kept", "", "VISIBLE-KEYS-MASKED", ("        n = start + tl.arange(0, BN)\n        k = ", "        k = ")),
        ("own key hidden", "", "DIAGONAL-EXCLUDED", ("m[:, None] < n[None, :]", "m[:, None] <= n[None, :]")),
        ("fade of the new maximum", "", "TILE-SHARES", ("fade = tl.exp(top - safe)", "fade = tl.exp(now - safe)")),
        ("den not faded", "", "ROWS-SCALED", ("den = tl.fma(den, fade, tl.sum(p, axis=1))", "den += tl.sum(p, axis=1)")),
        ("acc faded after", "", "TILE-SHARES", ("        acc = acc * fade[:, None]\n        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=\"ieee\")", "        acc = tl.dot(p.to(v.dtype), v, acc, input_precision=\"ieee\") * fade[:, None]")),
        ("steps of 2 tiles", "", "OTHER-PAIRS", ("        start -= BN\n", "        start -= 2 * BN\n")),
        ("scale after the mask", "", "SCALE-MISSING OTHER-SCALE", ('input_precision="ieee") * scale\n        s = tl.where(m', 'input_precision="ieee") + scale\n        s = tl.where(m')),
        ("tile by heads", "", "ROWS-STORED-TWICE", ("start_m = pid // heads * BM", "start_m = pid % heads * BM")),
    ),
    *of(
        "p04-two_tiles_per_program",
        ("diagonal begins too late", "", "KEYS-AFTER-THE-QUERY", ("middle = tile * BM // BN * BN", "middle = (tile + 1) * BM // BN * BN")),
        ("second loop from the start", "", "KEYS-COUNTED-TWICE", ("V, skn, svn, m, middle, end, N", "V, skn, svn, m, 0, end, N")),
        ("second loop missing", "", "KEYS-NEVER-VISITED", ("middle, end, N, top, den, acc, scale, D, BN, True", "middle, middle, N, top, den, acc, scale, D, BN, True")),
        ("first loop missing", "", "KEYS-NEVER-VISITED", ("m, 0, middle, N", "m, 0, 0, N")),
        ("end by BN", "", "KEYS-NEVER-VISITED", ("end = tl.minimum(N, (tile + 1) * BM)", "end = tl.minimum(N, tile * BM + BN)")),
        ("state begun again", "", "OTHER-KEYS", ("    top, den, acc = _walk_tile(\n        q, K, V, skn, svn, m, middle", "    top = tl.zeros([BM], tl.float32) - float(\"inf\")\n    top, den, acc = _walk_tile(\n        q, K, V, skn, svn, m, middle")),
        ("lse units", "", "LSE-UNITS-MIXED", ("top * 0.6931471805599453 + tl.log(den)", "top + tl.log(den)")),
        ("mask of zero", "", "KEYS-AFTER-THE-QUERY", ("tl.where(m[:, None] >= n[None, :], 0, float(\"-inf\"))", "tl.where(m[:, None] >= n[None, :], 0, -1.0)")),
    ),
)
