"""p02: the first Triton kernel, a weighted row sum.

What lies outside the marked steps is given and correct.
"""

import torch
import triton
import triton.language as tl

SUPPORTED_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


# One program computes BLOCK_M values of y. It walks along its rows in steps of BLOCK_N columns,
# multiplies each tile of x by the matching piece of w, and adds up in fp32.
# Grid: (cdiv(rows, BLOCK_M),).
# Memory traffic: x is read once and y written once; w is read once per program, from cache.
# cols is a constant: the compiler knows how often the loop runs and issues the loads of several
# rounds together. The price is one compilation for each number of columns.
# Limits: rows and cols below 2**31; few rows leave most of a GPU idle.
@triton.jit
def _weighted_row_sum_kernel(
    x_ptr,
    w_ptr,
    y_ptr,
    rows,
    cols: tl.constexpr,
    stride_xm,
    stride_xn,
    stride_wn,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    X_EVICTION: tl.constexpr,
):
    # >>> step 1: the rows of this program (about 2 lines)
    # After it: row_ids (BLOCK_M,) int64, the rows of x that belong to this program;
    # row_mask (BLOCK_M,), true where the row exists.
    # <<< step 1

    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for col_start in range(0, cols, BLOCK_N):
        col_ids = (col_start + tl.arange(0, BLOCK_N)).to(tl.int64)

        # >>> step 2: the masks of this tile (about 2 lines)
        # After it: col_mask (BLOCK_N,), true where the column exists;
        # tile_mask (BLOCK_M, BLOCK_N), true where row and column exist.
        # <<< step 2

        # >>> step 3: load one tile of x and its weights (about 3 lines)
        # After it: x_tile (BLOCK_M, BLOCK_N) and w_tile (BLOCK_N,), as stored, 0 where masked.
        # <<< step 3

        # >>> step 4: multiply and accumulate in fp32 (about 1 line)
        # After it: acc has grown by x * w, multiplied in fp32.
        # <<< step 4

    # >>> step 5: sum over the columns and store (about 2 lines)
    # After it: the rows of this program that exist are stored in y, in the dtype of y.
    # <<< step 5


def _launch_config(x):
    """Given: return tile sizes, warps and the hint for the cache that suit this matrix.

    The long side of a tile follows the smaller stride, because neighbouring threads should read
    neighbouring addresses. BLOCK_M and BLOCK_N must be powers of two. In long rows each of 512
    threads has 4 elements of a tile, or 8 in fp32, and the loads of several tiles are under way at
    a time.

    x is read once. Told to go first, it drives out less that others have left in the cache; where
    it is many times as large as the cache that gains nothing and costs time.
    """
    _, cols = x.shape
    hint = "evict_first" if x.numel() * x.element_size() < 768 * 2**20 else ""
    if x.stride(0) < x.stride(1):
        block_m, block_n, num_warps = 128, min(64, triton.next_power_of_2(cols)), 8
    elif cols < 8192:
        block_n = min(2048, triton.next_power_of_2(cols))
        block_m, num_warps = min(64, 4096 // block_n), 8
    else:
        block_m, block_n, num_warps = 1, 1024 * x.element_size(), 16
    return {"BLOCK_M": block_m, "BLOCK_N": block_n, "X_EVICTION": hint, "num_warps": num_warps}


def _check_arguments(x, w):
    """Given: raise ValueError for the first argument that is not supported."""
    if x.ndim != 2:
        raise ValueError(f"x: got {x.ndim} dimensions, expected 2: (rows, cols)")
    if w.ndim != 1:
        raise ValueError(f"w: got {w.ndim} dimensions, expected 1: (cols,)")
    if x.dtype not in SUPPORTED_DTYPES:
        raise ValueError(f"dtype: got {x.dtype}, expected float16, bfloat16 or float32")
    if w.dtype != x.dtype:
        raise ValueError(f"w: got {w.dtype}, expected {x.dtype}, the dtype of x")
    if w.device != x.device:
        raise ValueError(f"w: got {w.device}, expected {x.device}, the device of x")
    if x.shape[0] < 1 or x.shape[1] < 1:
        raise ValueError(f"x: got shape {tuple(x.shape)}, expected rows >= 1 and cols >= 1")
    if w.shape[0] != x.shape[1]:
        raise ValueError(
            f"w: got {w.shape[0]} elements, expected {x.shape[1]}, the number of columns of x"
        )


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
    _check_arguments(x, w)
    rows, cols = x.shape

    # >>> step 6: allocate y and launch one program for each block of rows (about 6 lines)
    # After it: the function has returned y (rows,), dtype and device of x, every element stored.
    raise NotImplementedError(
        "p02 step 1: the rows of this program; see problems/p02/README.md"
    )
    # <<< step 6
