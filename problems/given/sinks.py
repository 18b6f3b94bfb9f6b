"""The loop of p07 over sinks and window, for the problems after it. Opens with p08."""

import triton
import triton.language as tl

from given.softmax import add_tile
from given.tiles import load_tile
from given.windows import safe_maximum, window_bounds


@triton.jit
def sink_window_bounds(
    query_start, seqlen, window_size, num_sink_tokens, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    """Return begin, first_key, full_start, full_end, end_key of the loop of one query tile.

    The loop visits positions. Those from begin to first_key stand for the tiles of the sinks,
    `begin` for key 0; from first_key on a position is the key itself. The other bounds are those of
    `given.windows.window_bounds`.
    """
    bounds = window_bounds(query_start, seqlen, window_size, BLOCK_M, BLOCK_N)
    first_key, full_start, full_end, end_key = bounds
    begin = first_key - tl.cdiv(tl.minimum(num_sink_tokens, first_key), BLOCK_N) * BLOCK_N
    return begin, first_key, full_start, full_end, end_key


@triton.jit
def is_visible(queries, keys, seqlen, window_size, num_sink_tokens):
    """Whether each query sees each key, (BLOCK_M, BLOCK_N); queries past the end see no sink.

    Args:
        queries: (BLOCK_M, 1).
        keys: (1, BLOCK_N).
    """
    # The first query that no longer sees the key.
    stop = tl.where(keys < num_sink_tokens, seqlen, keys + window_size)  # (1, BLOCK_N)
    return (keys <= queries) & (queries < stop)


@triton.jit
def sink_window_loop(
    q, k_ptr, v_ptr, stride_kn, stride_vn, queries,
    begin, first_key, full_start, full_end, end_key, seqlen, window_size, num_sink_tokens,
    running_max, running_sum, acc, scale_log2, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add the tiles of the sinks, then those of the window, to the running state; return it.

    Args:
        q: (BLOCK_M, HEAD_DIM), one tile of queries.
        k_ptr, v_ptr: the first row of the kv head.
        queries: (BLOCK_M, 1), their numbers, less than seqlen, so that each sees a key.
        begin, first_key, full_start, full_end, end_key: as `sink_window_bounds` returns them.
        running_max, running_sum, acc: as `given.softmax.initial_state` returns them.
    """
    # disable_licm: loop-invariant values hoisted out of the loop would take registers.
    for position in tl.range(begin, end_key, BLOCK_N, disable_licm=True):
        key_start = tl.where(position < first_key, position - begin, position)
        k = load_tile(k_ptr, key_start, stride_kn, seqlen, BLOCK_N, HEAD_DIM)
        v = load_tile(v_ptr, key_start, stride_vn, seqlen, BLOCK_N, HEAD_DIM)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        if (position < full_start) | (position >= full_end):  # full tiles pay for no mask
            keys = key_start + tl.arange(0, BLOCK_N)  # (BLOCK_N,)
            visible = is_visible(queries, keys[None, :], seqlen, window_size, num_sink_tokens)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
        safe_max = safe_maximum(new_max)  # (BLOCK_M,)
        running_sum, acc = add_tile(scores, v, running_max, safe_max, running_sum, acc, scale_log2)
        running_max = new_max
    return running_max, running_sum, acc


sink_window_walk = sink_window_loop  # its name until 0.25, for files of that release
