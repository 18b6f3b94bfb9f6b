"""Causal sliding-window attention with sink tokens, forward: the sinks, then the window.

What lies outside the marked steps is given and correct.
"""

import math

import torch
import triton
import triton.language as tl

HEAD_DIMS = (16, 32, 64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
# Triton compiles a kernel anew for arguments that are 1 or a multiple of 16. Strides and seqlen
# gain by it; for these it would only cost compilations.
VARYING = ("num_q_heads", "group_size", "window_size", "num_sink_tokens")
LOG2_E = math.log2(math.e)
LN_2 = tl.constexpr(math.log(2.0))


@triton.jit
def _fold_key_tile(scores, v, running_max, running_sum, acc, scale_log2):
    """Fold one tile of keys and values into the running state of one tile of queries.

    `scores` (BLOCK_M, BLOCK_N) are the products of queries and keys, -inf where not visible; a row
    may have no visible key in this tile, or none so far. running_max is in units of scores *
    scale_log2; scale_log2 is positive.
    """
    new_max = tl.maximum(running_max, tl.max(scores, 1) * scale_log2)  # (BLOCK_M,)
    safe_max = tl.where(new_max == float("-inf"), 0.0, new_max)  # (BLOCK_M,)
    rescale = tl.exp2(running_max - safe_max)  # (BLOCK_M,)
    p = tl.exp2(scores * scale_log2 - safe_max[:, None])  # (BLOCK_M, BLOCK_N)
    running_sum = running_sum * rescale + tl.sum(p, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision="ieee")
    running_max = new_max
    return running_max, running_sum, acc


@triton.jit
def _visit_key_tiles(
    q, k_ptr, v_ptr, stride_kn, stride_vn, offs_m, begin, first_key, full_start, full_end, end,
    seqlen, window_size, num_sink_tokens, running_max, running_sum, acc, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Fold the tiles of the sinks and then those of the window into the state, in one walk.

    The walk's positions are begin, begin + BLOCK_N, ... before end: from begin to first_key the
    tiles of the sinks, from first_key on those of the window. Every query of the tile sees every
    key from full_start to full_end, both tile boundaries; the tiles before and behind are masked;
    where full_start is past full_end, all are.
    """
    offs_n = tl.arange(0, BLOCK_N)  # (BLOCK_N,)
    offs_d = tl.arange(0, HEAD_DIM)  # (HEAD_DIM,)
    # These offsets stay within a tile and fit in 32 bits.
    k_offs = offs_n[:, None] * stride_kn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    v_offs = offs_n[:, None] * stride_vn + offs_d[None, :]  # (BLOCK_N, HEAD_DIM)
    # Rows past the end see what the last row sees, so that no row ends with a sum of 0.
    queries = tl.minimum(offs_m, seqlen - 1)[:, None]  # (BLOCK_M, 1)
    # One loop for all tiles: each loop more would fill and drain a pipeline of loads. What is the
    # same in every round is moved out of it, which takes registers: with 64 keys at head_dim 64
    # those of a fourth program on a multiprocessor.
    for position in tl.range(begin, end, BLOCK_N, disable_licm=HEAD_DIM <= 64 and BLOCK_N >= 64):
        # >>> step 3: from the walk to the keys (about 1 line)
        key_start = tl.where(position < first_key, position - begin, position)
        # <<< step 3
        k_tile_ptr = k_ptr + tl.cast(key_start, tl.int64) * stride_kn
        v_tile_ptr = v_ptr + tl.cast(key_start, tl.int64) * stride_vn
        keys = key_start + offs_n  # (BLOCK_N,)
        exists = keys[:, None] < seqlen  # (BLOCK_N, 1)
        k = tl.load(k_tile_ptr + k_offs, mask=exists, other=0.0)  # (BLOCK_N, HEAD_DIM)
        v = tl.load(v_tile_ptr + v_offs, mask=exists, other=0.0)  # (BLOCK_N, HEAD_DIM)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")  # (BLOCK_M, BLOCK_N)
        # All threads of the program take the same way: full tiles pay for no mask of scores.
        if (position < full_start) | (position >= full_end):
            # >>> step 1: mask of window and sinks (about 2 lines)
            # The first query that does not see the key any more.
            stop = tl.where(keys < num_sink_tokens, seqlen, keys + window_size)  # (BLOCK_N,)
            visible = (keys[None, :] <= queries) & (queries < stop[None, :])  # (BLOCK_M, BLOCK_N)
            # <<< step 1
            scores = tl.where(visible, scores, float("-inf"))
        running_max, running_sum, acc = _fold_key_tile(
            scores, v, running_max, running_sum, acc, scale_log2
        )
    return running_max, running_sum, acc


@triton.jit(do_not_specialize=VARYING)
def _attention_kernel(
    q_ptr, k_ptr, v_ptr, out_ptr, lse_ptr,
    stride_qb, stride_qh, stride_qm,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    stride_ob, stride_oh, stride_om,
    num_q_heads, group_size, seqlen, window_size, num_sink_tokens, scale_log2,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M query rows of one query head.

    Algorithm: one walk: the tiles of the sinks before the first tile of the window, masked; then
    the window: its left edge masked, full tiles, the diagonal masked. Sinks that lie in a tile of
    the window are visible there and nowhere else, so that each counts once. No tile outside sinks
    and window is visited.
    Grid: (batch * num_q_heads, query tiles), longest rows first, heads of a group side by side.
    Memory traffic: as without sinks, and the tiles of the sinks once more per query tile and query
    head, from L2. No score leaves the chip.
    Limits: last dimension contiguous, HEAD_DIM a power of two from 16 to 128, window_size and
    num_sink_tokens <= seqlen.
    """
    batch_head = tl.program_id(0).to(tl.int64)
    batch = batch_head // num_q_heads
    q_head = batch_head % num_q_heads
    query_tile = tl.num_programs(1) - 1 - tl.program_id(1)
    q_ptr += batch * stride_qb + q_head * stride_qh
    out_ptr += batch * stride_ob + q_head * stride_oh
    lse_ptr += batch_head * seqlen
    kv_head = q_head // group_size
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    query_start = query_tile * BLOCK_M
    offs_m = query_start + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    offs_d = tl.arange(0, HEAD_DIM)  # (HEAD_DIM,)
    in_bounds = offs_m < seqlen  # (BLOCK_M,)
    q_ptrs = q_ptr + offs_m[:, None].to(tl.int64) * stride_qm + offs_d[None, :]
    q = tl.load(q_ptrs, mask=in_bounds[:, None], other=0.0)  # (BLOCK_M, HEAD_DIM)

    running_max = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    running_sum = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)

    end_key = tl.minimum(query_start + BLOCK_M, seqlen)
    first_key = tl.maximum(query_start - window_size + 1, 0) // BLOCK_N * BLOCK_N
    diagonal_start = query_start // BLOCK_N * BLOCK_N
    full_start = tl.cdiv(tl.maximum(end_key - window_size, 0), BLOCK_N) * BLOCK_N

    # >>> step 2: the tiles of the sinks (about 2 lines)
    sink_end = tl.minimum(num_sink_tokens, first_key)
    begin = first_key - tl.cdiv(sink_end, BLOCK_N) * BLOCK_N
    # <<< step 2

    running_max, running_sum, acc = _visit_key_tiles(
        q, k_ptr, v_ptr, stride_kn, stride_vn, offs_m, begin, first_key, full_start, diagonal_start,
        end_key, seqlen, window_size, num_sink_tokens, running_max, running_sum, acc, scale_log2,
        HEAD_DIM=HEAD_DIM, BLOCK_N=BLOCK_N,
    )  # fmt: skip

    out = acc / running_sum[:, None]  # (BLOCK_M, HEAD_DIM)
    out_ptrs = out_ptr + offs_m[:, None].to(tl.int64) * stride_om + offs_d[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=in_bounds[:, None])
    lse = (running_max + tl.log2(running_sum)) * LN_2  # (BLOCK_M,)
    tl.store(lse_ptr + offs_m, lse, mask=in_bounds)


def attention(q, k, v, *, window_size, num_sink_tokens=0, softmax_scale=None):
    """Causal attention over the sinks and the last window_size keys, and each row's log-sum-exp.

    Args:
        q: (batch, num_q_heads, seqlen, head_dim), fp16, bf16 or fp32, any strides with the last
            dimension contiguous.
        k, v: (batch, num_kv_heads, seqlen, head_dim), dtype and device of q, same rule for strides;
            num_kv_heads divides num_q_heads, and query head h reads kv head
            h // (num_q_heads // num_kv_heads).
        window_size: keys each query sees, itself included; any int >= 1.
        num_sink_tokens: first keys of the sequence, visible to every later query whatever the
            window; any int >= 0, default 0. Query i sees keys j <= i with i - window_size < j or
            j < num_sink_tokens.
        softmax_scale: factor on q @ k^T, any finite float; default 1 / sqrt(head_dim).

    Returns:
        out: shape and dtype of q, dense.
        lse: (batch, num_q_heads, seqlen), fp32, natural log-sum-exp of the scaled visible scores.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv:2309.17453,
    section 3, which keeps the first tokens visible beside a sliding window.
    """
    _check_arguments(q, k, v, window_size, num_sink_tokens, softmax_scale)
    batch, num_q_heads, seqlen, head_dim = q.shape
    num_kv_heads = k.shape[1]
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(head_dim)
    # The kernel scales the maximum in place of the scores, and so wants a scale above 0: the sign
    # moves to q, and a scale of 0 to a number that no score can make count (0 * -inf is NaN).
    if softmax_scale < 0:
        q, softmax_scale = -q, -softmax_scale
    softmax_scale = max(softmax_scale, 1e-30)
    config = _launch_config(head_dim, q.dtype, q.device, window_size)

    # >>> step 4: clamp window and sinks, launch (about 13 lines)
    window_size = min(window_size, seqlen)
    num_sink_tokens = min(num_sink_tokens, seqlen)
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, num_q_heads, seqlen), dtype=torch.float32, device=q.device)
    group_size = num_q_heads // num_kv_heads
    grid = (batch * num_q_heads, triton.cdiv(seqlen, config["BLOCK_M"]))
    _attention_kernel[grid](
        q, k, v, out, lse,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3], *out.stride()[:3],
        num_q_heads, group_size, seqlen, window_size, num_sink_tokens, softmax_scale * LOG2_E,
        HEAD_DIM=head_dim, **config,
    )  # fmt: skip
    return out, lse
    # <<< step 4


def _launch_config(head_dim, dtype, device, window_size):
    """Tile sizes, warps, and pipeline stages: each stage holds a tile of K and one of V."""
    shared_kib = 160
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        shared_kib = properties.shared_memory_per_block_optin // 1024
    if dtype == torch.float32 or shared_kib < 96:
        # No tensor cores here (IEEE fp32, compute capability 7.5): larger tiles spill registers.
        block, num_warps = (64, 8) if head_dim <= 64 else (32, 4)
        return {"BLOCK_M": block, "BLOCK_N": block, "num_warps": num_warps, "num_stages": 1}
    # A row uses window_size of the window_size + BLOCK_M keys that its tile visits, rounded out to
    # BLOCK_N: a small window wants small tiles.
    if shared_kib < 160:
        return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 2}
    if window_size < 512:
        return {"BLOCK_M": 64, "BLOCK_N": 32, "num_warps": 4, "num_stages": 3}
    # Small enough that programs share a multiprocessor: the softmax of one runs under the dots of
    # the other.
    return {"BLOCK_M": 64, "BLOCK_N": 64, "num_warps": 4, "num_stages": 3}


def _check_arguments(q, k, v, window_size, num_sink_tokens, softmax_scale):
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
    if not isinstance(window_size, int) or window_size < 1:
        raise ValueError(f"window_size: got {window_size}, expected an int of at least 1")
    if not isinstance(num_sink_tokens, int) or num_sink_tokens < 0:
        raise ValueError(f"num_sink_tokens: got {num_sink_tokens}, expected an int of at least 0")
    if softmax_scale is not None and not math.isfinite(softmax_scale):
        raise ValueError(f"softmax_scale: got {softmax_scale}, expected a finite number")
