"""A few programs that walk over the rows; indices are clamped, values set to 0 afterwards."""


@triton.jit
def _walking(x, w, y, rows, cols, sxm, sxn, sw, R: tl.constexpr, C: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * R
    while first < rows:
        r = first + tl.arange(0, R)
        r_in = tl.minimum(r, rows - 1)
        total = tl.zeros((R,), tl.float32)
        c = tl.arange(0, C).to(tl.int64)
        col = 0
        while col < cols:
            c_in = tl.minimum(c + col, cols - 1)
            xs = tl.load(x + r_in[:, None] * sxm + c_in[None, :] * sxn).to(tl.float32)
            ws = tl.load(w + c_in * sw).to(tl.float32)
            total += tl.sum(tl.where((c + col < cols)[None, :], xs * ws[None, :], 0.0), 1)
            col += C
        tl.store(y + r, total.to(y.dtype.element_ty), mask=r < rows)
        first += tl.num_programs(0) * R


def weighted_row_sum(x, w):
    check_matrix_and_vector(x, w)
    rows, cols = x.shape
    y = torch.empty((rows,), dtype=x.dtype, device=x.device)
    grid = (min(triton.cdiv(rows, 8), 512),)
    _walking[grid](x, w, y, rows, cols, *x.stride(), w.stride(0), R=8, C=256, num_warps=4)
    return y
