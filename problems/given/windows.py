"""The bounds of p06 and the safe maximum, for the problems after it. Opens with p07."""

import triton
import triton.language as tl


@triton.jit
def window_bounds(query_start, seqlen, window_size, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return first_key, full_start, full_end, end_key of the loop of one query tile.

    The loop visits the tiles from first_key to end_key. From full_start to full_end every
    query of the tile sees every key; where full_start is past full_end there are no such
    tiles. All but end_key are tile boundaries.
    """
    end_key = tl.minimum(query_start + BLOCK_M, seqlen)
    first_key = tl.maximum(query_start - window_size + 1, 0) // BLOCK_N * BLOCK_N
    full_start = tl.cdiv(tl.maximum(end_key - window_size, 0), BLOCK_N) * BLOCK_N
    full_end = query_start // BLOCK_N * BLOCK_N
    return first_key, full_start, full_end, end_key


@triton.jit
def safe_maximum(new_max):
    """Return new_max (BLOCK_M,), 0 for rows that have met no visible key: -inf - -inf is NaN."""
    return tl.where(new_max == float("-inf"), 0.0, new_max)
