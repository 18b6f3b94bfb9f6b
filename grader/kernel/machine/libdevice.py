"""The functions of libdevice that kernels of attention may call by their symbols, as `__nv_expf`.

See https://docs.nvidia.com/cuda/libdevice-users-guide/. The machine models no others.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from grader.kernel.machine.arrays import Tensor, cast, zeros_like

Function = Callable[..., Tensor]


def _away_from_zero(x: Tensor) -> Tensor:
    return torch.where(x.frac().abs() == 0.5, x.trunc() + x.sign(), x.round())


def fused(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Multiply and add with one rounding: fp64 holds the product of fp32 numbers exactly."""
    return cast(a.double() * b.double() + c.double(), a.dtype)


def _saturated(x: Tensor) -> Tensor:
    return torch.where(x != x, 0.0, x.clamp(0, 1))


def _bits_as(dtype: torch.dtype) -> Function:
    return lambda x: x.contiguous().view(dtype)


_SAME = (
    *("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "floor", "ceil"),
    *("trunc", "sin", "cos", "tan", "sinh", "cosh", "tanh", "asin", "acos", "atan", "asinh"),
    *("acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "fmod", "atan2", "hypot", "copysign"),
    *("nextafter", "remainder", "fmax", "fmin", "pow", "ldexp", "abs"),
)
# The symbol of an fp32 function has an f behind the name, as __nv_expf.
_FLOATS: dict[str, Function] = {
    **{name: getattr(torch, name) for name in _SAME},
    "fabs": torch.abs,
    "rint": torch.round,
    "nearbyint": torch.round,
    "round": _away_from_zero,
    "exp10": lambda x: cast(torch.pow(10.0, x.double()), x.dtype),
    "fdim": lambda x, y: torch.where(x <= y, zeros_like(x), x - y),
    "fma": fused,
    "powi": torch.pow,
    "scalbn": torch.ldexp,
    "saturate": _saturated,
    "remainder": lambda x, y: x - y * cast(torch.round(x.double() / y.double()), x.dtype),
    "isnan": torch.isnan,
    "isinf": torch.isinf,
    "finite": torch.isfinite,
    "isfinite": torch.isfinite,
    "signbit": torch.signbit,
}
_FAST = ("exp", "exp10", "log", "log2", "log10", "sin", "cos", "tan", "pow")
_NAMED: dict[str, Function] = {
    **{f"fast_{name}": _FLOATS[name] for name in _FAST},
    "fast_fdivide": torch.true_divide,
    **{f"{kind}add_rn": torch.add for kind in "fd"},
    **{f"{kind}sub_rn": torch.sub for kind in "fd"},
    **{f"{kind}mul_rn": torch.mul for kind in "fd"},
    **{f"{kind}div_rn": torch.true_divide for kind in "fd"},
    **{f"{kind}rcp_rn": torch.reciprocal for kind in "fd"},
    **{f"{kind}sqrt_rn": torch.sqrt for kind in "fd"},
    "frsqrt_rn": torch.rsqrt,
    "fma_rn": fused,
    "float_as_int": _bits_as(torch.int32),
    "float_as_uint": _bits_as(torch.int32),
    "int_as_float": _bits_as(torch.float32),
    "uint_as_float": _bits_as(torch.float32),
    "double_as_longlong": _bits_as(torch.int64),
    "longlong_as_double": _bits_as(torch.float64),
    "int2float_rn": lambda x: x.float(),
    "ll2float_rn": lambda x: x.float(),
    "int2double_rn": lambda x: x.double(),
    "ll2double_rn": lambda x: x.double(),
    "llabs": torch.abs,
}


@functools.cache
def function(symbol: str) -> Function | None:
    """Return the function of a symbol, or None; symbols of fp32 end with f, some of fp64 with d."""
    name = symbol.removeprefix("__nv_")
    for known in (name, name.removesuffix("f"), name.removesuffix("d"), name.removesuffix("_rn")):
        found = _NAMED.get(known) or _FLOATS.get(known) or _NAMED.get(known.removesuffix("f"))
        if found is not None:
            return found
    return None
