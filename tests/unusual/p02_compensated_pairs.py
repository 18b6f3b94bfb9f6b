"""Compensated sums: lanes keep a sum and its error, and the pairs are reduced together."""


@triton.jit
def _two_sum(a, error_a, b, error_b):
    total = a + b
    back = total - a
    return total, error_a + error_b + ((a - (total - back)) + (b - back))


@triton.jit
def _compensated(
    x, w, y, N, sxm: "i64", sxn: "i64", sw: "i64", C: tl.constexpr, LANES: tl.constexpr
):
    row = tl.program_id(0)
    tl.device_assert(row < tl.num_programs(0), "no such row")
    total = tl.zeros((LANES,), tl.float32)
    error = tl.zeros((LANES,), tl.float32)
    for start in range(0, N, C):
        c = start + tl.arange(0, C)
        xs = tl.load(x + row * sxm + c * sxn, mask=c < N, other=0.0).cast(tl.float32)
        ws = tl.load(w + c * sw, mask=c < N, other=0.0).cast(tl.float32)
        part = tl.sum(tl.reshape(xs * ws, (C // LANES, LANES)), axis=0)
        total, error = _two_sum(total, error, part, tl.zeros_like(part))
    total, error = tl.reduce((total, error), 0, _two_sum)
    tl.store(y + row, (total + error).to(y.dtype.element_ty))


def weighted_row_sum(x, w):
    check_matrix_and_vector(x, w)
    y = torch.zeros(x.shape[0], dtype=x.dtype, device=x.device)
    sizes = {"C": 256, "LANES": 32, "num_warps": 2}
    _compensated[(x.shape[0],)](x, w, y, x.shape[1], *x.stride(), *w.stride(), **sizes)
    return y
