"""What functions of CUDA's libdevice compute on the tile machine, beside PyTorch."""

from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice as of_cuda

from grader.checks.translations import translation
from grader.kernel.machine.engine import Engine
from tests.on_machine import machine_in_process


@pytest.fixture(autouse=True)
def _on_the_machine() -> Iterator[None]:
    with machine_in_process(Engine(__file__), globals()):
        yield


ONE = {
    **{n: getattr(torch, n) for n in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p")},
    **{n: getattr(torch, n) for n in ("sqrt", "rsqrt", "floor", "ceil", "trunc", "sin", "cos")},
    **{n: getattr(torch, n) for n in ("tan", "sinh", "cosh", "tanh", "asin", "acos", "atan")},
    **{n: getattr(torch, n) for n in ("asinh", "abs", "isnan", "isinf", "erf")},
    **{"rint": torch.round, "exp10": lambda x: 10**x},
    **{"sqrt_rn": torch.sqrt, "rcp_rn": torch.reciprocal},
}
TWO = {
    **{n: getattr(torch, n) for n in ("pow", "fmod", "atan2", "hypot", "copysign")},
    **{"add_rn": torch.add, "sub_rn": torch.sub, "mul_rn": torch.mul, "div_rn": torch.div},
    "fdim": lambda x, y: (x - y).clamp(min=0),
}
ONLY_FP32 = {
    **{"fast_expf": torch.exp, "fast_logf": torch.log, "fast_log2f": torch.log2},
    **{"saturatef": torch.abs, "rsqrt_rn": torch.rsqrt, "finitef": torch.isfinite},
    **{"fast_dividef": torch.div, "fast_powf": torch.pow},
}


@triton.jit
def applies(x, y, out, function: tl.constexpr, two: tl.constexpr, n: tl.constexpr):
    i = tl.arange(0, n)
    v = tl.load(x + i)
    made = function(v, tl.load(y + i)) if two else function(v)
    tl.store(out + i, made.to(v.dtype))


def applied(name: str, dtype: torch.dtype, *, two: bool) -> tuple[torch.Tensor, ...]:
    x = torch.tensor([0.125, 0.25, 0.5, 0.75, 0.875, 1.0, 0.3, 0.9], dtype=dtype)
    y, out = x.flip(0), torch.zeros_like(x)
    applies[(1,)](x, y, out, getattr(of_cuda, name), two, 8)
    return x, y, out


@pytest.mark.parametrize("name", [*ONE, *TWO, *ONLY_FP32])
def test_a_function_of_libdevice_comes_to_what_its_name_says(name: str) -> None:
    expected = {**ONE, **TWO, **ONLY_FP32}[name]
    two = name in TWO or name in ("fast_dividef", "fast_powf")
    for dtype in (torch.float32, torch.float64)[: 1 if name in ONLY_FP32 else 2]:
        x, y, out = applied(name, dtype, two=two)
        due = expected(x, y) if two else expected(x)
        torch.testing.assert_close(out, due.to(dtype), rtol=3e-6, atol=1e-7)


def test_libdevice_takes_no_16_bits() -> None:
    with pytest.raises(Exception) as caught:
        applied("exp", torch.float16, two=False)
    text = f"{type(caught.value).__name__}: {caught.value} {caught.value.__cause__!r}"
    assert ".to(tl.float32)" in translation(text)
