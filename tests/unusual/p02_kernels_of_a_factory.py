"""A factory makes a kernel for each order of x, `run` launches it; a tile may lie transposed."""

import contextlib
import enum


class Order(enum.IntEnum):
    ROWS = 0
    COLS = 1


def make_launcher(order, sizes):
    @triton.jit
    def kernel(X, W, Y, M, N, sxm, sxn, sw, BM: tl.constexpr, BN: tl.constexpr, T: tl.constexpr):
        m = tl.program_id(axis=0).to(tl.int64) * BM + tl.arange(0, BM)
        SHAPE: tl.constexpr = (BN, BM) if T else (BM, BN)
        acc = tl.zeros(SHAPE, dtype=tl.float32)
        start = 0
        while start < N:
            n = start + tl.arange(0, BN).to(tl.int64)
            w = tl.load(W + n * sw, n < N, 0.0).to(tl.float32)
            if T == 1:
                at, ok = n[:, None] * sxn + m[None, :] * sxm, (n < N)[:, None] & (m < M)[None, :]
                acc += tl.load(X + at, ok, 0.0).to(tl.float32) * w[:, None]
            else:
                at, ok = m[:, None] * sxm + n[None, :] * sxn, (m < M)[:, None] & (n < N)[None, :]
                acc += tl.load(X + at, ok, 0.0).to(tl.float32) * w[None, :]
            start += BN
        tl.store(Y + m, tl.sum(acc, axis=1 - T).to(Y.dtype.element_ty), m < M)

    def launch(x, w, y):
        strides = (x.stride(0), x.stride(1), w.stride(0))
        grid = (triton.cdiv(x.shape[0], sizes["BM"]),)
        kernel.run(x, w, y, *x.shape, *strides, T=int(order), **sizes, grid=grid, warmup=False)

    return launch


launchers = {order: make_launcher(order, {"BM": 16, "BN": 64}) for order in Order}


def weighted_row_sum(x, w):
    check_matrix_and_vector(x, w)
    assert x.is_cuda and w.is_cuda, "tensors on a GPU"
    y = torch.empty_strided(x.shape[:1], (1,), dtype=x.dtype, device=x.device)
    order = Order.COLS if x.stride(0) < x.stride(1) else Order.ROWS
    with torch.cuda.device(x.device) if x.device.type == "cuda" else contextlib.nullcontext():
        launchers[order](x, w, y)
    return y
