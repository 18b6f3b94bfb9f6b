"""Mistakes in p05."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.mutants.forward import ACC, DEFAULT_SCALE, DIVIDE, LSE, NEW_MAX, RESCALE, SUM, WEIGHTS
from tests.wrong import of

_KV = "kv_head = q_head // group_size"
_K = "k_ptr += batch * k_strides[0] + kv_head * k_strides[1]"
_V = "v_ptr += batch * v_strides[0] + kv_head * v_strides[1]"
_Q = "q_ptr += batch * q_strides[0] + q_head * q_strides[1]"
_OUT = "out_ptr += batch * out_strides[0] + q_head * out_strides[1]"
_LSE_AT = "lse_ptr += (batch * num_q_heads + q_head) * seqlen"
_START = "query_start = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M"
_MASK = "visible = keys[None, :] <= queries[:, None]"
_FULL = "full_end = query_start // BLOCK_N * BLOCK_N"
_END = "end_key = tl.minimum(query_start + BLOCK_M, seqlen)"
_LOOP = "for key_start in range(0, end_key, BLOCK_N):"
_SIZES = "num_q_heads, num_q_heads // k.shape[1], seqlen, softmax_scale"

WRONG = (
    *of(
        "p05",
        ("group size for the kv head", "", "WRONG-KV-HEAD", (_KV, "kv_head = q_head % group_size")),
        ("kv head by multiplication", "", "WRONG-BATCH", (_KV, "kv_head = q_head * group_size")),
        ("kv head one too far", "", "TILE-OUTSIDE", (_KV, "kv_head = (q_head + 1) // group_size")),
        ("group of all heads", "", "HEADS-ZERO", (_KV, "kv_head = q_head // num_q_heads")),
        ("v by the query head", "", "WRONG-KV-HEAD", (_V, _V.replace("kv_head", "q_head"))),
        ("v of kv head 0", "", "WRONG-KV-HEAD", (_V, "v_ptr += batch * v_strides[0]")),
        ("k without batch", "", "WRONG-BATCH", (_K, "k_ptr += kv_head * k_strides[1]")),
        ("v by the batch stride of q", "", "READ-OUTSIDE", (_V, _V.replace("v_strides[0]", "q_strides[0]"))),
        ("v by the head stride of q", "", "READ-OUTSIDE", (_V, _V.replace("v_strides[1]", "q_strides[1]"))),
        ("batch counted in kv heads for k", "", "READ-OUTSIDE", (_K, "k_ptr += (batch * (num_q_heads // group_size) + kv_head) * k_strides[1]")),
        ("out by the kv head", "", "STORED-ELSEWHERE", (_OUT, _OUT.replace("q_head", "kv_head"), 1), (_KV, ""), ("meet strides\n", "meet strides\n    kv_head = q_head // group_size\n")),
        ("lse without batch", "lse_heads", "STORED-ELSEWHERE", (_LSE_AT, "lse_ptr += q_head * seqlen")),
        ("lse by the kv head", "", "STORED-ELSEWHERE", (_LSE_AT, "lse_ptr += (batch * num_q_heads + q_head // group_size) * seqlen")),
        ("lse by batch times heads", "", "TILE-OUTSIDE", (_LSE_AT, "lse_ptr += (batch + q_head * num_q_heads) * seqlen")),
        ("out without batch", "", "STORED-ELSEWHERE", (_OUT, "out_ptr += q_head * out_strides[1]")),
        ("q without batch", "", "STORED-ELSEWHERE", (_Q, "q_ptr += q_head * q_strides[1]")),
        ("tile by axis 0", "", "ROWS-STORED-TWICE", (_START, "query_start = tl.program_id(0) * BLOCK_M")),
        ("group as a factor at the launch", "", "HEADS-ZERO", (_SIZES, "num_q_heads, num_q_heads * k.shape[1], seqlen, softmax_scale")),
        ("sizes exchanged", "", "TILE-OUTSIDE", (_SIZES, "num_q_heads // k.shape[1], num_q_heads, seqlen, softmax_scale")),
        ("kv heads for the query heads", "", "TILE-OUTSIDE", (_SIZES, "k.shape[1], num_q_heads // k.shape[1], seqlen, softmax_scale")),
        ("batch for the group", "", "WRONG-KV-HEAD", (_SIZES, "num_q_heads, batch, seqlen, softmax_scale")),
        ("diagonal taken as full", "", "KEYS-AFTER-THE-QUERY", (_FULL, "full_end = query_start + BLOCK_M")),
        ("mask one early", "", "DIAGONAL-EXCLUDED", (_MASK, "visible = keys[None, :] + 1 <= queries[:, None]")),
        ("walk without the last tile", "", "KEYS-NEVER-VISITED", (_END, "end_key = tl.minimum(query_start, seqlen)")),
        ("walk of half steps", "", "TILE-OUTSIDE", (_LOOP, "for key_start in range(0, end_key, BLOCK_N // 2):")),
        ("rescale squared", "", "TILE-SHARES", (RESCALE, "rescale = tl.exp2(2 * (running_max - new_max))  #")),
        ("rescaled by exp", "", "TILE-SHARES", (RESCALE, RESCALE.replace("exp2", "exp"))),
        ("weights by exp", "", "EXPONENTIALS-MIXED", (WEIGHTS, WEIGHTS.replace("exp2", "exp"))),
        ("sum rescaled twice", "", "ROWS-SCALED", (SUM, SUM.replace("rescale +", "rescale * rescale +"))),
        ("sum of weights squared", "", "ROWS-SCALED", (SUM, SUM.replace("tl.sum(p, 1)", "tl.sum(p * p, 1)"))),
        ("rescale added", "", "", (ACC, ACC.replace("acc * rescale[:, None]", "acc + rescale[:, None]"))),
        ("maximum of the tile alone", "", "SUM-OUT-OF-RANGE", (NEW_MAX, "new_max = tl.max(scores, 1) * scale_log2")),
        ("lse of weights alone", "", "LSE-WITHOUT-MAX", (LSE, "lse = tl.log2(running_sum) * LN_2")),
        ("lse minus", "", "OTHER-LSE", (LSE, "lse = (running_max - tl.log2(running_sum)) * LN_2")),
        ("divided by the square root", "", "ROWS-SCALED", (DIVIDE, "out = acc / tl.sqrt(running_sum)[:, None]")),
        ("scale of the heads", "", "OTHER-SCALE", (DEFAULT_SCALE, DEFAULT_SCALE.replace("math.sqrt(head_dim)", "math.sqrt(head_dim / 4)"))),
        ("q from the pointer of out", "", "UNWRITTEN-READ", ("q = load_tile(q_ptr, query_start, q_strides[2]", "q = load_tile(out_ptr, query_start, out_strides[2]")),
        ("q from the pointer of k", "plain", "INPUT-NEVER-READ", ("q = load_tile(q_ptr, query_start, q_strides[2]", "q = load_tile(k_ptr, query_start, k_strides[2]")),
        ("q by the kv head", "groups", "STORED-ELSEWHERE", ("q_ptr += batch * q_strides[0] + q_head * q_strides[1]", "q_ptr += batch * q_strides[0] + q_head // group_size * q_strides[1]")),
    ),
    *of(
        "p05-group_loop",
        ("heads interleaved", "", "HEADS-INTERLEAVED", ("h = hk * G + g", "h = g * HKV + hk")),
        ("last head of the group left out", "", "KEYS-NEVER-VISITED", ("for g in range(G):", "for g in range(G - 1):")),
        ("one head too many", "", "TILE-OUTSIDE", ("for g in range(G):", "for g in range(1, G + 1):")),
        ("out by kv heads", "", "STORED-ELSEWHERE", ("row = (b * HKV * G + h) * N + m", "row = (b * HKV + h) * N + m")),
        ("walk without the diagonal", "", "KEYS-NEVER-VISITED", ("tl.minimum(tile * BM + BM, N)", "tl.minimum(tile * BM, N)")),
        ("mask of columns", "", "DIAGONAL-EXCLUDED", ("n[None, :] > m[:, None], top", "n[None, :] >= m[:, None], top")),
    ),
)
