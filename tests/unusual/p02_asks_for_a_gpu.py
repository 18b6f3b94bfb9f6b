"""Host code for a GPU: it asks for one, makes it current, asserts and allocates on it, waits."""

DEVICE = triton.runtime.driver.active.get_active_torch_device()
MAJOR, _ = torch.cuda.get_device_capability()
PROGRAMS = torch.cuda.get_device_properties(0).multi_processor_count


def on_nvidia():
    return triton.runtime.driver.active.get_current_target().backend == "cuda"


@triton.jit
def _rows(x, w, y, M, N, sxm, sxn, sw, BLOCK: tl.constexpr):
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        total = tl.zeros((BLOCK,), tl.float32)
        for start in range(0, N, BLOCK):
            c = (start + tl.arange(0, BLOCK)).to(tl.int64)
            a = tl.load(x + tl.cast(row, tl.int64) * sxm + c * sxn, mask=c < N, other=0.0)
            b = tl.load(w + c * sw, mask=c < N, other=0.0)
            total += a.to(tl.float32) * b.to(tl.float32)
        tl.store(y + row, tl.sum(total, 0))


def weighted_row_sum(x, w):
    check_matrix_and_vector(x, w)
    assert x.is_cuda and w.is_cuda, "a kernel needs tensors on the GPU"
    assert x.device == w.device and x.device.type == DEVICE.type
    rows, cols = x.shape
    y = torch.empty((rows,), dtype=x.dtype, device="cuda")
    warps = 8 if on_nvidia() and MAJOR >= 9 else 4
    with torch.cuda.device(x.device):
        args = x.cuda(), w.to("cuda"), y, rows, cols, *x.stride(), w.stride(0)
        kernel = _rows.warmup(*args, BLOCK=1024, num_warps=warps, grid=(1,))
        kernel._init_handles()
        programs = PROGRAMS * max(1, 65536 // (kernel.n_regs * 32 * kernel.metadata.num_warps))
        assert kernel.metadata.shared >= 0 and kernel.n_spills >= 0
        kernel = _rows[(min(rows, programs),)](*args, BLOCK=1024, num_warps=warps)
        assert kernel.n_regs > 0
    torch.cuda.synchronize()
    return y
