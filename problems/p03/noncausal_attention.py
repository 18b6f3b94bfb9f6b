"""Non-causal attention, forward, in one Triton kernel; seqlen_q and seqlen_k may differ.

What lies outside the marked steps is given and correct.
"""

import math

import torch
import triton
import triton.language as tl

HEAD_DIMS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
LOG2_E = math.log2(math.e)
LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _fold_key_tile(q, k, v, visible, running_max, running_sum, acc, scale_log2):
    """Fold one tile of keys and values into the running state of one tile of queries.

    `visible` says which keys count, (BLOCK_M, BLOCK_N) or (1, BLOCK_N); None means all of them.
    The first tile must hold a visible key for every row: the maximum is finite from then on.
    running_max is in units of scores * scale_log2; scale_log2 is positive.
    """
    # >>> step 2: scores of one key tile (about 3 lines)
    # After it: `scores` (BLOCK_M, BLOCK_N) fp32 = q @ k^T, not scaled yet, minus infinity where not
    # visible. IEEE precision: by default tl.dot rounds fp32 to TF32.
    # <<< step 2

    # >>> step 3: online softmax update (about 6 lines)
    # After it: running_max (BLOCK_M,), of scores * scale_log2, running_sum (BLOCK_M,) and acc
    # (BLOCK_M, HEAD_DIM), all fp32, cover this tile too. Both dot operands in v's dtype.
    # <<< step 3
    return running_max, running_sum, acc


@triton.jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om,
    num_q_heads, seqlen_q, seqlen_k, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one head.

    Algorithm: hold the query tile, walk the key tiles from left to right, fold each one into
    (running_max, running_sum, acc), divide once at the end. Full key tiles are loaded without a
    mask; the ragged last one, where there is one, is masked.
    Grid: one axis, batch * num_q_heads * query tiles; neighbours share a head: K and V stay in L2.
    Memory traffic: Q and out once, K and V once per query tile; no score ever leaves the chip.
    Limits: last dimension contiguous, seqlen_k >= 1, HEAD_DIM a power of two from 16 to 128.
    """
    # >>> step 1: the query tile (about 15 lines)
    # After it: the pointers are at the first row of this program's head, batch and head as int64:
    # an offset can pass 2^31. lse_ptr too: lse is dense. Neighbouring programs share a head.
    # `offs_m` (BLOCK_M,) int32: rows of the tile in the sequence. `offs_d` (HEAD_DIM,) int32.
    # `in_bounds` (BLOCK_M,): the row exists. `q` (BLOCK_M, HEAD_DIM): the tile, missing rows 0.
    # <<< step 1

    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)

    offs_n = tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    # The pointers move from tile to tile; these offsets stay within one and fit in 32 bits.
    k_offs = offs_n[:, None] * stride_kn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    v_offs = offs_n[:, None] * stride_vn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    full_end = seqlen_k // BLOCK_N * BLOCK_N
    for _ in range(0, full_end, BLOCK_N):
        k = tl.load(k_ptr + k_offs)  # (BLOCK_N, HEAD_DIM)
        v = tl.load(v_ptr + v_offs)  # (BLOCK_N, HEAD_DIM)
        running_max, running_sum, acc = _fold_key_tile(
            q, k, v, None, running_max, running_sum, acc, scale_log2
        )
        k_ptr += BLOCK_N * stride_kn
        v_ptr += BLOCK_N * stride_vn
    if full_end < seqlen_k:
        exists = full_end + offs_n < seqlen_k  # (BLOCK_N,)
        k = tl.load(k_ptr + k_offs, mask=exists[:, None], other=0.0)
        v = tl.load(v_ptr + v_offs, mask=exists[:, None], other=0.0)
        running_max, running_sum, acc = _fold_key_tile(
            q, k, v, exists[None, :], running_max, running_sum, acc, scale_log2
        )

    # >>> step 4: divide and store (about 5 lines)
    # After it: out (in its own dtype) and lse (fp32, natural logarithm) hold the rows of this tile;
    # rows past seqlen_q are not written.
    # <<< step 4


def attention(q, k, v, *, softmax_scale=None):
    """Attention of every query over every key, and the log-sum-exp of each row of scores.

    Args:
        q: (batch, num_q_heads, seqlen_q, head_dim), fp16, bf16 or fp32, any strides with the last
            dimension contiguous.
        k, v: (batch, num_q_heads, seqlen_k, head_dim), q's dtype, device and rule for strides.
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen_q), fp32, natural log-sum-exp of the scaled scores.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Dao, FlashAttention-2, arXiv:2307.08691, algorithm 1; the online softmax is from Milakov
    and Gimelshein, arXiv:1805.02867.
    """
    _check_arguments(q, k, v, softmax_scale)
    batch, num_q_heads, seqlen_q, head_dim = q.shape
    seqlen_k = k.shape[2]
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(head_dim)
    # The kernel scales the maximum in place of the scores, and so wants a scale above 0: the sign
    # moves to q, and a scale of 0 to a number that no score can make count (0 * -inf is NaN).
    if softmax_scale < 0:
        q, softmax_scale = -q, -softmax_scale
    softmax_scale = max(softmax_scale, 1e-30)
    config = _launch_config(head_dim, q.dtype, q.device)

    # >>> step 5: outputs, grid and launch (about 10 lines)
    # After it: the function has returned out, dense, shape and dtype of q, and lse (batch,
    # num_q_heads, seqlen_q) fp32, both written by _attention_kernel.
    raise NotImplementedError("p03 step 1: the query tile; see problems/p03/README.md")
    # <<< step 5


def _launch_config(head_dim, dtype, device):
    """Tile sizes, warps, and pipeline stages: each stage holds a tile of K and one of V."""
    shared_kib = 160
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        shared_kib = properties.shared_memory_per_block_optin // 1024
    if dtype == torch.float32 or shared_kib < 96:
        # No tensor cores here (IEEE fp32, compute capability 7.5): larger tiles spill registers.
        block, num_warps = (64, 8) if head_dim <= 64 else (32, 4)
        return {"BLOCK_M": block, "BLOCK_N": block, "num_warps": num_warps, "num_stages": 2}
    if shared_kib < 160:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    # Programs share a multiprocessor: the softmax of one runs under the dots of the others.
    return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}


def _check_arguments(q, k, v, softmax_scale):
    """Raise ValueError, naming the argument, unless the kernel supports this call."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(
                f"{name}: got {tensor.ndim} dimensions, expected 4: batch, heads, seqlen, head_dim"
            )
        if 0 in tensor.shape[:2]:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected none empty")
        if tensor.shape[2] == 0:
            raise ValueError(f"seqlen: got 0 in {name}, expected at least 1")
    if q.dtype not in DTYPES:
        raise ValueError(f"dtype: got {q.dtype}, expected one of float16, bfloat16, float32")
    if q.shape[3] not in HEAD_DIMS:
        raise ValueError(f"head_dim: got {q.shape[3]}, expected one of 16, 32, 64, 128")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name}: got {tensor.dtype}, expected the dtype of q, {q.dtype}")
        if tensor.device != q.device:
            raise ValueError(f"{name}: got {tensor.device}, expected the device of q, {q.device}")
    expected = (q.shape[0], q.shape[1], k.shape[2], q.shape[3])
    for name, tensor in (("k", k), ("v", v)):
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {expected}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(3) != 1:
            raise ValueError(f"{name}: got stride {tensor.stride(3)} in head_dim, expected 1")
    if softmax_scale is not None and not math.isfinite(softmax_scale):
        raise ValueError(f"softmax_scale: got {softmax_scale}, expected a finite number")
