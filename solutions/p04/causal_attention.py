"""Causal attention, forward: full tiles below the diagonal, masked tiles on it, none above.

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
    num_q_heads, seqlen, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, IS_EVEN: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one head.

    Algorithm: hold the query tile and walk the key tiles from left to right. Tiles whose every key
    lies before every query of the tile need no mask; the tiles on the diagonal are masked; those
    above it are never visited, which halves the work.
    Grid: (heads of a section, query tiles, sections), axis 0 launched fastest: in each section the
    longest rows of all heads start first and the short ones fill the gaps behind them, and K and V
    of a section's heads stay in L2 while its programs read them.
    Memory traffic: Q and out once, K and V half a time per query tile; no score leaves the chip.
    Limits: last dimension contiguous, HEAD_DIM a power of two from 16 to 128; IS_EVEN only where
    BLOCK_N divides seqlen.
    """
    # >>> step 1: longest rows first (about 2 lines)
    batch_head = tl.program_id(2) * tl.num_programs(0) + tl.program_id(0)
    query_tile = tl.num_programs(1) - 1 - tl.program_id(1)
    # <<< step 1
    # Divided as 32 bits, which is faster; int64 because they will meet strides.
    batch = (batch_head // num_q_heads).to(tl.int64)
    head = (batch_head % num_q_heads).to(tl.int64)
    q_ptr += batch * stride_qb + head * stride_qh
    k_ptr += batch * stride_kb + head * stride_kh
    v_ptr += batch * stride_vb + head * stride_vh
    out_ptr += batch * stride_ob + head * stride_oh
    lse_ptr += (batch * num_q_heads + head) * seqlen
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
    # >>> step 2: the ends of the full tiles and of the walk (about 2 lines)
    full_end = query_start // BLOCK_N * BLOCK_N
    diagonal_end = tl.minimum(query_start + BLOCK_M, seqlen)
    # <<< step 2

    # >>> step 3: the walk (about 13 lines)
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
    # <<< step 3

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    out_ptrs = out_ptr + offs_m[:, None].to(tl.int64) * stride_om + offs_d[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=in_bounds[:, None])
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + offs_m, lse, mask=in_bounds)


def attention(q, k, v, *, softmax_scale=None):
    """Attention of every query over itself and the keys before it, and the log-sum-exp of each row.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, any strides with the last
            dimension contiguous.
        k, v: as q, each with strides of its own.
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen), fp32, natural log-sum-exp of the scaled visible scores.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Dao, FlashAttention-2, arXiv:2307.08691, algorithm 1; the online softmax is from Milakov
    and Gimelshein, arXiv:1805.02867.
    """
    _check_arguments(q, k, v, softmax_scale)
    batch, num_q_heads, seqlen, head_dim = q.shape
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(head_dim)
    # The kernel scales the maximum in place of the scores, and so wants a scale above 0: the sign
    # moves to q, and a scale of 0 to a number that no score can make count (0 * -inf is NaN).
    if softmax_scale < 0:
        q, softmax_scale = -q, -softmax_scale
    softmax_scale = max(softmax_scale, 1e-30)
    config = _launch_config(head_dim, q.dtype, q.device)
    is_even = seqlen % config["BLOCK_N"] == 0

    # >>> step 4: outputs, grid and launch (about 13 lines)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    num_heads = batch * num_q_heads
    num_tiles = triton.cdiv(seqlen, config["BLOCK_M"])
    section = _section_size(num_heads, 2 * seqlen * head_dim * k.element_size(), num_tiles)
    grid = (section, num_tiles, num_heads // section)
    _attention_kernel[grid](
        q, k, v, out, lse,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        num_q_heads, seqlen, softmax_scale * LOG2_E,
        HEAD_DIM=head_dim, IS_EVEN=is_even, **config,
    )  # fmt: skip
    return out, lse
    # <<< step 4


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
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape != q.shape:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {tuple(q.shape)}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(3) != 1:
            raise ValueError(f"{name}: got stride {tensor.stride(3)} in head_dim, expected 1")
    if softmax_scale is not None and not math.isfinite(softmax_scale):
        raise ValueError(f"softmax_scale: got {softmax_scale}, expected a finite number")
