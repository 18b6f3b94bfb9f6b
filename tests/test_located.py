"""Single slips in model answers: the one name that each has, its step, and its line."""

import pytest

from grader.spec.problem import load_problem
from tests import forked
from tests.harness import edited, judge, model_answer
from tests.shares import drawn

_quick = forked.quick

# By name: problem, checks, old text, new text, cause, step, how the line begins, or one behind it.
SLIPS = {
    "keys of the mask counted in the tile": (
        ("p01", "causal", "causal_tiles"),
        ("torch.arange(k_start, k_stop, d", "torch.arange(0, k_stop - k_start, d"),
        ("KEYS-AFTER-THE-QUERY", 5, "scores = scores.masked_fill_("),
    ),
    "masked by 0": (
        ("p01", "causal"),
        ("> query[:, None], -math.inf", "> query[:, None], 0.0"),
        ("MASKED-SCORES-NOT-HIDDEN", 5, ""),
    ),
    "rescaled without exp": (
        ("p01", "one_key", "plain"),
        ("torch.exp(running_max - new_max)", "running_max - new_max"),
        ("STATE-PARTS", 3, "rescale ="),
    ),
    "a maximum that stays at minus infinity": (
        ("p01", "plain", "lse"),
        ("new_max = torch.maximum(", "new_max = torch.minimum("),
        ("STATE-PARTS", 2, "new_max = torch.minimum("),
    ),
    "one column too many": (
        ("p02", "one_program", "ragged_rows", "ragged_cols"),
        ("col_mask = col_ids < cols", "col_mask = col_ids <= cols"),
        ("MASK-TOO-WIDE", 4, "col_mask ="),
    ),
    "weights without exp": (
        ("p01", "one_key", "plain"),
        ("scores.sub_(new_max).exp_()", "scores.sub_(new_max)"),
        ("STATE-PARTS", 2, "tile_sum = weights"),
    ),
    "rows of x by their number": (
        ("p02", "plain"),
        ("row_ids[:, None] * stride_xm + col_ids", "row_ids[:, None] * rows + col_ids"),
        ("ROWS-NEVER-READ", 5, "x_ptrs = x_ptr + row_ids"),
    ),
    "strides of k passed for v": (
        ("p03", "layouts"),
        ("k.stride()[:3], v.stride()[:3]", "k.stride()[:3], k.stride()[:3]"),
        ("WRONG-STRIDE", 2, "q, k, v, out, lse, q.stride()"),
    ),
    "a grid without the tiles": (
        ("p03", "batch_heads"),
        ('(batch * num_q_heads * triton.cdiv(seqlen_q, tiles["BLOCK_M"]),)', "(batch,)"),
        ("HEADS-NEVER-COMPUTED", 2, "grid = (batch,)"),
    ),
    "heads of another axis": (
        ("p03", "batch_heads"),
        ("(tl.program_id(0) // num_query_tiles)", "(tl.program_id(1) // num_query_tiles)"),
        ("ROWS-STORED-TWICE", 3, ""),
    ),
    "rows of tiles that lie apart": (
        ("p02", "plain"),
        ("tl.program_id(0).to(tl.int64) * BLOCK_M", "tl.program_id(0).to(tl.int64) * 2 * BLOCK_M"),
        ("ROWS-NEVER-STORED", 2, "row_ids ="),
    ),
    "a batch without its stride": (
        ("p03", "batch_heads"),
        ("q_ptr += batch * q_strides[0]", "q_ptr += batch"),
        ("READ-OUTSIDE", 3, "q_ptr"),
    ),
    "a head without its stride": (
        ("p08", "batch_heads", "groups"),
        ("head_q_ptr = q_ptr + q_head * q_strides[1]", "head_q_ptr = q_ptr + q_head"),
        ("READ-OUTSIDE", 6, "head_q_ptr ="),
    ),
    "q by the pointer of v": (
        ("p05", "plain"),
        ("q = load_tile(q_ptr,", "q = load_tile(v_ptr,"),
        ("INPUT-NEVER-READ", 1, "q = load_tile(v_ptr,"),
    ),
    "weights of one address": (
        ("p02", "plain"),
        ("w_ptr + col_ids * stride_wn", "w_ptr + col_mask * stride_wn"),
        ("WRONG-STRIDE", 5, "w_ptrs = w_ptr + col_mask"),
    ),
    "x loaded for nothing": (
        ("p02", "plain"),
        ("x_tile.to(tl.float32) * w_tile", "w_tile.to(tl.float32) * w_tile"),
        ("INPUT-NEVER-READ", 6, "products ="),
    ),
    "the row stride of k for v": (
        ("p06", "layouts"),
        ("v = load_tile(v_ptr, key_start, stride_vn", "v = load_tile(v_ptr, key_start, stride_kn"),
        ("WRONG-STRIDE", 1, "v = load_tile("),
    ),
    "a loop that never runs": (
        ("p06", "plain"),
        ("range(first_key, end_key, BLOCK_N)", "range(end_key, first_key, BLOCK_N)"),
        ("KEYS-NEVER-VISITED", 1, "for key_start in range(end_key"),
    ),
    "the maximum made safe the other way": (
        ("p06", "plain"),
        ('new_max == float("-inf"), 0.0', 'new_max != float("-inf"), 0.0'),
        ("TILE-SHARES", 2, "safe_max = tl.where("),
    ),
    "the maximum that a step made safe is not": (
        ("p06", "window"),
        ('new_max == float("-inf"), 0.0', "new_max == 0.0, 0.0"),
        ("NAN-FROM-INF-MINUS-INF", 2, "safe_max = tl.where("),
    ),
    "the maximum that is not safe is passed": (
        ("p06", "window"),
        ("add_tile(scores, v, running_max, safe_max", "add_tile(scores, v, running_max, new_max"),
        ("NAN-FROM-INF-MINUS-INF", 1, "running_sum, acc = add_tile("),
    ),
    "full tiles begin at the first": (
        ("p06", "window", "unaligned_window"),
        ("tl.cdiv(tl.maximum(end_key - window_size, 0), BLOCK_N) * BLOCK_N", "first_key"),
        ("KEYS-BEFORE-THE-WINDOW", 3, "full_start ="),
    ),
    "the diagonal is never masked": (
        ("p06", "plain"),
        ("if (key_start < full_start) | (key_start >= full_end):", "if key_start < full_start:"),
        ("KEYS-AFTER-THE-QUERY", 1, "if key_start < full_start:"),
    ),
    "sinks and other keys exchanged": (
        ("p07", "window", "sinks", "overlap"),
        (
            "num_sink_tokens, seqlen, keys + window",
            "num_sink_tokens, keys + window_size, seqlen)  #",
        ),
        ("OTHER-PAIRS", 1, "visible = (keys"),
    ),
    "no query tile is on the diagonal": (
        ("p09", "plain"),
        ("diagonal_end = tl.minimum(key_start + BLOCK_N, seqlen)", "diagonal_end = key_start"),
        ("KEYS-AFTER-THE-QUERY", 3, "diagonal_end = key_start"),
    ),
    "each chunk begins one query late": (
        ("p09", "chunks"),
        (
            "begin = window_size + chunk * chunk_size",
            "begin = window_size + chunk * chunk_size + 1",
        ),
        ("KEYS-NEVER-VISITED", 6, "begin = window_size + chunk"),
    ),
    "a maximum that is a minimum": (
        ("p06", "lse"),
        ("tl.max(scores, 1) * scale_log2", "tl.min(scores, 1) * scale_log2"),
        ("STATE-PARTS", 1, "new_max = tl.maximum("),
    ),
    "a loop that the compiler leaves out": (
        ("p03", "plain"),
        ("range(0, seqlen_k, BLOCK_N)", "range(seqlen_k, seqlen_k, BLOCK_N)"),
        ("KEYS-NEVER-VISITED", None, "for key_start in range(seqlen_k"),
    ),
    "a first key below 0": (
        ("p06", "plain"),
        ("first_key = tl.maximum(", "first_key = tl.minimum("),
        ("TILE-OUTSIDE", 3, "first_key = "),
    ),
    "a head that is added and not multiplied": (
        ("p08", "plain"),
        (
            "head_q_ptr = q_ptr + q_head * q_strides[1]",
            "head_q_ptr = q_ptr + q_head + q_strides[1]",
        ),
        ("TILE-OUTSIDE", 6, "head_q_ptr = "),
    ),
    "a maximum that forgets the tiles before": (
        ("p01", "causal_tiles"),
        (
            "torch.maximum(running_max, scores.amax(dim=-1, keepdim=True))",
            "scores.amax(dim=-1, keepdim=True)",
        ),
        ("STATE-PARTS", 2, "new_max = scores.amax("),
    ),
    "an accumulator that is never read": (
        ("p01", "plain"),
        ("torch.addcmul(tile_acc, acc, rescale)", "torch.addcmul(tile_acc, new_acc, rescale)"),
        ("TILE-SHARES", 3, "new_acc = torch.addcmul(tile_acc, new_acc"),
    ),
    "the old maximum subtracted": (
        ("p06", "plain"),
        ("= _safe_maximum(new_max)", "= _safe_maximum(running_max)"),
        ("TILE-SHARES", 1, "safe_max = "),
    ),
    "a scale for the scores": (
        ("p08", "dq"),
        ('tl.dot(q, tl.trans(k), input_precision="ieee") * scale_log2', "scale_log2"),
        ("PRODUCT-LEFT-OUT", 3, "scores = scale_log2"),
    ),
    "no column in the address": (
        ("p02", "plain", "x_strides"),
        (" + col_ids[None, :] * stride_xn", ""),
        ("WRONG-STRIDE", 5, "x_ptrs = x_ptr + row_ids"),
    ),
    "a product that leaves x out": (
        ("p02", "plain", "half"),
        ("x_tile.to(tl.float32) *", "w_tile.to(tl.float32)[None, :] *"),
        ("INPUT-NEVER-READ", 6, "products = w_tile"),
    ),
    "a choice by the scores": (
        ("p04", "plain"),
        ("tl.where(visible, scores,", "tl.where(scores, visible,"),
        ("PRODUCT-LEFT-OUT", 1, "scores = tl.where(scores"),
    ),
    "an end of the full tiles that is too far": (
        ("p06", "plain"),
        ("query_start // BLOCK_N * BLOCK_N", "query_start * BLOCK_N * BLOCK_N"),
        ("KEYS-AFTER-THE-QUERY", 3, "full_end = "),
    ),
    "a maximum over the smallest scores": (
        ("p04", "plain"),
        ("tl.maximum(running_max, tl.max(", "tl.maximum(running_max, tl.min("),
        ("NAN-FROM-INF-MINUS-INF", 1, "new_max = "),
    ),
    "a pointer that no line of its step moves": (
        ("p03", "batch_heads"),
        ("    v_ptr += batch * v_strides[0] + head * v_strides[1]\n", ""),
        ("WRONG-KV-HEAD", 3, "k_ptr += batch"),
    ),
    "a bound of the queries left as it was given": (
        ("p09", "plain"),
        ("    end_query = tl.minimum(key_start + BLOCK_N - 1 + window_size, seqlen)\n", ""),
        ("NO-PRODUCT", 3, "diagonal_end, full_end, end_query = key_start"),
    ),
    "the only line of a step left out": (
        ("p06", "window"),
        ('    safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)  # (BLOCK_M,)\n', ""),
        ("NAN-FROM-INF-MINUS-INF", 2, ""),
    ),
    "a sum that is never set again": (
        ("p03", "plain"),
        ("        running_sum = running_sum * rescale + tl.sum(p, 1)\n", ""),
        ("SUM-OUT-OF-RANGE", 4, "running_sum = tl.zeros("),
    ),
    "a sum to which nothing is added": (
        ("p03", "plain"),
        ("running_sum * rescale + tl.sum(p, 1)", "running_sum * rescale"),
        ("STATE-PARTS", 4, "running_sum = running_sum * rescale"),
    ),
    "one of two addresses left as it was given": (
        ("p02", "w_stride"),
        ("        w_ptrs = w_ptr + col_ids * stride_wn\n", ""),
        ("WRONG-STRIDE", 5, "w_ptrs = w_ptr + col_ids"),
    ),
    "a bound left as it was given": (
        ("p07", "sinks"),
        ("    begin = first_key - tl.cdiv(sink_end, BLOCK_N) * BLOCK_N\n", ""),
        ("KEYS-NEVER-VISITED", 2, "begin = first_key"),
    ),
}


@pytest.mark.parametrize("name", drawn(SLIPS, 10))
def test_a_slip_has_one_name_its_step_and_its_line(name: str) -> None:
    (problem, *checks), edit, (id, step, begins) = SLIPS[name]
    text = edited(model_answer(problem), edit)
    judged = judge(text, load_problem(problem), checks=checks)
    assert judged.named == {id}
    lines = text.splitlines()
    for check in (judged.of(one) for one in checks):
        if check.diagnosis is None:
            continue
        assert check.step == step
        shown = [n for n in (check.message.line, *check.message.fed_by) if n]
        assert any(lines[n - 1].strip().startswith(begins) for n in shown) or not begins
