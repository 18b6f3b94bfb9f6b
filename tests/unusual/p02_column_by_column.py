"""One column after the other: each row's sum is rounded as often as there are columns."""


@triton.jit
def _columns(x, w, y, rows, cols, sxm, sxn, sw, R: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * R + tl.arange(0, R)
    total = tl.zeros((R,), dtype=tl.float32)
    ptrs = x + r * sxm
    for c in range(cols):
        total += tl.load(ptrs, r < rows, 0.0).to(tl.float32) * tl.load(w + c * sw).to(tl.float32)
        ptrs += sxn
    tl.store(y + r, total, mask=r < rows)


def weighted_row_sum(x, w):
    check_matrix_and_vector(x, w)
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    _columns[(triton.cdiv(x.shape[0], 64),)](x, w, y, *x.shape, *x.stride(), *w.stride(), R=64)
    return y
