"""Computes the functions of libdevice in Triton's interpreter, which knows none of them.

A function of libdevice says for which types it has which symbol; Triton's own code chooses, and so
refuses here what it refuses on a GPU. Of the symbols the common ones are computed by numpy, through
the interpreter's operations, so that the judge follows their tiles like any others. For the symbols
see https://docs.nvidia.com/cuda/libdevice-users-guide/.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

_UNARY: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10")},
    **{name: getattr(np, name) for name in ("log1p", "sqrt", "cbrt", "floor", "ceil", "trunc")},
    **{name: getattr(np, name) for name in ("rint", "sin", "cos", "tan", "sinh", "cosh", "tanh")},
    **{"nearbyint": np.rint, "fabs": np.abs, "asin": np.arcsin, "acos": np.arccos},
    **{"atan": np.arctan, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "exp10": lambda x: np.power(x.dtype.type(10), x),
    "saturate": lambda x: np.clip(np.nan_to_num(x, nan=0.0), 0, 1),
}
_BINARY: dict[str, Callable[..., Any]] = {
    **{"pow": np.power, "fmod": np.fmod, "atan2": np.arctan2, "hypot": np.hypot},
    **{"copysign": np.copysign, "fdivide": np.divide},
    "fdim": lambda x, y: np.where(x <= y, x.dtype.type(0), x - y),
}
_PREDICATES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("isnanf", "isnand"), np.isnan),
    **dict.fromkeys(("isinff", "isinfd"), np.isinf),
    **dict.fromkeys(("finitef", "isfinited"), np.isfinite),
}
# Rounded to the nearest, as numpy rounds; with f for fp32 or d for fp64 before the name.
_ROUNDED_UNARY = {"rcp": lambda x: 1 / x, "sqrt": np.sqrt, "rsqrt": _UNARY["rsqrt"]}
_ROUNDED_BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}


def install(interpreter: Any) -> None:
    """Let kernels call libdevice, by either of its names, from now on in this process.

    Before the submission is imported, which may take functions out of the modules.
    """
    import triton.language as tl

    semantic = interpreter.interpreter_semantic
    interpreter.InterpreterBuilder.create_extern_elementwise = _create_extern_elementwise
    around = tl.core.extern(len).__code__
    try:
        cuda = importlib.import_module("triton.language.extra.cuda.libdevice")
        plain = importlib.import_module("triton.language.extra.libdevice")
    except ImportError:  # a Triton that was built without its backend for CUDA has no libdevice
        return
    for name, function in list(vars(cuda).items()):
        if getattr(function, "__code__", None) is around:
            for module in (cuda, plain):
                setattr(module, name, _called_directly(function, semantic))


def _called_directly(function: Callable[..., Any], semantic: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, "_semantic": semantic})

    return call


def _create_extern_elementwise(
    this: Any, _library: str, _path: str, symbol: str, args: list, *_: Any
) -> Any:
    """Compute a symbol, as a method of the interpreter's builder."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    plain = name.removesuffix("f")
    rounded = name[1:].removesuffix("_rn") if name.endswith("_rn") else ""
    if name in ("fma", "fmaf", "fma_rn", "fmaf_rn"):
        return this.create_fma(*args)
    if name in ("erf", "erff"):
        return this.create_erf(*args)
    if name in ("abs", "llabs"):
        return this.unary_op(*args, np.abs)
    if operation := _UNARY.get(plain) or _ROUNDED_UNARY.get(rounded):
        return this.unary_op(*args, operation)
    if operation := _BINARY.get(plain) or _ROUNDED_BINARY.get(rounded):
        return this.binary_op(*args, operation)
    if operation := _PREDICATES.get(name):
        return this.cast_impl(this.unary_op(*args, operation), this.get_int32_ty())
    raise NotImplementedError(f"without a GPU there is no {symbol} of libdevice")
