"""The online softmax of p03, for the problems after it. Opens with p04."""

import triton
import triton.language as tl


@triton.jit
def initial_state(BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Return running_max, running_sum (BLOCK_M,) and acc (BLOCK_M, HEAD_DIM) before any key."""
    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
    return running_max, running_sum, acc


@triton.jit
def add_tile(scores, v, running_max, new_max, running_sum, acc, scale_log2):
    """Add one tile of keys and values to running_sum and acc, and return both.

    Args:
        scores: (BLOCK_M, BLOCK_N), products of queries and keys, -inf where not visible.
        v: (BLOCK_N, HEAD_DIM).
        running_max, new_max: (BLOCK_M,), the running maximum without and with this tile, in units
            of scores * scale_log2. new_max is finite.
        running_sum: (BLOCK_M,), acc: (BLOCK_M, HEAD_DIM), fp32, relative to running_max.
    """
    rescale = tl.exp2(running_max - new_max)  # (BLOCK_M,)
    p = tl.exp2(scores * scale_log2 - new_max[:, None])  # (BLOCK_M, BLOCK_N)
    running_sum = running_sum * rescale + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
    return running_sum, acc


fold_tile = add_tile  # its name until 0.25, for files of that release
