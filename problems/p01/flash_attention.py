"""p01: FlashAttention in plain PyTorch, one tile of the score matrix at a time.

What lies outside the marked steps is given and correct.
"""

import math

import torch

SUPPORTED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SUPPORTED_HEAD_DIMS = (16, 32, 64, 128)


def _check_arguments(q, k, v, is_causal, softmax_scale, tile_q, tile_k):
    """Given: raise ValueError for the first argument that is not supported."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.ndim != 4:
            raise ValueError(
                f"{name}: got {tensor.ndim} dimensions, "
                "expected 4: (batch, heads, seqlen, head_dim)"
            )
    if q.dtype not in SUPPORTED_DTYPES:
        raise ValueError(f"dtype: got {q.dtype}, expected float16, bfloat16 or float32")
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise ValueError(f"{name}: got {tensor.dtype}, expected {q.dtype}, the dtype of q")
        if tensor.device != q.device:
            raise ValueError(f"{name}: got {tensor.device}, expected {q.device}, the device of q")
    batch, num_heads, seqlen_q, head_dim = q.shape
    seqlen_k = k.shape[2]
    if batch < 1 or num_heads < 1:
        raise ValueError(f"q: got shape {tuple(q.shape)}, expected batch >= 1 and heads >= 1")
    if seqlen_q < 1 or seqlen_k < 1:
        raise ValueError(
            f"seqlen: got seqlen_q={seqlen_q} and seqlen_k={seqlen_k}, expected at least 1"
        )
    if head_dim not in SUPPORTED_HEAD_DIMS:
        raise ValueError(f"head_dim: got {head_dim}, expected one of 16, 32, 64, 128")
    kv_shape = (batch, num_heads, seqlen_k, head_dim)
    for name, tensor in (("k", k), ("v", v)):
        if tensor.shape != kv_shape:
            raise ValueError(f"{name}: got shape {tuple(tensor.shape)}, expected {kv_shape}")
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.stride(3) != 1:
            raise ValueError(
                f"{name}: got stride {tensor.stride(3)} in the last dimension, expected 1"
            )
    if is_causal and seqlen_q != seqlen_k:
        raise ValueError(
            f"seqlen: got seqlen_q={seqlen_q} and seqlen_k={seqlen_k}, "
            "expected equal lengths with is_causal=True"
        )
    if softmax_scale is not None and not math.isfinite(softmax_scale):
        raise ValueError(f"softmax_scale: got {softmax_scale}, expected a finite number")
    for name, size in (("tile_q", tile_q), ("tile_k", tile_k)):
        if size < 1:
            raise ValueError(f"{name}: got {size}, expected at least 1")


def _tile_matmul(a, b):
    """Given: return a @ b for two batches of tiles, accumulated and returned in fp32.

    Args:
        a: (batch * heads, rows, inner), fp16, bf16 or fp32, any strides.
        b: (batch * heads, inner, cols), the dtype of a, any strides.
    """
    if a.is_cuda and a.dtype != torch.float32:
        # Tensor cores multiply 16-bit tiles and add in fp32: keep that fp32 sum as it is.
        return torch.bmm(a, b, out_dtype=torch.float32)
    return torch.bmm(a.float(), b.float())


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    is_causal: bool = False,
    softmax_scale: float | None = None,
    tile_q: int = 128,
    tile_k: int = 128,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return softmax(softmax_scale * q k^T) v and its log-sum-exp, in memory linear in seqlen.

    Args:
        q: (batch, heads, seqlen_q, head_dim), fp16, bf16 or fp32, last stride 1, others any.
        k: (batch, heads, seqlen_k, head_dim), dtype and last stride as q.
        v: (batch, heads, seqlen_k, head_dim), dtype and last stride as q.
        is_causal: query i sees the keys 0..i only; needs seqlen_q == seqlen_k.
        softmax_scale: any finite factor on the scores; default 1/sqrt(head_dim).
        tile_q: query rows of a tile, any positive number.
        tile_k: keys of a tile, any positive number.

    Returns:
        out: (batch, heads, seqlen_q, head_dim), dtype of q, dense.
        lse: (batch, heads, seqlen_q), fp32, dense: the natural logarithm of the sum of
            exp(score) over the visible keys.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: Dao et al., "FlashAttention", arXiv:2205.14135, algorithm 1; loop order of Dao,
        "FlashAttention-2", arXiv:2307.08691, algorithm 1.
    """
    _check_arguments(q, k, v, is_causal, softmax_scale, tile_q, tile_k)
    batch, num_heads, seqlen_q, head_dim = q.shape
    seqlen_k = k.shape[2]
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(head_dim)
    # Given: with a scale above 0 a maximum can be scaled in place of all scores (step 5). The sign
    # moves to q, and a scale of 0 to a number that no score can make count (0 * -inf is NaN).
    if softmax_scale < 0:
        q, softmax_scale = -q, -softmax_scale
    softmax_scale = max(softmax_scale, 1e-30)

    # Given: batch and heads become one dimension, so that one call serves every head.
    # `flatten` copies only an input whose strides do not allow a view.
    q_heads, k_heads, v_heads = q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)
    out = torch.empty(q_heads.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q_heads.shape[:2], dtype=torch.float32, device=q.device)

    for q_start in range(0, seqlen_q, tile_q):
        q_stop = min(q_start + tile_q, seqlen_q)
        q_tile = q_heads[:, q_start:q_stop]  # (batch * heads, rows, head_dim)

        # >>> step 1: state of a query tile before the first key (about 4 lines)
        # After it, all fp32 on the device of q:
        #   running_max (batch * heads, rows, 1), -inf everywhere;
        #   running_sum (batch * heads, rows, 1), zero;
        #   acc (batch * heads, rows, head_dim), zero.
        # <<< step 1

        visible_stop = seqlen_k
        # >>> step 2: skip the tiles above the diagonal (about 2 lines)
        # After it, with is_causal: no key from visible_stop on is visible to any row of q_tile.
        # <<< step 2

        for k_start in range(0, visible_stop, tile_k):
            k_stop = min(k_start + tile_k, visible_stop)
            k_tile = k_heads[:, k_start:k_stop]  # (batch * heads, keys, head_dim)
            v_tile = v_heads[:, k_start:k_stop]  # (batch * heads, keys, head_dim)

            # >>> step 3: scores of one tile (about 1 line)
            # After it: scores (batch * heads, rows, keys), fp32; softmax_scale is applied here, or in
            # step 5.
            # <<< step 3

            # >>> step 4: mask a tile that the diagonal crosses (about 4 lines)
            # After it, with is_causal: scores is -inf where key > query, both counted in the whole
            # sequence. A tile without such a pair is left alone.
            # <<< step 4

            # >>> step 5: online softmax update (about 9 lines)
            # After it, for the keys 0..k_stop-1 and each row, in fp32:
            #   running_max is the largest score;
            #   running_sum is the sum of exp(score - running_max);
            #   acc is the sum of exp(score - running_max) * v.
            # <<< step 5

        # >>> step 6: finish the query tile (about 2 lines)
        # After it: rows q_start..q_stop-1 of out (dtype of q) and of lse (fp32) are final.
        # <<< step 6

    # >>> step 7: shapes of the result (about 1 line)
    # After it: the function has returned out and lse in the shapes of the docstring.
    raise NotImplementedError(
        "p01 step 1: state of a query tile before the first key; see problems/p01/README.md"
    )
    # <<< step 7
