"""Kernels through Triton's front end on the tile machine, beside what PyTorch computes.

Each is launched on 32 numbers `x`, and on `y` for what it stores.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import compiler
from triton.language.extra import libdevice
from triton.runtime import driver
from triton.tools.tensor_descriptor import TensorDescriptor

from grader.kernel.compile import asked_gpu
from grader.kernel.compile.chips import CHIPS
from grader.kernel.machine.engine import Engine
from grader.kernel.machine.steps import Asserted, Limits, Stopped
from grader.kernel.machine.tensors import OutOfBounds
from grader.kernel.machine.ttir import Unmodelled

N = 32


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Kernels of these tests run on the machine, and are translated anew in each."""
    monkeypatch.setattr(compiler, "compile", compiler.compile)
    nothing = asked_gpu._nothing
    monkeypatch.setattr(driver, "_active", asked_gpu._Driver(CHIPS[80], nothing, nothing))
    for kernel in globals().values():
        if isinstance(kernel, triton.JITFunction):
            kernel.device_caches.clear()
    engine = Engine(__file__, limits=Limits(seconds=20.0))
    engine.install()
    return engine


def numbers() -> torch.Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(5))


KERNELS: list[tuple[Any, Callable[[torch.Tensor], torch.Tensor], tuple[int, ...]]] = []


def computes(expected: Callable[[torch.Tensor], torch.Tensor], grid: tuple[int, ...] = (1,)) -> Any:
    """Have a kernel launched on `grid`; it is to store what `expected` makes of x."""

    def keep(kernel: Any) -> Any:
        KERNELS.append((kernel, expected, grid))
        return kernel

    return keep


@computes(lambda x: x.cumsum(0) + x.flip(0).cumsum(0).flip(0))
@triton.jit
def scans(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    tl.store(y + i, tl.cumsum(v, 0) + tl.cumsum(v, 0, reverse=True))


@computes(lambda x: torch.full_like(x, float(x.argmax() + 100 * x.argmin())))
@triton.jit
def indices_of_extremes(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    tl.store(y + i, tl.zeros([n], tl.float32) + tl.argmax(v, 0) + 100 * tl.argmin(v, 0))


@computes(lambda x: x.sort()[0] + x.flip(0))
@triton.jit
def sorts_and_flips(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, tl.sort(tl.load(x + i)) + tl.flip(tl.load(x + i), 0))


@computes(lambda x: torch.cat([x[0::2], x[1::2] + x[0::2]]))
@triton.jit
def joins_and_splits(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    first, second = tl.reshape(tl.load(x + i), [n // 2, 2]).split()
    both = tl.permute(tl.join(first, second + first), (1, 0))
    tl.store(y + i, tl.reshape(both, [n]))


@computes(lambda x: x.flip(0))
@triton.jit
def gathers(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, tl.gather(tl.load(x + i), n - 1 - i, 0))


@computes(lambda x: torch.tensor([8.0] * 4 + [0.0] * 28))
@triton.jit
def counts(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, tl.histogram(i % 4, n).to(tl.float32))


@computes(lambda x: x.exp() + x.tanh() + torch.erf(x) + x.abs().pow(1.5))
@triton.jit
def calls_libdevice(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    out = libdevice.exp(v) + libdevice.tanh(v) + tl.erf(v) + libdevice.pow(tl.abs(v), 1.5)
    tl.store(y + i, out)


@computes(lambda x: torch.cat([x[k * 4 : k * 4 + 4] * (k * 3 % 8) for k in range(8)]), (8,))
@triton.jit
def loops_that_part(x, y, n: tl.constexpr):
    p = tl.program_id(0)
    i = p * 4 + tl.arange(0, 4)
    total = tl.zeros([4], tl.float32)
    for _ in range(p * 3 % 8):
        total += tl.load(x + i)
    tl.store(y + i, total)


@computes(lambda x: torch.cat([x[k * 4 : k * 4 + 4] * ((7 * k) % 5) for k in range(8)]), (2, 4))
@triton.jit
def whiles_that_part(x, y, n: tl.constexpr):
    p = tl.program_id(0) + tl.program_id(1) * tl.num_programs(0)
    i = p * 4 + tl.arange(0, 4)
    total, k = tl.zeros([4], tl.float32), 0
    while k < (7 * p) % 5:
        total += tl.load(x + i)
        k += 1
    tl.store(y + i, total)


@computes(lambda x: torch.cat([x[:8] * 2, x[8:16] * 0 + 5, torch.zeros(8), x[24:]]), (4,))
@triton.jit
def branches_and_returns(x, y, n: tl.constexpr):
    p = tl.program_id(0)
    i = p * 8 + tl.arange(0, 8)
    if p == 2:
        return
    v = tl.load(x + i)
    if p == 0:
        v = v * 2
    elif p == 1:
        v = v * 0 + 5
    tl.store(y + i, v)


@computes(lambda x: torch.tensor([x.sum(), x.max().clamp(min=0), 496.0, 3.0] + [0.0] * 28), (4,))
@triton.jit
def atomics(x, y, n: tl.constexpr):
    i = tl.program_id(0) * 8 + tl.arange(0, 8)
    v = tl.load(x + i)
    tl.atomic_add(y, tl.sum(v, 0), sem="relaxed")
    tl.atomic_max(y + 1 + i * 0, v)
    tl.atomic_add(y + 2 + i * 0, i.to(tl.float32))
    tl.atomic_xchg(y + 3, tl.program_id(0).to(tl.float32))


@computes(lambda x: torch.tensor([4.0, 6.0] + [0.0] * 30), (4,))
@triton.jit
def takes_a_lock(x, y, n: tl.constexpr):
    lock = (y + n).to(tl.pointer_type(tl.int32))
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    tl.store(y, tl.load(y) + 1)
    tl.store(y + 1, tl.load(y + 1) + tl.program_id(0))
    tl.atomic_xchg(lock, 0)


@triton.jit
def merged(mean, count, other, more):
    total = count + more
    return (mean * count + other * more) / total, total


@computes(lambda x: torch.full_like(x, float(x.mean())))
@triton.jit
def reduces_pairs(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    mean, _ = tl.reduce((v, v * 0 + 1), 0, merged)
    tl.store(y + i, tl.zeros([n], tl.float32) + mean)


@triton.jit(noinline=True)
def called(v, k):
    return v * k, v + k


@computes(lambda x: torch.cat([x[:4] * 3 + 2, torch.zeros(28)]), (4,))
@triton.jit
def calls(x, y, n: tl.constexpr):
    i = tl.program_id(0)
    a, b = called(tl.load(x + i), 2.0)
    tl.store(y + i, a + b)


@computes(lambda x: x.reshape(2, 16).sum(0).repeat(2))
@triton.jit
def makes_descriptors(x, y, n: tl.constexpr):
    d = tl.make_tensor_descriptor(x, [2, 16], [16, 1], [2, 16])
    out = tl.make_tensor_descriptor(y, [2, 16], [16, 1], [2, 16])
    s = tl.sum(d.load([0, 0]), 0)
    out.store([0, 0], s[None, :] + tl.zeros([2, 16], tl.float32))


@computes(lambda x: torch.cat([x[:16, None] @ x[None, :16], torch.zeros(16, 16)]).sum(0).repeat(2))
@triton.jit
def multiplies(x, y, n: tl.constexpr):
    i = tl.arange(0, 16)
    v = tl.load(x + i)
    ones = tl.zeros([16, 16], tl.float32) + 1
    c = tl.dot(ones, v[:, None] * v[None, :], input_precision="ieee")
    out = tl.max(c, 0)
    tl.store(y + i, out)
    tl.store(y + 16 + i, out)


@computes(lambda x: x)
@triton.jit
def draws(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    r = tl.rand(1234, i)
    tl.store(y + i, tl.where((r >= 0) & (r < 1), tl.load(x + i), 0.0))


@computes(lambda x: x * 0 + torch.arange(N) // 4)
@triton.jit
def selects_a_tensor(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    place = tl.where(i % 2 == 0, x + i, y + i)
    tl.store(y + i, (i // 4).to(tl.float32), mask=i % 2 == 1)
    tl.store(place, (i // 4).to(tl.float32))
    tl.store(y + i, tl.load(tl.where(i % 2 == 0, x + i, y + i)))


@pytest.mark.parametrize(
    ("kernel", "expected", "grid"), KERNELS, ids=lambda v: getattr(v, "__name__", "")
)
def test_kernels(kernel: Any, expected: Callable[..., torch.Tensor], grid: tuple[int, ...]) -> None:
    x, y = numbers(), torch.zeros(N + 1)
    wanted = expected(x)
    kernel[grid](x, y, N)
    torch.testing.assert_close(y[:N], wanted, rtol=1e-5, atol=1e-5)


@triton.jit
def copy(x, y, size, n: tl.constexpr):
    i = tl.program_id(0) * n + tl.arange(0, n)
    v = tl.load(x + i, mask=i < size)
    tl.store(y + i, v * 2)


def line_of(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(number for number, line in enumerate(lines) if text in line)


def last_line(caught: pytest.ExceptionInfo) -> int:
    return caught.traceback[-1].lineno + 1


def test_an_access_outside_is_told_with_argument_and_line(engine: Engine) -> None:
    copy[(2,)](numbers(), torch.zeros(N), N, 16)
    assert engine.refused is None
    with pytest.raises(OutOfBounds) as caught:
        copy[(3,)](numbers(), torch.zeros(N + 5), N, 16)
    assert str(caught.value) == (
        "write outside a tensor: past the end of argument y; 11 elements, the first of them"
        " right past the end"
    )
    assert last_line(caught) == line_of(copy, "tl.store(y + i")
    assert engine.refused is caught.value


def test_a_masked_lane_without_other_is_no_number() -> None:
    y = torch.zeros(N)
    copy[(2,)](numbers(), y, 10, 16)
    assert y.isnan().tolist() == [False] * 10 + [True] * 22


ADD = tl.constexpr("add.f32 $0, $1, $1;")


@triton.jit
def assembled(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.inline_asm_elementwise(ADD, "=f,f", [tl.load(x + i)], tl.float32, True, 1)
    tl.store(y + i, v)


def test_what_is_not_modelled_is_said_with_its_line() -> None:
    words = "this Triton operation is not modelled: tt.elementwise_inline_asm"
    with pytest.raises(Unmodelled, match=words) as caught:
        assembled[(1,)](numbers(), torch.zeros(N), N)
    assert last_line(caught) == line_of(assembled, "tl.inline_asm")


@triton.jit
def never_ends(x, n: tl.constexpr):
    while tl.load(x) == 0.0:
        tl.store(x + 1, 1.0)


def test_a_kernel_that_never_ends_is_stopped(engine: Engine) -> None:
    engine._limits = Limits(seconds=0.2)
    with pytest.raises(
        Stopped, match=rf"0.2 s, in the loop of line {line_of(never_ends, 'while')}"
    ):
        never_ends[(1,)](torch.zeros(2), 1)


@triton.jit(debug=True)
def says_and_asserts(x, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    tl.device_print("v is", v)
    tl.device_assert(v < 2, "v is too large")


def test_prints_and_assertions(capsys: pytest.CaptureFixture) -> None:
    says_and_asserts[(2,)](torch.tensor([0.5, 1.5]), 2)
    printed = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\s+", " ", line) for line in printed] == [
        f"({p}, 0, 0) v is: [0.5, 1.5]" for p in (0, 1)
    ]
    with pytest.raises(Asserted, match="v is too large, in program 0"):
        says_and_asserts[(1,)](torch.tensor([0.5, 2.5]), 2)


@triton.jit
def squares(desc, out, pair, n: tl.constexpr):
    tile = desc.load([8, 0])
    i, j = tl.arange(0, n), tl.arange(0, n)
    tl.store(out + i[:, None] * n + j[None, :], tile * tl.load(pair[0]) + pair[1])


def test_tuples_and_descriptors_of_the_host() -> None:
    x, out = torch.randn(12, 16), torch.zeros(16, 16)
    squares[(1,)](TensorDescriptor.from_tensor(x, [16, 16]), out, (torch.tensor([3.0]), 7), 16)
    expected = torch.cat([x[8:], torch.zeros(12, 16)]) * 3 + 7
    torch.testing.assert_close(out, expected)


def test_a_kernel_is_translated_once_for_types_and_constants(engine: Engine) -> None:
    for size in (32, 20, 16):
        copy[(2,)](numbers(), torch.zeros(N), size, 16)
        copy[(2,)](numbers()[1:25], torch.zeros(N)[3:], 9, 8)
    assert len(engine._programs[False]) == 2
    copy[(2,)](numbers().half(), torch.zeros(N), 16, 16)
    assert len(engine._programs[False]) == 3


@triton.jit
def product(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    at = i[:, None] * n + i[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))


def test_dots_round_to_tf32_where_asked(engine: Engine) -> None:
    x, exact, rounded = torch.randn(16, 16), torch.zeros(16, 16), torch.zeros(16, 16)
    product[(1,)](x, exact, 16)
    engine.reset(tf32=True)
    product[(1,)](x, rounded, 16)
    torch.testing.assert_close(exact, x @ x, rtol=1e-5, atol=1e-5)
    error = (rounded - exact).abs().max()
    assert 1e-5 < error < 2e-2
