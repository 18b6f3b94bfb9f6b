"""The tile machine in a process: what it refuses at which line, prints and translates."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import triton
import triton._C.libtriton as libtriton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from grader.kernel.machine.engine import Engine
from grader.kernel.machine.outside import OutOfBounds
from grader.kernel.machine.steps import Asserted, Limits, Stopped
from grader.kernel.machine.ttir import Unmodelled
from tests.on_machine import machine_in_process

N = 32


@pytest.fixture(autouse=True)
def engine() -> Iterator[Engine]:
    """Kernels of these tests run on the machine, and are translated anew in each."""
    with machine_in_process(Engine(__file__, limits=Limits(seconds=20.0)), globals()) as engine:
        yield engine


def numbers() -> torch.Tensor:
    return torch.randn(N, generator=torch.Generator().manual_seed(5))


@triton.jit
def copy(x, y, size, n: tl.constexpr):
    i = tl.program_id(0) * n + tl.arange(0, n)
    v = tl.load(x + i, mask=i < size)
    tl.store(y + i, v * 2)


@triton.jit
def added(y, n: tl.constexpr):
    tl.atomic_add(y + tl.arange(0, n), 1.0)


def line_of(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(number for number, line in enumerate(lines) if text in line)


def last_line(caught: pytest.ExceptionInfo) -> int:
    return caught.traceback[-1].lineno + 1


def test_an_access_outside_is_told_with_argument_and_line(engine: Engine) -> None:
    copy[(2,)](numbers(), torch.zeros(N), N, 16)
    with pytest.raises(OutOfBounds) as caught:
        copy[(3,)](numbers(), torch.zeros(N + 5), N, 16)
    assert str(caught.value) == (
        "write outside a tensor: past the end of argument y; program (2, 0, 0): 11 of 16"
        " elements, the first of them right past the end, without a mask"
    )
    assert last_line(caught) == line_of(copy, "tl.store(y + i")
    with pytest.raises(OutOfBounds, match="without a mask"):  # though TTIR has one
        added[(1,)](torch.zeros(N), 64)


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
    with pytest.raises(Stopped, match=r"0\.2 s of computing") as caught:
        never_ends[(1,)](torch.zeros(2), 1)
    assert last_line(caught) == line_of(never_ends, "while")


@triton.jit(debug=True)
def says_and_asserts(x, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    tl.device_print("v is", v)
    tl.device_assert(v < 2, "v is too large")


def test_prints_and_assertions(capsys: pytest.CaptureFixture) -> None:
    says_and_asserts[(2,)](torch.tensor([0.5, 1.5]), 2)
    printed = capsys.readouterr().out.splitlines()
    line = line_of(says_and_asserts, "device_print")
    assert [re.sub(r"\s+", " ", line) for line in printed] == [
        f"line {line}, program ({p}, 0, 0): v is: [0.5 1.5]" for p in (0, 1)
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
    assert len(engine._programs[False, False, False]) == 2
    copy[(2,)](numbers().half(), torch.zeros(N), 16, 16)
    assert len(engine._programs[False, False, False]) == 3


@triton.jit
def largest(y):
    tl.store(y + tl.arange(0, 4), tl.full((4,), 3.4028234663852886e38, tl.float32))


def test_a_constant_is_the_number_of_its_type_and_not_the_decimals_of_the_text(
    engine: Engine,
) -> None:
    y = torch.zeros(4)
    largest[(1,)](y)
    assert y.tolist() == [torch.finfo(torch.float32).max] * 4


@triton.jit
def product(x, y, n: tl.constexpr):
    i = tl.arange(0, n)
    at = i[:, None] * n + i[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))


def test_dots_round_to_tf32_where_asked(engine: Engine) -> None:
    torch.manual_seed(0)
    x, exact, rounded = torch.randn(16, 16), torch.zeros(16, 16), torch.zeros(16, 16)
    product[(1,)](x, exact, 16)
    engine.reset(tf32=True)
    product[(1,)](x, rounded, 16)
    torch.testing.assert_close(exact, x @ x, rtol=1e-5, atol=1e-5)
    error = (rounded - exact).abs().max()
    assert 1e-5 < error < 2e-2


BY_NUMBERS = {
    "add": lambda a, b: a + b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
}


@triton.jit
def reduces(to, x, kind: tl.constexpr):
    at = (tl.program_id(0) * 4 + tl.arange(0, 4))[:, None] * 8 + tl.arange(0, 8)
    desc = tl.make_tensor_descriptor(to, [6, 8], [8, 1], [4, 8])
    place, tile = [tl.program_id(0) * 4, 0], tl.load(x + at)
    if kind == "add":
        desc.atomic_add(place, tile)
    elif kind == "min":
        desc.atomic_min(place, tile)
    elif kind == "max":
        desc.atomic_max(place, tile)
    elif kind == "and":
        desc.atomic_and(place, tile)
    elif kind == "or":
        desc.atomic_or(place, tile)
    else:
        desc.atomic_xor(place, tile)


@pytest.mark.skipif(
    not hasattr(libtriton.ir, "DESCRIPTOR_REDUCE_KIND"), reason="this Triton has none of it"
)
@pytest.mark.parametrize("kind", BY_NUMBERS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.uint32, torch.float32, torch.float16])
def test_a_tile_is_reduced_into_a_tensor(kind: str, dtype: torch.dtype) -> None:
    if dtype.is_floating_point and kind != "add":
        return  # Triton refuses them
    shift = 3 * dtype.is_signed
    before = [i % 7 - shift for i in range(48)]
    to = torch.tensor(before).to(dtype).reshape(6, 8)
    x = (torch.arange(64) % 5 - shift).to(dtype).reshape(8, 8)
    reduces[(2,)](to, x, kind)
    due = [BY_NUMBERS[kind](a, i % 5 - shift) for i, a in enumerate(before)]
    assert to.flatten().tolist() == due
