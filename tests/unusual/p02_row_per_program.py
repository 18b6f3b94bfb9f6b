"""One program a row, over tiles of 1024 columns, each summed before it is added."""


@triton.jit
def _row_kernel(x_ptr, w_ptr, y_ptr, cols, stride_xm, stride_xn, stride_wn, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    total = 0.0
    for col_start in range(0, cols, BLOCK_N):
        col_ids = (col_start + tl.arange(0, BLOCK_N)).to(tl.int64)
        mask = col_ids < cols
        x_tile = tl.load(x_ptr + row * stride_xm + col_ids * stride_xn, mask=mask, other=0.0)
        w_tile = tl.load(w_ptr + col_ids * stride_wn, mask=mask, other=0.0)
        total += tl.sum(x_tile.to(tl.float32) * w_tile.to(tl.float32), 0)
    tl.store(y_ptr + row, total.to(y_ptr.dtype.element_ty))


def weighted_row_sum(x, w):
    check_matrix_and_vector(x, w)
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _row_kernel[(x.shape[0],)](
        x, w, y, x.shape[1], x.stride(0), x.stride(1), w.stride(0), BLOCK_N=1024
    )
    return y
