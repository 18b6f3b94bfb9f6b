"""The loop of p04 over the key tiles of causal attention, for the problems after it.

Opens with p05.
"""

import triton
import triton.language as tl

from given.softmax import add_tile
from given.tiles import load_keys


@triton.jit
def causal_loop(
    q, k_ptr, v_ptr, stride_kn, stride_vn, query_start, seqlen,
    running_max, running_sum, acc, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    """Add the keys that the queries of one tile see to the running state, and return it.

    Args:
        q: (BLOCK_M, HEAD_DIM), the queries from query_start on.
        k_ptr, v_ptr: the first row of the kv head.
        running_max, running_sum, acc: as `given.softmax.initial_state` returns them.
        IS_EVEN: BLOCK_N divides seqlen.
    """
    queries = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    offs_n = tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    offs_d = tl.arange(0, HEAD_DIM)  # (HEAD_DIM,)
    k_offs = offs_n[:, None] * stride_kn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    v_offs = offs_n[:, None] * stride_vn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    full_end = query_start // BLOCK_N * BLOCK_N
    end_key = tl.minimum(query_start + BLOCK_M, seqlen)
    for key_start in range(0, end_key, BLOCK_N):
        keys = key_start + offs_n  # (BLOCK_N,)
        k = load_keys(k_ptr + k_offs, keys, seqlen, IS_EVEN)
        v = load_keys(v_ptr + v_offs, keys, seqlen, IS_EVEN)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        if key_start >= full_end:
            visible = keys[None, :] <= queries[:, None]  # (BLOCK_M, BLOCK_N)
            scores = tl.where(visible, scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
        running_sum, acc = add_tile(scores, v, running_max, new_max, running_sum, acc, scale_log2)
        running_max = new_max
        k_ptr += BLOCK_N * stride_kn
        v_ptr += BLOCK_N * stride_vn
    return running_max, running_sum, acc
