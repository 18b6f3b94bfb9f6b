"""Causal grouped-query attention, forward: the query heads of a group share one head of K and V.

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
def _load_keys(ptrs, keys, seqlen, IS_EVEN: tl.constexpr):
    """Load one tile of K or V, (BLOCK_N, HEAD_DIM), with zeros for keys past the end.

    With IS_EVEN no tile reaches past the end, and no mask is paid.
    """
    if IS_EVEN:
        return tl.load(ptrs)
    return tl.load(ptrs, mask=keys[:, None] < seqlen, other=0.0)


@triton.jit
def _fold_key_tile(scores, v, running_max, running_sum, acc, scale_log2):
    """Fold one tile of keys and values into the running state of one tile of queries.

    `scores` (BLOCK_M, BLOCK_N) are the products of queries and keys, -inf where not visible. The
    first tile must hold a visible key for every row: the maximum is finite from then on.
    running_max is in units of scores * scale_log2; scale_log2 is positive.
    """
    new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
    rescale = tl.exp2(running_max - new_max)  # (BLOCK_M,)
    p = tl.exp2(scores * scale_log2 - new_max[:, None])  # (BLOCK_M, BLOCK_N)
    running_sum = running_sum * rescale + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
    running_max = new_max
    return running_max, running_sum, acc


@triton.jit
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om,
    num_q_heads, group_size, seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one query head.

    Algorithm: causal attention, full tiles and then the diagonal. Query head h reads key
    and value head h // group_size in place: K and V are never repeated in memory.
    Grid: (query heads of a section, query tiles, sections), axis 0 launched fastest: the heads of
    one group run side by side and find each other's K and V tiles in L2, and the longest rows of a
    section start first, so that short ones fill the gaps behind them.
    Memory traffic: Q and out once; K and V half a time per query tile and query head, of which the
    heads of a group share what comes from DRAM; no score leaves the chip.
    Limits: last dimension contiguous, HEAD_DIM a power of two from 16 to 128; IS_EVEN only where
    BLOCK_N divides seqlen.
    """
    # >>> step 1: tile, batch and query head (about 4 lines)
    # After it: `batch` and `q_head` are int64 scalars with batch * num_q_heads + q_head =
    # batch_head, which comes from the section on grid axis 2 and the place in it on axis 0;
    # `query_tile` is an int32 one from axis 1, the last tile of the sequence first.
    # <<< step 1
    q_ptr += batch * stride_qb + q_head * stride_qh
    out_ptr += batch * stride_ob + q_head * stride_oh
    lse_ptr += (batch * num_q_heads + q_head) * seqlen

    # >>> step 2: the kv head of the query head (about 3 lines)
    # After it: `k_ptr` and `v_ptr` point at row 0 of the kv head that `q_head` reads, in this
    # batch.
    # <<< step 2

    query_start = query_tile * BLOCK_M
    offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    offs_d = tl.arange(0, HEAD_DIM)  # (HEAD_DIM,)
    in_bounds = offs_m < seqlen  # (BLOCK_M,)
    q_ptrs = q_ptr + offs_m[:, None].to(tl.int64) * stride_qm + offs_d[None, :]
    q = tl.load(q_ptrs, mask=in_bounds[:, None], other=0.0)  # (BLOCK_M, HEAD_DIM)

    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)

    offs_n = tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    # The pointers move from tile to tile; these offsets stay within one and fit in 32 bits.
    k_offs = offs_n[:, None] * stride_kn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    v_offs = offs_n[:, None] * stride_vn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    # Full tiles, every key before every query, and then the tiles on the diagonal, masked.
    full_end = query_start // BLOCK_N * BLOCK_N
    diagonal_end = tl.minimum(query_start + BLOCK_M, seqlen)
    # One loop for both kinds of tiles: a second one would drain the pipeline of loads and fill it
    # again.
    for key_start in range(0, diagonal_end, BLOCK_N):
        keys = key_start + offs_n  # (BLOCK_N,)
        k = _load_keys(k_ptr + k_offs, keys, seqlen, IS_EVEN)
        v = _load_keys(v_ptr + v_offs, keys, seqlen, IS_EVEN)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        # All threads of the program take the same way: full tiles pay for no mask of scores.
        if key_start >= full_end:
            # A key past the end lies after every query that is stored, so this hides it as well.
            visible = keys[None, :] <= offs_m[:, None]  # (BLOCK_M, BLOCK_N)
            scores = tl.where(visible, scores, float("-inf"))
        running_max, running_sum, acc = _fold_key_tile(
            scores, v, running_max, running_sum, acc, scale_log2
        )
        k_ptr += BLOCK_N * stride_kn
        v_ptr += BLOCK_N * stride_vn

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    out_ptrs = out_ptr + offs_m[:, None].to(tl.int64) * stride_om + offs_d[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=in_bounds[:, None])
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + offs_m, lse, mask=in_bounds)


def attention(q, k, v, *, softmax_scale=None):
    """Causal attention in which groups of query heads share a kv head, and each row's log-sum-exp.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, any strides with the last
            dimension contiguous.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype and device of q, same rule for strides;
            num_kv_heads divides num_q_heads, and query head h reads kv head
            h // (num_q_heads // num_kv_heads).
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen), fp32, natural log-sum-exp of the scaled visible scores.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Ainslie et al., GQA, arXiv:2305.13245, section 2.2; Dao, FlashAttention-2,
    arXiv:2307.08691, algorithm 1 and section 3.1.
    """
    _check_arguments(q, k, v, softmax_scale)
    batch, num_q_heads, seqlen, head_dim = q.shape
    num_kv_heads = k.shape[1]
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(head_dim)
    # The kernel scales the maximum in place of the scores, and so wants a scale above 0: the sign
    # moves to q, and a scale of 0 to a number that no score can make count (0 * -inf is NaN).
    if softmax_scale < 0:
        q, softmax_scale = -q, -softmax_scale
    softmax_scale = max(softmax_scale, 1e-30)
    config = _launch_config(head_dim, q.dtype, q.device)
    is_even = seqlen % config["BLOCK_N"] == 0

    # >>> step 3: outputs, grid and launch (about 15 lines)
    # After it: `out` is dense, with shape and dtype of q; `lse` is fp32, (batch, num_q_heads,
    # seqlen); the kernel has run on the grid (query heads of a section, query tiles, sections),
    # whole groups in each section, with **config; both are returned.
    raise NotImplementedError("p05 step 1: tile, batch and query head; see problems/p05/README.md")
    # <<< step 3


def _section_size(num_heads, head_bytes, num_tiles):
    """Heads whose programs start together; the next section starts when these have.

    Given num_heads in all, head_bytes that the programs of one head read again and again, and
    num_tiles programs for each head. Few enough that what they read stays in L2 cache, 16 MiB of
    it; enough for 512 programs, so that no multiprocessor waits; then down to a divisor of
    num_heads.
    """
    size = max(16 * 2**20 // head_bytes, triton.cdiv(512, num_tiles), 1)
    if triton.knobs.runtime.interpret:
        size = 2  # so that in the interpreter small inputs have several sections as well
    size = min(size, num_heads)
    while num_heads % size != 0:
        size -= 1
    # 65535 is the most that a grid can have on axis 2.
    return size if num_heads // size < 65536 else num_heads


def _launch_config(head_dim, dtype, device):
    """Tile sizes, warps, and pipeline stages: each stage holds a tile of K and one of V."""
    shared_kib = 160
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        shared_kib = properties.shared_memory_per_block_optin // 1024
    if dtype == torch.float32 or shared_kib < 96:
        # No tensor cores here (IEEE fp32, compute capability 7.5): larger tiles spill registers.
        block, num_warps = (64, 8) if head_dim <= 64 else (32, 4)
        return {"BLOCK_M": block, "BLOCK_N": block, "num_warps": num_warps, "num_stages": 1}
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
    if k.shape[2] != q.shape[2]:
        raise ValueError(f"seqlen: got {q.shape[2]} in q and {k.shape[2]} in k, expected the same")
    if q.shape[1] % k.shape[1] != 0:
        raise ValueError(
            f"num_kv_heads: got {k.shape[1]}, expected a divisor of num_q_heads, {q.shape[1]}"
        )
    expected = (q.shape[0], k.shape[1], q.shape[2], q.shape[3])
    for name, tensor in (("k", k), ("v", v)):
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {expected}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(3) != 1:
            raise ValueError(f"{name}: got stride {tensor.stride(3)} in head_dim, expected 1")
    if softmax_scale is not None and not math.isfinite(softmax_scale):
        raise ValueError(f"softmax_scale: got {softmax_scale}, expected a finite number")
