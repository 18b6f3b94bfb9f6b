"""The root mean square of each row: what RMSNorm divides by.

What lies outside the marked steps is given and correct.
"""

import torch
import triton
import triton.language as tl

from given.launch import row_sum_tiles


@triton.jit
def _root_of_mean(acc, cols):
    """Return the root mean square of each row, (BLOCK_M,), from sums of its squares.

    acc is (BLOCK_M, BLOCK_N): the squares of a row, added up in BLOCK_N places.
    """
    # >>> step 1: the root of the mean (about 1 line)
    # After it: `y_tile`, (BLOCK_M,), fp32, is the root of the mean of the squares in each row.
    raise NotImplementedError("p10 step 1: the root of the mean; see problems/p10/README.md")
    # <<< step 1
    return y_tile


@triton.jit
def _row_rms_kernel(
    x_ptr, y_ptr, rows, cols: tl.constexpr, stride_xm, stride_xn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, X_EVICTION: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M values of y.

    Algorithm: loop over the columns, BLOCK_N at a time; add up the squares of each tile of x in
    fp32; at the end take the root of their mean.
    Grid: (cdiv(rows, BLOCK_M),).
    Memory traffic: x is read once and y written once.
    Limits: rows and cols below 2**31; few rows leave most of a GPU idle.
    """
    row_ids = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)  # (BLOCK_M,)
    row_mask = row_ids < rows
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for col_start in range(0, cols, BLOCK_N):
        col_ids = (col_start + tl.arange(0, BLOCK_N)).to(tl.int64)  # (BLOCK_N,)
        col_mask = col_ids >= 0  # (BLOCK_N,), until step 2 as if all columns existed
        # >>> step 2: the mask of the columns (about 1 line)
        # After it: `col_mask` is True for the columns that exist.
        # <<< step 2
        x_ptrs = x_ptr + row_ids[:, None] * stride_xm + col_ids[None, :] * stride_xn
        x_mask = row_mask[:, None] & col_mask[None, :]  # (BLOCK_M, BLOCK_N)
        x_tile = tl.load(x_ptrs, mask=x_mask, other=0.0, eviction_policy=X_EVICTION)
        x_tile = x_tile.to(tl.float32)
        acc += x_tile * x_tile
    y_tile = _root_of_mean(acc, cols)
    tl.store(y_ptr + row_ids, y_tile.to(y_ptr.dtype.element_ty), mask=row_mask)


def row_rms(x: torch.Tensor) -> torch.Tensor:
    """Return y with y[i] = sqrt(mean over j of x[i, j]**2), added up in fp32.

    Args:
        x: (rows, cols), fp16, bf16 or fp32, any strides; rows >= 1, cols >= 1.

    Returns:
        y: (rows,), dtype of x, dense.

    Raises:
        ValueError: x is not supported; the message begins with the name of what is wrong.

    Source: RMSNorm, arXiv:1910.07467, equation 4.
    """
    if x.ndim != 2:
        raise ValueError(f"x: got {x.ndim} dimensions, expected 2: rows, cols")
    if 0 in x.shape:
        raise ValueError(f"x: got shape {tuple(x.shape)}, expected at least one row and column")
    if x.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise ValueError(f"dtype: got {x.dtype}, expected one of float16, bfloat16, float32")
    rows, cols = x.shape
    y = torch.empty(rows, dtype=x.dtype, device=x.device)
    tiles = row_sum_tiles(x)  # BLOCK_M, BLOCK_N, X_EVICTION and num_warps
    grid = (triton.cdiv(rows, tiles["BLOCK_M"]),)
    _row_rms_kernel[grid](x, y, rows, cols, x.stride(0), x.stride(1), **tiles)
    return y
