"""Mistakes in kernels that do not look like the model answer, which are named all the same."""

# ruff: noqa: E501  (an edit is one line of source)
# fmt: off

from tests.wrong import of

WRONG = (
    *of(
        "p01-state_in_a_tuple",
        ("maximum of the tile alone", "causal_tiles", "STATE-PARTS", ('torch.maximum(m, s.amax(-1, keepdim=True))', 's.amax(-1, keepdim=True)')),
        ("rescale upside down", "plain", "STATE-PARTS", ('torch.exp2(m - m_new)', 'torch.exp2(m_new - m)')),
        ("own key hidden", "causal", "VISIBLE-KEYS-MASKED DIAGONAL-EXCLUDED", ('device=q.device) > rows', 'device=q.device) >= rows')),
    ),
    *of(
        "p01-tree_of_tiles",
        ("keys numbered in their tile", "causal causal_tiles", "KEYS-AFTER-THE-QUERY OTHER-PAIRS", ('keys > rows[:, None]', 'keys - keys[0] > rows[:, None]')),
        ("v of head 0", "batch_heads layouts", "WRONG-KV-HEAD", ('v[b, h], rows', 'v[b, 0], rows')),
        ("k of batch 0", "batch_heads layouts", "WRONG-BATCH", ('k[b, h], v', 'k[0, h], v')),
    ),
    *of(
        "p01-turned_tiles",
        ("diagonal on the other side", "causal_tiles", "VISIBLE-KEYS-MASKED OTHER-PAIRS", ('k_start - q_start - 1', 'q_start - k_start - 1')),
    ),
    *of(
        "p01-added_in_place",
        ("diagonal hidden", "causal", "VISIBLE-KEYS-MASKED DIAGONAL-EXCLUDED", ('triu_(lo - first + 1)', 'triu_(lo - first)')),
        ("diagonal on the other side", "causal_tiles", "VISIBLE-KEYS-MASKED OTHER-PAIRS", ('triu_(lo - first + 1)', 'triu_(first - lo + 1)')),
        ("last tile skipped", "causal_tiles", "OTHER-KEYS KEYS-NEVER-VISITED", ('first > last', 'first >= last')),
    ),
    *of(
        "p01-merged_tiles",
        ("tiles of the diagonal skipped", "causal causal_tiles", "OTHER-KEYS", ('rows.stop if is_causal', 'rows.start if is_causal')),
    ),
    *of(
        "p01-keys_outside",
        ("accumulator not rescaled", "plain", "TILE-SHARES RESCALE-ACC-MISSING", ('acc[:, :, rows] * rescale[..., None]', 'acc[:, :, rows]')),
    ),
    *of(
        "p02-clamped_while",
        ("sum not reset for the next rows", "plain", "ROWS-ELSEWHERE", ('        total = tl.zeros((R,), tl.float32)\n        c =', '        c ='), ('    while first < rows:', '    total = tl.zeros((R,), tl.float32)\n    while first < rows:')),
        ("last column counted again", "ragged_cols", "LAST-COLUMN-COUNTED-AGAIN", ('tl.where((c + col < cols)[None, :], xs * ws[None, :], 0.0)', 'xs * ws[None, :]')),
        ("summed in 16 bits", "products long_rows", "HALF-ACCUMULATED HALF-PRODUCTS", ('sxn).to(tl.float32)', 'sxn)'), ('c_in * sw).to(tl.float32)', 'c_in * sw)')),
    ),
    *of(
        "p02-by_dot",
        ("stride of w ignored", "w_stride", "WRONG-STRIDE", ('w + c[:, None] * sw', 'w + c[:, None]')),
    ),
    *of(
        "p03-lazy_maximum",
        ("one padded key counted", "ragged ragged_unequal", "PADDING-COUNTED", ('tl.where(n < N, 0.0', 'tl.where(n <= N, 0.0')),
    ),
    *of(
        "p03-clamped_indices",
        ("last key counted again", "ragged", "KEYS-COUNTED-TWICE", ('tl.where(n[None, :] < N, tl.exp(s - now[:, None]), 0.0)', 'tl.exp(s - now[:, None])')),
        ("maximum not carried", "plain ragged lse", "RUNNING-MAX-FORGOTTEN", ('        top = now\n    o = tl.div_rn', '    o = tl.div_rn')),
        ("batch missing for k", "batch_heads", "WRONG-BATCH", ('K += bh // H * skb +', 'K += ')),
    ),
    *of(
        "p03-padded_head_dim",
        ("sum rescaled after the tile was added", "plain ragged", "RESCALE-SUM-LATE STATE-PARTS", ('den = den * fade + tl.sum(p, 1)', 'den = (den + tl.sum(p, 1)) * fade')),
    ),
    *of(
        "p04-two_tiles_per_program",
        ("own key hidden", "plain", "DIAGONAL-EXCLUDED", ('m[:, None] >= n[None, :]', 'm[:, None] > n[None, :]')),
    ),
    *of(
        "p04-halves_of_head_dim",
        ("second half of q with the first of k", "plain", "COLUMNS-APART", ('K + n[:, None] * skn + HALF + d', 'K + n[:, None] * skn + d')),
        ("first half of v twice", "plain", "COLUMNS-APART", ('V + n[:, None] * svn + HALF + d', 'V + n[:, None] * svn + d')),
        ("half of the scores replaced", "plain", "OTHER-COLUMNS", ('tl.trans(k1), s, input', 'tl.trans(k1), input')),
    ),
    *of(
        "p05-persistent",
        ("state of the tile before on each multiprocessor", "batch_heads", "HEADS-APART", ('_kernel[(8,)]', '_kernel[(torch.cuda.get_device_properties(0).multi_processor_count,)]'), ('        m = tl.full((BLOCK_M,), -1.0e30, tl.float32)\n        total = tl.zeros((BLOCK_M,), tl.float32)\n', ''), ('    for work in', '    m = tl.full((BLOCK_M,), -1.0e30, tl.float32)\n    total = tl.zeros((BLOCK_M,), tl.float32)\n    for work in')),
    ),
    *of(
        "p05-launch_per_head",
        ("heads interleaved", "groups", "HEADS-INTERLEAVED", ('j * k.shape[1] // h', 'j % k.shape[1]')),
    ),
    *of(
        "p05-padded_by_the_host",
        ("sum rescaled with its tile", "plain", "STATE-PARTS RESCALE-SUM-LATE", ('sm = sm * old + tl.sum(e, 1)', 'sm = (sm + tl.sum(e, 1)) * old')),
    ),
    *of(
        "p06-unaligned_start",
        ("begins one key late", "unaligned_window", "KEYS-NEVER-VISITED", ('tl.maximum(lo - W + 1, 0)', 'tl.maximum(lo - W + 2, 0)')),
    ),
    *of(
        "p07-two_states",
        ("accumulator of the sinks left out", "sinks", "TILE-SHARES SINK-SHARES", ('(acc * a[:, None] + sink_acc * c[:, None])', '(acc * a[:, None])')),
    ),
    *of(
        "p07-kernel_for_the_sinks",
        ("sinks of the window in both launches", "sinks window_lengths", "KEYS-COUNTED-TWICE SINKS-COUNTED-TWICE", ('(j[None, :] + W <= i[:, None])', '(j[None, :] <= i[:, None])')),
    ),
    *of(
        "p07-gathered_keys",
        ("sinks of the window in the list twice", "overlap", "SINKS-COUNTED-TWICE KEYS-COUNTED-TWICE", ('before = tl.minimum(S, first)', 'before = S')),
    ),
    *of(
        "p07-halves_and_groups",
        ("second half not rescaled", "plain", "TILE-SHARES", ('a1 = f[:, None] * a1 +', 'a1 = a1 +')),
    ),
    *of(
        "p08-heads_apart",
        ("p not transposed for dv", "dv plain", "WEIGHTS-NOT-TRANSPOSED", ('tl.dot(tl.trans(p).to(do.dtype), do,', 'tl.dot(p.to(do.dtype), do,')),
        ("heads summed across groups", "plain groups", "GROUP-SUM-INTERLEAVED", ('group = (k.shape[1], h // k.shape[1])', 'group = (h // k.shape[1], k.shape[1])'), ('unflatten(1, group).sum(2)', 'unflatten(1, group).sum(1)')),
        ("exp of what is in base 2", "dq plain", "DQ-EXP-WITH-LOG2E", ('p = tl.where(n[None, :] <= m[:, None], tl.exp2(s - lse[:, None]), 0.0)', 'p = tl.where(n[None, :] <= m[:, None], tl.exp(s - lse[:, None]), 0.0)')),
    ),
    *of(
        "p08-kernel_per_gradient",
        ("dv of the first head", "plain groups", "GROUP-FIRST-HEAD-DV", ('hk * G + G):\n        for start in range(lo // BM * BM, N, BM):\n            q = _tile(Q + b * sq[0] + h * sq[1], start, sq[2], N, BM, D)\n            do = _tile(DO + b * sd[0] + h * sd[1], start, sd[2], N, BM, D)\n            stats', 'hk * G + 1):\n        for start in range(lo // BM * BM, N, BM):\n            q = _tile(Q + b * sq[0] + h * sq[1], start, sq[2], N, BM, D)\n            do = _tile(DO + b * sd[0] + h * sd[1], start, sd[2], N, BM, D)\n            stats')),
        ("grid of dq rounded down", "ragged", "LAST-ROWS-LEFT-OUT", ('_dq[(triton.cdiv(n, 32), h, b)](', '_dq[(max(n // 32, 1), h, b)](')),
        ("grid of dv rounded down", "ragged", "LAST-ROWS-LEFT-OUT", ('_dv[(triton.cdiv(n, 32), hk, b)](', '_dv[(max(n // 32, 1), hk, b)](')),
    ),
    *of(
        "p09-share_of_the_keys",
        ("share of the logit", "forward_sink_logits sink_logits", "OTHER-SINK-LOGIT", ('tl.sigmoid(lse - zh)', 'tl.sigmoid(zh - lse)')),
        ("logit of head 0", "forward_sink_logits together", "OTHER-SINK-LOGIT", ('zh = tl.load(z + h * sz).to(tl.float32)\n        out', 'zh = tl.load(z).to(tl.float32)\n        out')),
    ),
    *of(
        "p09-one_backward_kernel",
        ("dk stored instead of added", "plain", "LAST-STORE-WINS", ('tl.atomic_add(DK + place, tl.dot(tl.trans(ds), q, input_precision="ieee"), mask=ok)', 'tl.store(DK + place, tl.dot(tl.trans(ds), q, input_precision="ieee"), mask=ok)')),
    ),
)
