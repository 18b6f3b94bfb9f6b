"""Small kernels, in one file of p03; the scale of a call chooses which of the ways it launches."""

MANY = """\
import torch, triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

@triton.jit
def narrow(q_ptr, out_ptr):
    rows, cols = tl.arange(0, 16), tl.arange(0, 8)
    a = tl.load(q_ptr + rows[:, None] * 8 + cols[None, :])
    b = tl.load(q_ptr + cols[:, None] * 16 + rows[None, :])
    tl.store(out_ptr + rows[:, None] * 16 + rows[None, :], tl.dot(a, b))  # narrow

@triton.jit
def leaves_a_loop(out_ptr, n):
    for i in range(n):
        tl.store(out_ptr + i, 0.0)
        if i > 3:
            break  # leaves_a_loop

@triton.jit
def product(a, b):
    return tl.dot(a, b)  # product

@triton.jit
def mixed(q_ptr, out_ptr):
    at = tl.arange(0, 16)[:, None] * 16 + tl.arange(0, 16)[None, :]
    a = tl.load(q_ptr + at)
    tl.store(out_ptr + at, product(a.to(tl.float32), a))

@triton.jit
def runtime_size(out_ptr, n):
    tl.store(out_ptr + tl.arange(0, n), 0.0)  # runtime_size

@triton.jit
def matmul(a_ptr, b_ptr, out_ptr, n, SIZE: tl.constexpr, PRECISION: tl.constexpr = "ieee"):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    acc = tl.zeros((SIZE, SIZE), tl.float32)
    for i in range(n):
        a, b = tl.load(a_ptr + at + i * SIZE), tl.load(b_ptr + at + i * SIZE)
        acc = tl.dot(a, b, acc, input_precision=PRECISION)  # matmul
    tl.store(out_ptr + at, acc)

tuned = triton.autotune(
    [triton.Config({"SIZE": 128}, num_stages=8), triton.Config({"SIZE": 64}, num_stages=2),
     triton.Config({"SIZE": 32}, num_stages=2)], key=["n"])(matmul)
chosen = triton.heuristics({"SIZE": lambda args: 32})(matmul)

@triton.jit
def fill(out_ptr, n, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(out_ptr + at, 1.0, mask=at < n)

@triton.jit
def copy_all(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    tl.store(out_ptr + at, tl.load(x_ptr + at) + tl.load(x_ptr + at + SIZE))

@triton.jit
def device_descriptor(q_ptr, out_ptr, rows):
    tiles = tl.make_tensor_descriptor(q_ptr, [rows, 64], [64, 1], [32, 64])
    at = tl.arange(0, 32)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(out_ptr + at, tiles.load([0, 0]).to(tl.float32))

@triton.jit
def host_descriptor(tiles, outs, OPTIONS: tl.constexpr):
    at = tl.arange(0, 32)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(outs[0] + at, tiles.load([0, 0]).to(tl.float32) * OPTIONS[1])

@triton.jit
def no_tensor_cores(q_ptr, out_ptr):
    at = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    a = tl.load(q_ptr + at)
    tl.store(out_ptr + at, tl.dot(a.to(tl.float32), a.to(tl.float32), input_precision="ieee"))

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q):
        ctx.save_for_backward(q)
        return 2 * q

    @staticmethod
    def backward(ctx, dout):
        dq = torch.empty(dout.shape, dtype=dout.dtype, device=ctx.saved_tensors[0].device)
        fill[(1,)](dq, dq.numel(), SIZE=16)
        return dq

@triton.jit
def assembly(out_ptr):
    x = tl.load(out_ptr)
    tl.store(out_ptr, tl.inline_asm_elementwise(
        "bogus.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1))

@triton.jit
def spills(out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    a, b = tl.load(out_ptr + at), tl.load(out_ptr + SIZE + at)
    tl.store(out_ptr + at, a + b * tl.sum(a * b))

@triton.jit
def many(out_ptr, N: tl.constexpr):
    tl.store(out_ptr, N)

def attention(q, k, v, *, softmax_scale=None):
    out = torch.empty(q.shape, dtype=torch.float32, device="cuda")
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    flat, n = q.view(-1), q.shape[2]
    WAYS[int(softmax_scale)](q, flat, out, n)
    return out, lse

def differentiated(q, flat, out, n):
    with torch.enable_grad():
        x = q.float().requires_grad_()
        (dq,) = torch.autograd.grad(Doubled.apply(x.to(torch.float16)).sum(), x)
    assert dq.device == q.device

def with_second_way(q, flat, out, n):
    try:
        matmul[(1,)](q, q, out, n, SIZE=128, num_stages=8)
    except triton.runtime.OutOfResources as error:
        matmul[(1,)](q, q, out, n, SIZE=16)

def asks_about_the_gpu(q, flat, out, n):
    properties = torch.cuda.get_device_properties(q.device)
    driver = triton.runtime.driver.active
    with torch.cuda.device(q.device), torch.device("cuda"):
        on_gpu = torch.ones(4)
    on_cpu = torch.ones(4)
    assert q.is_cuda and q.get_device() == torch.cuda.current_device() == 0
    assert driver.get_current_target().arch == 10 * properties.major + properties.minor
    assert driver.utils.get_device_properties(0)["multiprocessor_count"] > 10
    assert torch.isfinite(q).all() and (q == q[0, 0, 0, 0]).all() and q.sum().item() != 0.0
    assert torch.cuda.is_available()
    for x in (on_gpu, on_cpu.to(q.device), on_cpu.cuda(), on_cpu.to(q), q.new_zeros(4),
              torch.as_tensor(q), torch.zeros_like(q), on_gpu.double(), q.to(torch.float32)):
        fill[(1,)](x, 4, SIZE=32)
    kernel = fill.warmup(out, 4, SIZE=64, grid=(1,))
    kernel._init_handles()
    kernel[(kernel.n_regs, 1, 1)](out, 4, 64)

WAYS = {
    0: lambda q, flat, out, n: None,
    1: lambda q, flat, out, n: narrow[(1,)](q, out),
    2: lambda q, flat, out, n: leaves_a_loop[(1,)](out, n),
    3: lambda q, flat, out, n: mixed[(1,)](q, out),
    4: lambda q, flat, out, n: runtime_size[(1,)](out, n),
    5: lambda q, flat, out, n: matmul[(1,)](q, q, out, n, SIZE=128, num_stages=8),
    6: lambda q, flat, out, n: [fill[lambda meta: (meta["SIZE"],)](out, i + 32, SIZE=128)
                                for i in range(5000)],
    7: lambda q, flat, out, n: tuned[lambda meta: (meta["SIZE"],)](q, q, out, n),
    8: lambda q, flat, out, n: fill[(1,)](torch.empty(n), n, SIZE=128),
    9: lambda q, flat, out, n: chosen[(1,)](q, q, out, n),
    10: lambda q, flat, out, n: device_descriptor[(1,)](q, out, n),
    11: lambda q, flat, out, n: host_descriptor[(1,)](
        TensorDescriptor.from_tensor(q.view(-1, 64), [32, 64]), (out, n), (1, 2.0)),
    12: with_second_way,
    13: lambda q, flat, out, n: [narrow[(1,)](q, out), runtime_size[(1,)](out, n),
                                 fill[(1,)](out, n, SIZE=256)],
    14: lambda q, flat, out, n: fill[(1, 70000)](out, n, SIZE=128),
    15: lambda q, flat, out, n: [copy_all[(1,)](flat[8 * i:], out, SIZE=2048) for i in (0, 1, 2)],
    16: lambda q, flat, out, n: [copy_all[(1,)](flat[i:], out, SIZE=2048) for i in (1, 3)],
    17: asks_about_the_gpu,
    18: lambda q, flat, out, n: no_tensor_cores[(1,)](q, out),
    19: differentiated,
    20: lambda q, flat, out, n: fill[(1,)](out, n, SIZE=128, num_wraps=4),
    21: lambda q, flat, out, n: fill[(1,)](out, SIZE=128),
    22: lambda q, flat, out, n: [assembly[(1,)](out[..., i:]) for i in (0, 1)],
    23: lambda q, flat, out, n: spills[(1,)](out, SIZE=16384),
    24: lambda q, flat, out, n: fill[(1,)](out, n, SIZE=512, num_warps=64),
    25: lambda q, flat, out, n: fill[1](out, n, SIZE=1024),
    26: lambda q, flat, out, n: fill[(1,)](out, n, SIZE=1024),
    30: lambda q, flat, out, n: [many[(1,)](out, N=i) for i in range(100)],
}
"""
