"""What kernels compute on the tile machine, beside PyTorch: operations and grids.

Each is launched on 32 numbers `x`, and on `y` for what it stores.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from grader.checks.translations import translation
from grader.kernel.machine.engine import Engine
from tests.on_machine import machine_in_process

N = 32

pytestmark = pytest.mark.filterwarnings("ignore:Logical operators|builtin m:UserWarning")


@pytest.fixture(autouse=True)
def _on_the_machine() -> Iterator[None]:
    with machine_in_process(Engine(__file__), globals()):
        yield


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


@computes(lambda x: torch.where(torch.arange(N) % 2 == 1, 0.0, x), grid=(N,))
@triton.jit
def selects_by_program(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tile = tl.load(x + i)
    if tl.program_id(0) % 2 == 0:  # Triton makes a selection of this branch
        tile = tl.zeros([n], tl.float32)
    tl.store(y + i, tile, mask=i == n - 1 - tl.program_id(0))


@computes(lambda x: torch.where(x.abs() < 1, (x * x).maximum(x.clamp(max=0.5)), 0.0))
@triton.jit
def words_of_python(x, y, n: tl.constexpr, hidden=None):
    i = tl.arange(0, n)
    inside = not (i >= n) and (i >= 0 or i < n)
    v = tl.load(x + i, mask=inside and (hidden is None or i < 0), other=0.0)
    near = v < 1 and not (v <= -1)
    tl.store(y + i, max(min(v, 0.5), v * v), mask=near)


@triton.jit
def later(a, b):
    return b


@triton.jit
def larger(a, b):
    if a > b:
        return a
    return b


@triton.jit
def normaliser(max_a, sum_a, max_b, sum_b):
    largest = tl.maximum(max_a, max_b)
    return largest, sum_a * tl.exp(max_a - largest) + sum_b * tl.exp(max_b - largest)


@triton.jit
def affine(scale_a, shift_a, scale_b, shift_b):
    return scale_a * scale_b, shift_a * scale_b + shift_b


def affine_scan(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(4, 8)
    scale, shift = rows, rows + 1
    out = [shift[3]]
    for row in (2, 1, 0):
        out.insert(0, out[0] * scale[row] + shift[row])
    return torch.stack(out).flatten()


def reduced_by_rows(x: torch.Tensor) -> torch.Tensor:
    rows = x.reshape(4, 8)
    found = [rows[:, 7], rows.logsumexp(1), (rows[:, 7] * 10).int().float()]
    return torch.cat([*found, rows[3], rows[3, 7].expand(12)])


@computes(reduced_by_rows)
@triton.jit
def reduces_by_functions(x, y, n: tl.constexpr):
    row, column = tl.arange(0, 4), tl.arange(0, 8)
    v = tl.load(x + row[:, None] * 8 + column)
    tl.store(y + row, tl.reduce(v, 1, later))
    largest, total = tl.reduce((v, tl.zeros_like(v) + 1.0), 1, normaliser)
    tl.store(y + 4 + row, largest + tl.log(total))
    tl.store(y + 8 + row, tl.reduce((v * 10).to(tl.int32), 1, later).to(tl.float32))
    tl.store(y + 12 + column[None, :], tl.reduce(v, 0, later, keep_dims=True))
    last = tl.zeros([4], tl.float32) + tl.reduce(v, None, later)
    for at in tl.static_range(20, 32, 4):
        tl.store(y + at + row, last)


@computes(lambda x: torch.full_like(x, float(x.max())), (2,))
@computes(lambda x: torch.full_like(x, float(x.max())))
@triton.jit
def reduces_by_a_function_with_two_returns(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    tl.store(y + i, tl.zeros([n], tl.float32) + tl.reduce(tl.load(x + i), 0, larger))


@computes(affine_scan)
@triton.jit
def scans_by_a_function(x, y, n: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)
    v = tl.load(x + at)
    _, shift = tl.associative_scan((v, v + 1.0), 0, affine, reverse=True)
    tl.store(y + at, shift)


@computes(affine_scan, (2,))
@triton.jit
def scans_what_programs_share_with_what_is_their_own(x, y, n: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * 8 + tl.arange(0, 8)
    v = tl.load(x + at)
    _, shift = tl.associative_scan((v, v + 1.0 + tl.program_id(0)), 0, affine, reverse=True)
    tl.store(y + at, shift, mask=tl.program_id(0) == 0)


@pytest.mark.parametrize(
    ("kernel", "expected", "grid"), KERNELS, ids=lambda v: getattr(v, "__name__", "")
)
def test_kernels(kernel: Any, expected: Callable[..., torch.Tensor], grid: tuple[int, ...]) -> None:
    x, y = numbers(), torch.zeros(N + 1)
    wanted = expected(x)
    kernel[grid](x, y, N)
    torch.testing.assert_close(y[:N], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grid", [[2], lambda meta: [2, 1]])
def test_a_grid_may_be_a_list(grid: Any) -> None:
    x, y = numbers(), torch.zeros(N)
    doubled[(0,)](x, y, 16)  # of an empty one nothing runs
    assert not y.any()
    doubled[grid](x, y, 16)
    assert torch.equal(y, 2 * x)


def test_a_grid_is_no_number() -> None:
    with pytest.raises(Exception) as caught:
        doubled[2](numbers(), torch.zeros(N), 16)
    assert "a grid is a tuple" in translation(f"{type(caught.value).__name__}: {caught.value}")


@triton.jit
def doubled(x, y, n: tl.constexpr):
    i = tl.program_id(0) * n + tl.arange(0, n)
    tl.store(y + i, tl.load(x + i) * 2)
