"""Mistakes in p03."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.mutants.forward import ACC, DIVIDE, LAUNCH_SCALE, LSE, NEW_MAX, RESCALE, SUM, WEIGHTS
from tests.wrong import of

_LOOP = "range(0, seqlen_k, BLOCK_N)"
_CLAMPED = "tl.where(n[None, :] < N, tl.exp(s - now[:, None]), 0.0)"
_RESCALED = RESCALE + "new_max)"
_TOTAL = "total += tl.sum(tl.exp(scores - largest[:, None]), 1)"

WRONG = (
    *of(
        "p03",
        ("lengths exchanged at the launch", "unequal", "ARGUMENTS-EXCHANGED", ("num_q_heads, seqlen_q, seqlen_k, softmax_scale", "num_q_heads, seqlen_k, seqlen_q, softmax_scale")),
        ("maximum of the row not kept", "row_logsumexp", "LSE-INFINITE", ("        row_max = new_max\n", "")),
        ("weights of the row relative to the old maximum", "row_logsumexp", "LSE-INFINITE", ("tl.exp2(x - new_max)", "tl.exp2(x - row_max)")),
        ('scale of dim', 'plain', 'SCALE-SQUARED OTHER-SCALE', (LAUNCH_SCALE, 'LOG2_E.value / head_dim,')),
        ('scale of length', 'plain', 'OTHER-SCALE', (LAUNCH_SCALE, 'LOG2_E.value / seqlen_k ** 0.5,')),
        ('scale log2e twice', 'plain', 'OTHER-SCALE EXP-WITH-LOG2E', (LAUNCH_SCALE, 'softmax_scale * LOG2_E.value ** 2,')),
        ("scale by ln2", "plain", "OTHER-SCALE", (LAUNCH_SCALE, "softmax_scale * LN_2.value,")),
        ('scale of wrong dim', 'plain', 'OTHER-SCALE SCALE-MISSING', (LAUNCH_SCALE, 'num_q_heads ** -0.5 * LOG2_E.value,')),
        ('rescale by exp', 'plain', 'TILE-SHARES', (_RESCALED, 'rescale = tl.exp(running_max - new_max)')),
        ('rescale twice for acc', 'plain', 'TILE-SHARES', (ACC, ACC.replace('rescale[:, None]', '(rescale * rescale)[:, None]'))),
        ('rescale scaled again', 'plain', 'TILE-SHARES', (_RESCALED, 'rescale = tl.exp2((running_max - new_max) * scale_log2)')),
        ('max of the tile alone', 'large_logits plain', 'SUM-OUT-OF-RANGE', (NEW_MAX, 'new_max = tl.max(scores, 1) * scale_log2')),
        ('new tile rescaled too', 'plain', 'TILE-SHARES', (SUM, 'running_sum = (running_sum + tl.sum(p, 1)) * rescale'), (ACC, 'acc = tl.dot(p.to(v.dtype), v, acc, input_precision="ieee") * rescale[:, None]')),
        ('divided in the loop', 'plain', 'TILE-SHARES', (ACC, ACC + ' / running_sum[:, None]'), (DIVIDE, 'out = acc')),
        ('divided in the loop and after', 'plain', 'TILE-SHARES', (ACC, ACC + ' / running_sum[:, None]')),
        ("output before division", "plain", "NOT-NORMALISED", (DIVIDE, "out = acc")),
        ('divided by the last sum', 'plain', '', (DIVIDE, 'out = acc / tl.sum(p, 1)[:, None]')),
        ('sum of the first axis', 'plain', 'REDUCED-OVER-QUERIES', (SUM, 'running_sum = running_sum * rescale + tl.sum(p, 0)')),
        ('every other tile', 'plain', 'OTHER-KEYS KEYS-NEVER-VISITED', (_LOOP, 'range(0, seqlen_k, 2 * BLOCK_N)')),
        ("half steps", "plain", "TILE-OUTSIDE", (_LOOP, "range(0, seqlen_k, BLOCK_N // 2)")),
        ('second tile on', 'plain', 'KEYS-NEVER-VISITED OTHER-KEYS', (_LOOP, 'range(BLOCK_N, seqlen_k, BLOCK_N)')),
        ('all but the last tile', 'plain', 'KEYS-NEVER-VISITED OTHER-KEYS LAST-KEY-TILE-DROPPED', (_LOOP, 'range(0, seqlen_k - BLOCK_N, BLOCK_N)')),
        ('weights with the old max', 'plain', 'WEIGHTS-INFINITE', (WEIGHTS + 'new_max', 'p = tl.exp2(scores * scale_log2 - running_max')),
        ("acc in 16 bits", "ieee", "ROUNDED-TO-16-BITS", (ACC, ACC + ".to(tl.float16).to(tl.float32)")),
        ("lse in base 2", "lse", "LSE-BASE-2", (LSE, "lse = running_max + tl.log2(running_sum)")),
        ('lse mixed', 'lse', 'LSE-SUM-IN-LOG2', (LSE, 'lse = running_max * LN_2 + tl.log2(running_sum)')),
        ('lse log of base 2 max', 'lse', 'LSE-LOG-SCALED LSE-UNITS-MIXED', (LSE, 'lse = running_max + tl.log(running_sum)')),
        ("lse by LOG2_E", "lse", "OUTPUT-SCALED LSE-BASE-2", (LSE, LSE.replace("LN_2", "LOG2_E"))),
        ("lse minus", "lse", 'OTHER-LSE', (LSE, "lse = (running_max - tl.log2(running_sum)) * LN_2")),
        ('sum begins at one', 'ragged', '', ('running_sum = tl.zeros((BLOCK_M,), tl.float32)', 'running_sum = tl.full((BLOCK_M,), 1.0, tl.float32)'), ('running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)', 'running_max = tl.zeros((BLOCK_M,), tl.float32)')),
        ('q stride for k', 'layouts', 'WRONG-STRIDE', ('k_offs = offs_n[:, None] * k_strides[2]', 'k_offs = offs_n[:, None] * q_strides[2]')),
        ('head stride for batch', 'batch_heads', "WRONG-BATCH", ('k_ptr += batch * k_strides[0] + head * k_strides[1]', 'k_ptr += batch * k_strides[1] + head * k_strides[0]')),
        ('v pointer stands', 'plain', 'POINTER-STANDS-STILL', ('        v_ptr += BLOCK_N * v_strides[2]\n', '')),
        ('k steps one row', 'plain', 'POINTER-WITHOUT-STRIDE', ('k_ptr += BLOCK_N * k_strides[2]', 'k_ptr += k_strides[2]')),
        ('padding of one', 'ragged', 'PADDING-COUNTED', ('tl.where(visible, scores, float("-inf"))', 'tl.where(visible, scores, -1.0)')),
        ('padding one key more', 'ragged', 'PADDING-COUNTED', ('visible = keys[None, :] < seqlen_k', 'visible = keys[None, :] <= seqlen_k')),
        ('padding one key fewer', 'ragged', 'VISIBLE-KEYS-MASKED', ('visible = keys[None, :] < seqlen_k', 'visible = keys[None, :] < seqlen_k - 1')),
        ("q masked by seqlen_k", "unequal", "QUERIES-NEVER-LOADED", ("mask=queries[:, None] < seqlen_q, other=0.0)", "mask=queries[:, None] < seqlen_k, other=0.0)")),
        ("rescaled along the columns", "plain", "ALONG-ANOTHER-AXIS", (ACC, ACC.replace("rescale[:, None]", "rescale[None, :]"))),
        ("first row times the tile twice", "plain", "QUERIES-NEVER-LOADED", ("queries = query_start + tl.arange(0, BLOCK_M)", "queries = query_start * BLOCK_M + tl.arange(0, BLOCK_M)")),
        ("q of half its columns", "plain", "OTHER-COLUMNS", ("mask=queries[:, None] < seqlen_q, other=0.0)", "mask=(queries[:, None] < seqlen_q) & (offs_d[None, :] < 32), other=0.0)")),
        ("all rows of q are row one", "plain", "WRONG-STRIDE", ("q_ptr + queries[:, None].to(tl.int64) * q_strides[2]", "q_ptr + q_strides[2]")),
        ("maximum by ln 2", "plain half", "STATE-PARTS", ("tl.max(scores, 1) * scale_log2", "tl.max(scores, 1) * LN_2")),
        ("lse the sum alone", "lse", "OTHER-LSE", ("lse = (running_max + tl.log2(running_sum)) * LN_2", "lse = running_sum")),
    ),
    *of(
        "p03-three_passes",
        ('scale in one pass only', 'plain', 'ROWS-SCALED', (_TOTAL, _TOTAL.replace('scores -', 'scores * scale -'))),
        ('sum not of the max', 'plain', 'ROWS-SCALED', (_TOTAL, 'total += tl.sum(tl.exp(scores), 1)')),
        ('sum replaced', 'plain', 'SUM-OVERWRITTEN ROWS-SCALED', (_TOTAL, _TOTAL.replace('+=', '='))),
        ('acc replaced', 'plain', 'PRODUCT-DISCARDED ACC-OVERWRITTEN', ('acc += tl.dot', 'acc = tl.dot')),
        ('scale upside down', 'plain', 'SCALE-INVERTED OTHER-SCALE', ('scale = head_dim**-0.5 if', 'scale = head_dim**0.5 if')),
        ('scale of head_dim', 'plain', 'SCALE-SQUARED OTHER-SCALE', ('scale = head_dim**-0.5 if', 'scale = 1 / head_dim if')),
        ('exp2 in all', 'plain', 'EXP2-WITHOUT-LOG2E OTHER-SCALE', ('tl.exp(scores', 'tl.exp2(scores', 2)),
        ("exp2 in one", "plain", "", ("p = tl.exp(scores", "p = tl.exp2(scores")),
        ('grid swapped', 'batch_heads', "TILE-OUTSIDE", ('tl.program_id(2).to(tl.int64), tl.program_id(1)', 'tl.program_id(1).to(tl.int64), tl.program_id(2)')),
    ),
    *of(
        "p03-split_keys",
        ('splits weighted alike', 'plain', 'TILE-SHARES SOFTMAX-OF-EACH-TILE', ('weight = tl.exp2(lse - new_largest)', 'weight = tl.exp2(lse - lse)')),
        ('combined by exp', 'plain', 'TILE-SHARES', ('weight = tl.exp2(lse - new_largest)', 'weight = tl.exp(lse - new_largest)')),
        ('combined sum unweighted', 'plain', 'ROWS-SCALED', ('total = total * rescale + weight', 'total = total * rescale + 1.0')),
        ('combined acc not rescaled', 'plain', 'TILE-SHARES', ('acc = acc * rescale[:, None] + partial', 'acc = acc + partial')),
        ('partial not divided', 'plain', 'TILE-SHARES', ('acc = acc / tl.where(empty, 1.0, running_sum)[:, None]', 'acc = acc')),
        ('one split fewer', 'plain', 'OTHER-KEYS TILE-SHARES', ('for split in range(NUM_SPLITS):', 'for split in range(NUM_SPLITS - 1):')),
        ('lse of a split without max', 'plain', 'TILE-SHARES', ('running_max + tl.log2(tl.where(empty', 'tl.log2(tl.where(empty')),
        ('keys of a split overlap', 'plain', 'KEYS-COUNTED-TWICE OTHER-KEYS', ('range(split * keys_per_split, end', 'range(split * keys_per_split // 2, end')),
    ),
    *of(
        "p03-clamped_indices",
        ('weight not masked', 'ragged', 'KEYS-COUNTED-TWICE PADDED-KEYS-COUNTED', (_CLAMPED, 'tl.exp(s - now[:, None])')),
        ('weight not masked and rows that wrap', 'ragged', 'PADDED-KEYS-COUNTED KEYS-COUNTED-TWICE ROWS-STORED-TWICE', (_CLAMPED, 'tl.exp(s - now[:, None])'), ('m = pid % tiles * BM + tl.arange(0, BM)', 'm = (pid % tiles * BM + tl.arange(0, BM)) % M')),
    ),
    *of(
        "p03-one_row_of_heads",
        ('lse doubled', '', 'OUTPUT-SCALED', ('top + tl.log(den), mask', '2 * (top + tl.log(den)), mask')),
        ('columns of v move on', 'plain', 'K-AND-V-APART', ('v_desc.load([head * N + first, 0])', 'v_desc.load([head * N + first, first])')),
        ('keys of the next head', 'lse_lengths', 'PADDING-COUNTED PADDED-KEYS-COUNTED', ('        s = tl.where(first + tl.arange(0, BN)[None, :] < N, s, float("-inf"))\n', '')),
    ),
)
