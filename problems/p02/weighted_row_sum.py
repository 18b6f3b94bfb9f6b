"""The first Triton kernel: a weighted row sum.

What lies outside the marked steps is given and correct.
"""

import torch
import triton
import triton.language as tl

from given.arguments import check_matrix_and_vector
from given.launch import row_sum_tiles


@triton.jit
def _load_tile(x_ptrs, w_ptrs, tile_mask, col_mask, X_EVICTION: tl.constexpr):
    """Return a tile of x, (BLOCK_M, BLOCK_N), and its weights, (BLOCK_N,), 0 where masked.

    X_EVICTION is a hint for the cache, an `eviction_policy`; no result depends on it.
    """
    # >>> step 1: load one tile of x and its weights (about 2 lines)
    # After it: `x_tile` and `w_tile` hold the values at the addresses `x_ptrs` and `w_ptrs`, and 0
    # where `tile_mask` and `col_mask` switch an element off.
    raise NotImplementedError(
        "p02 step 1: load one tile of x and its weights; see problems/p02/README.md"
    )
    # <<< step 1
    return x_tile, w_tile


@triton.jit
def _weighted_row_sum_kernel(
    x_ptr, w_ptr, y_ptr, rows, cols: tl.constexpr, stride_xm, stride_xn, stride_wn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, X_EVICTION: tl.constexpr,
):  # fmt: skip
    """One program computes BLOCK_M values of y.

    Algorithm: loop over the columns, BLOCK_N at a time; multiply each tile of x by the matching
    piece of w, and add up in fp32; at the end sum over the columns.
    Grid: (cdiv(rows, BLOCK_M),).
    Memory traffic: x is read once and y written once; w is read once per program, from cache.
    Limits: rows and cols below 2**31; few rows leave most of a GPU idle. cols is a constant, so
    that the loads of several tiles overlap; the price is one compilation per number of columns.
    """
    # Until step 2, the rows of program 0. int64, because row_ids * stride_xm can exceed 2**31 - 1.
    row_ids = tl.arange(0, BLOCK_M).to(tl.int64)  # (BLOCK_M,)
    # >>> step 2: the rows of this program (about 1 line)
    # After it: `row_ids`, (BLOCK_M,), int64, are the rows that belong to this program: program 0
    # has the first BLOCK_M rows, program 1 the next ones.
    # <<< step 2

    row_mask = row_ids >= 0  # (BLOCK_M,), until step 3 as if all rows existed
    # >>> step 3: the mask of the rows (about 1 line)
    # After it: `row_mask` is True for the rows that exist.
    # <<< step 3

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for col_start in range(0, cols, BLOCK_N):
        col_ids = (col_start + tl.arange(0, BLOCK_N)).to(tl.int64)  # (BLOCK_N,)

        col_mask = col_ids >= 0  # (BLOCK_N,), until step 4 as if all columns existed
        # >>> step 4: the mask of the columns (about 1 line)
        # After it: `col_mask` is True for the columns that exist.
        # <<< step 4
        tile_mask = row_mask[:, None] & col_mask[None, :]  # (BLOCK_M, BLOCK_N)

        # Until step 5, the addresses in a dense x and a dense w.
        x_ptrs = x_ptr + row_ids[:, None] * cols + col_ids[None, :]  # (BLOCK_M, BLOCK_N)
        w_ptrs = w_ptr + col_ids  # (BLOCK_N,)
        # >>> step 5: addresses from strides (about 2 lines)
        # After it: `x_ptrs` and `w_ptrs` are right for any strides of x and w.
        # <<< step 5
        x_tile, w_tile = _load_tile(x_ptrs, w_ptrs, tile_mask, col_mask, X_EVICTION)

        products = x_tile * w_tile[None, :]  # (BLOCK_M, BLOCK_N), until step 6 in the dtype of x
        # >>> step 6: products in fp32 (about 1 line)
        # After it: both factors are converted to fp32 before they are multiplied.
        # <<< step 6
        acc += products

    y_tile = tl.sum(acc, axis=1)  # (BLOCK_M,)
    tl.store(y_ptr + row_ids, y_tile.to(y_ptr.dtype.element_ty), mask=row_mask)


def weighted_row_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return y with y[i] = sum over j of x[i, j] * w[j], added up in fp32.

    Args:
        x: (rows, cols), fp16, bf16 or fp32, any strides; rows >= 1, cols >= 1.
        w: (cols,), dtype of x, any stride.

    Returns:
        y: (rows,), dtype of x, dense.

    Raises:
        ValueError: an argument is not supported; the message begins with its name.

    Source: the grid, masks and strides are those of the tutorials "Vector Addition" and
        "Matrix Multiplication" in the Triton documentation.
    """
    check_matrix_and_vector(x, w)
    rows, cols = x.shape
    y = torch.empty(rows, dtype=x.dtype, device=x.device)
    tiles = row_sum_tiles(x)  # BLOCK_M, BLOCK_N, X_EVICTION and num_warps
    grid = (triton.cdiv(rows, tiles["BLOCK_M"]),)  # one program per BLOCK_M rows, rounded up
    _weighted_row_sum_kernel[grid](
        x, w, y, rows, cols, x.stride(0), x.stride(1), w.stride(0), **tiles
    )
    return y
