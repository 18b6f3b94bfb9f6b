"""The columns are split among programs; a second kernel adds up the partial sums of a row."""


@triton.jit
def _partial_kernel(
    x_ptr, w_ptr, partial_ptr, rows, cols, stride_xm, stride_xn, stride_wn, num_splits,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    row_ids = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    col_ids = (tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)).to(tl.int64)
    mask = (row_ids[:, None] < rows) & (col_ids[None, :] < cols)
    x_ptrs = x_ptr + row_ids[:, None] * stride_xm + col_ids[None, :] * stride_xn
    x_tile = tl.load(x_ptrs, mask=mask, other=0.0).to(tl.float32)
    w_tile = tl.load(w_ptr + col_ids * stride_wn, mask=col_ids < cols, other=0.0).to(tl.float32)
    partial = tl.sum(x_tile * w_tile[None, :], 1)
    ptrs = partial_ptr + row_ids * num_splits + tl.program_id(1)
    tl.store(ptrs, partial, mask=row_ids < rows)


@triton.jit
def _total_kernel(partial_ptr, y_ptr, num_splits, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, BLOCK)
    partial = tl.load(partial_ptr + row * num_splits + splits, mask=splits < num_splits, other=0.0)
    tl.store(y_ptr + row, tl.sum(partial, 0).to(y_ptr.dtype.element_ty))


def weighted_row_sum(x, w):
    check_matrix_and_vector(x, w)
    rows, cols = x.shape
    num_splits = triton.cdiv(cols, 256)
    partial = torch.empty((rows, num_splits), dtype=torch.float32, device=x.device)
    y = torch.empty(rows, dtype=x.dtype, device=x.device)
    _partial_kernel[(triton.cdiv(rows, 32), num_splits)](
        x, w, partial, rows, cols, x.stride(0), x.stride(1), w.stride(0), num_splits,
        BLOCK_M=32, BLOCK_N=256,
    )  # fmt: skip
    _total_kernel[(rows,)](partial, y, num_splits, BLOCK=triton.next_power_of_2(num_splits))
    return y
