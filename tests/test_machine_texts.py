"""One kernel as each supported Triton prints it in TTIR: the machine computes the same of them.

`python -m tests.test_machine_texts` writes the text of the Triton at hand.
"""

import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from grader.kernel.machine.parse import parse
from grader.kernel.machine.program import Program

FOLDER = Path(__file__).with_name("machine_texts")
VERSIONS = ("3.6", "3.7", "3.8", "3.9")


@triton.jit
def merged(mean, count, other, more):
    total = count + more
    return (mean * count + other * more) / total, total


@triton.jit(noinline=True)
def scaled(v, k):
    return v * k, v + k


@triton.jit
def kernel(x, y, rows, n: tl.constexpr):
    p = tl.program_id(0)
    i = tl.max_contiguous(tl.multiple_of(tl.arange(0, n), n), n)
    if p >= rows:
        return
    at = p.to(tl.int64) * n + i
    v = tl.load(x + at, mask=i < n, other=0.0, cache_modifier=".cg", eviction_policy="evict_first")
    total = tl.zeros([n], tl.float32)
    for k in tl.range(p, 2 * p + 1, num_stages=2):
        if k % 2 == 0:
            total += v
        else:
            total -= v * k
    k = 0
    while k < p:
        k += 1
    a, b = scaled(tl.sum(v, 0), 2.0)
    mean, _ = tl.reduce((v, v * 0 + 1), 0, merged)
    scan = tl.cumsum(v, 0) + tl.cumsum(v, 0, reverse=True)
    first, second = tl.reshape(v, [n // 2, 2]).split()
    pairs = tl.reshape(tl.join(second, first), [n])
    square = v.to(tl.float16)[:, None] * v.to(tl.float16)[None, :]
    product = tl.max(tl.dot(square, tl.trans(square), input_precision="ieee"), 1)
    counts = tl.histogram(i % 4, n).to(tl.float32)
    bits = (v.to(tl.int32, bitcast=True) >> 1) & 0x3FFFFFFF
    other = tl.gather(v, n - 1 - i, 0) + libdevice.tanh(v) + tl.exp2(v) + bits.to(tl.float32)
    out = total + k + a + b + mean + scan + pairs + product + counts + other + tl.argmax(v, 0)
    tl.store(y + at, tl.where(v > 0, out, tl.maximum(out, -1e6)), mask=i < n)
    tl.atomic_add(y + rows * n + i, v, sem="relaxed")


def expected(x: torch.Tensor) -> torch.Tensor:
    """What `kernel` stores, and adds up."""
    found = []
    for p, v in enumerate(x):
        total = torch.zeros_like(v)
        for k in range(p, 2 * p + 1):
            total += v if k % 2 == 0 else -v * k
        square = v.half()[:, None] * v.half()[None, :]
        total += p + v.sum() * 2 + v.sum() + 2 + v.mean()
        total += v.cumsum(0) + v.flip(0).cumsum(0).flip(0) + v.reshape(-1, 2).flip(1).reshape(-1)
        total += (square.float() @ square.float().t()).amax(1)
        total += (torch.arange(16) < 4) * 4 + v.flip(0) + v.tanh() + v.exp2()
        total += ((v.view(torch.int32) >> 1) & 0x3FFFFFFF) + v.argmax()
        found.append(total)
    return torch.stack([*found, x.sum(0)])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_text_of_each_triton_computes_the_same(version: str) -> None:
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(3))
    y = torch.zeros(4, 16)
    module = parse((FOLDER / f"triton_{version}.ttir").read_text("utf-8"))
    Program(module).launch((4, 1, 1), [("x", x), ("y", y), ("rows", 3)])
    torch.testing.assert_close(y, expected(x), rtol=1e-5, atol=1e-4)
    names = {name for name in module.names if name and not re.match(r"(cst|c\d|\d)", name)}
    assert {"total", "scan", "pairs", "square", "k", "x", "rows"} <= names


def write() -> None:
    """Write the text of the Triton at hand."""
    from triton.compiler.compiler import ASTSource
    from triton.runtime import driver

    from grader.kernel.compile import absent_gpu
    from grader.kernel.compile.chips import CHIPS
    from grader.kernel.machine import capture

    driver.set_active(absent_gpu.Driver(CHIPS[80], tensors=torch.device("cpu")))
    signature = {"x": "*fp32", "y": "*fp32", "rows": "i32", "n": "constexpr"}
    source = ASTSource(kernel, signature, {(3,): 16}, {})
    text = capture.front_end(source, driver.active.get_current_target(), {})
    FOLDER.mkdir(exist_ok=True)
    version = ".".join(triton.__version__.split(".")[:2])
    text = re.sub(r'"/[^"]*/', '"', text)  # whose machine it was
    (FOLDER / f"triton_{version}.ttir").write_text(text, "utf-8")


if __name__ == "__main__":
    write()
