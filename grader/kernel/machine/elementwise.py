"""What Triton's operations on single elements compute, as functions of arrays.

Integers wrap around at their width, and division truncates towards 0. `maxnumf` ignores NaN,
`maximumf` returns it. Guarded by tests/test_machine_operations.py.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import libdevice
from grader.kernel.machine.arrays import Tensor, as_bits, cast, dtype_of, unsigned
from grader.kernel.machine.ttir import Module, Operation, Type

Function = Callable[..., Tensor]

# They change no result; a flag of overflow is a promise of the kernel's author.
_HINTS = {"overflow", "fastmath", "libname", "libpath", "pure"}
_ATTRIBUTES = _HINTS | {"rounding", "propagateNan", "symbol"}


def divided(a: Tensor, b: Tensor) -> Tensor:
    """Divide integers as C does; the least one by -1 wraps around, where C kills the process.

    Division by 0 gives all ones, as on a GPU.
    """
    by_zero, by_minus_one = b == 0, b == -1
    if not by_zero.any() and not by_minus_one.any():
        return torch.div(a, b, rounding_mode="trunc")
    safe = torch.where(by_zero | by_minus_one, 1, b)
    quotient = torch.where(by_minus_one, 0 - a, torch.div(a, safe, rounding_mode="trunc"))
    return cast(torch.where(by_zero, -1, quotient), a.dtype)


def remainder(a: Tensor, b: Tensor) -> Tensor:
    """Return the remainder of integers, with the sign of the dividend; by 0 it is the dividend."""
    by_zero, unsafe = b == 0, (b == 0) | (b == -1)
    if not unsafe.any():
        return torch.fmod(a, b)
    rest = torch.fmod(a, torch.where(unsafe, 1, b))
    return cast(torch.where(by_zero, a, rest), a.dtype)


def _clamped(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.fmin(torch.fmax(x, low), high)


def _clamped_with_nan(x: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.where(x != x, x, _clamped(x, low, high))


def _high_half(a: Any, b: Any) -> Any:
    if a.dtype.itemsize < 8:
        return (a.astype("u8") * b.astype("u8")) >> np.uint64(8 * a.dtype.itemsize)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    a_high, a_low, b_high, b_low = a >> half, a & low, b >> half, b & low
    cross = a_high * b_low + ((a_low * b_low) >> half)
    middle = a_low * b_high + (cross & low)
    return a_high * b_high + (cross >> half) + (middle >> half)


_PLAIN: dict[str, Function] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.addf": operator.add,
    "arith.subf": operator.sub,
    "arith.mulf": operator.mul,
    "arith.divf": operator.truediv,
    "tt.precise_divf": operator.truediv,
    "arith.andi": operator.and_,
    "arith.ori": operator.or_,
    "arith.xori": operator.xor,
    "arith.shli": operator.lshift,
    "arith.shrsi": operator.rshift,
    "arith.negf": operator.neg,
    "arith.divsi": divided,
    "arith.remsi": remainder,
    "arith.remf": torch.fmod,
    "arith.maxsi": torch.maximum,
    "arith.minsi": torch.minimum,
    "arith.maxnumf": torch.fmax,
    "arith.minnumf": torch.fmin,
    "arith.maximumf": torch.maximum,
    "arith.minimumf": torch.minimum,
    "arith.select": torch.where,
    "math.fma": libdevice.fused,
    "math.absi": torch.abs,
    "math.absf": torch.abs,
    "tt.precise_sqrt": torch.sqrt,
    "arith.ceildivsi": lambda a, b: divided(a + b - 1, b),
    "arith.shrui": unsigned(np.right_shift),
    "arith.divui": unsigned(np.floor_divide),
    "arith.remui": unsigned(np.remainder),
    "arith.maxui": unsigned(np.maximum),
    "arith.minui": unsigned(np.minimum),
    "tt.mulhiui": unsigned(_high_half),
    "tt.addptr": operator.add,
    **{
        f"math.{name}": getattr(torch, name)
        for name in (
            *("exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sqrt", "rsqrt"),
            *("sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "floor", "ceil", "trunc"),
            *("round", "asin", "acos", "atan", "atan2"),
        )
    },
}
_OF_BITS: dict[str, Function] = {  # of numbers of one bit
    **dict.fromkeys(("arith.addi", "arith.subi"), torch.logical_xor),
    "arith.muli": torch.logical_and,
}
_EITHER_UNORDERED = {"ueq": operator.eq, "ult": operator.lt, "ule": operator.le}
_EITHER_UNORDERED |= {"ugt": operator.gt, "uge": operator.ge}
_COMPARED: dict[str, Function] = {
    **{"eq": operator.eq, "ne": operator.ne, "slt": operator.lt, "sle": operator.le},
    **{"sgt": operator.gt, "sge": operator.ge, "ult": unsigned(np.less)},
    **{"ule": unsigned(np.less_equal), "ugt": unsigned(np.greater)},
    "uge": unsigned(np.greater_equal),
}
_COMPARED_FLOATS: dict[str, Function] = {
    **{"oeq": operator.eq, "olt": operator.lt, "ole": operator.le, "ogt": operator.gt},
    **{"oge": operator.ge, "une": operator.ne},
    "one": lambda a, b: (a < b) | (a > b),
    "ord": lambda a, b: (a == a) & (b == b),
    "uno": lambda a, b: (a != a) | (b != b),
    **{
        name: (lambda a, b, f=f: f(a, b) | (a != a) | (b != b))
        for name, f in _EITHER_UNORDERED.items()
    },
}
CASTS = frozenset(
    (
        *("arith.extsi", "arith.extui", "arith.trunci", "arith.sitofp", "arith.uitofp"),
        *("arith.fptosi", "arith.fptoui", "arith.extf", "arith.truncf", "tt.fp_to_fp"),
        *("arith.index_cast", "arith.index_castui"),
    )
)
NAMES = frozenset(
    (*_PLAIN, *CASTS, "arith.cmpi", "arith.cmpf", "tt.clampf", "tt.extern_elementwise")
)


_unsigned_to_floats = unsigned(lambda x: x.astype("f8"))


def function_of(op: Operation, module: Module) -> Function:
    """Return the function that an operation on single elements computes.

    Raises:
        Unmodelled: the operation has an unknown attribute, or calls an unknown function.
    """
    kind, result = module.type(op.operands[0]), module.type(op.results[0])
    op.check(_ATTRIBUTES)
    if op.name in CASTS:
        return _cast(op, kind, result)
    if op.name == "arith.cmpi":
        return _known(op, _COMPARED)
    if op.name == "arith.cmpf":
        return _known(op, _COMPARED_FLOATS)
    if op.name == "tt.clampf":
        return _clamped_with_nan if op.attributes["propagateNan"] == "all" else _clamped
    if op.name == "tt.extern_elementwise":
        found = libdevice.function(op.text.rpartition("\0")[2])
        if found is None:
            raise op.unmodelled(op.text.rpartition("\0")[2])
        dtype = dtype_of(result)
        return lambda *values: cast(found(*values), dtype)
    if kind.element == "i1" and op.name in _OF_BITS:
        return _OF_BITS[op.name]
    return _PLAIN[op.name]


def _known(op: Operation, table: dict[str, Function]) -> Function:
    if len(op.words) != 1 or op.words[0] not in table:
        raise op.unmodelled(" ".join(op.words))
    return table[op.words[0]]


def _cast(op: Operation, kind: Type, result: Type) -> Function:
    """Return the function that casts elements of type `kind` to type `result`."""
    name, dtype = op.name.partition(".")[2], dtype_of(result)
    if name in ("extsi", "sitofp") and kind.element == "i1":
        return lambda x: -cast(x, dtype)
    if name in ("extui", "uitofp", "index_castui"):
        if kind.bits == 64:
            return lambda x: cast(_unsigned_to_floats(x), dtype)
        return lambda x: cast(as_bits(x), dtype)
    if name == "trunci" and result.element == "i1":
        return lambda x: (x & 1) != 0
    if name in ("fptosi", "fptoui"):
        bits = max(32, result.bits)
        low, high = (-(1 << bits - 1), 1 << bits - 1) if name == "fptosi" else (0, 1 << bits)
        return lambda x: _whole_numbers(x, low, high, dtype)
    rounding = op.attributes.get("rounding", "rtne")
    if rounding != "rtne":
        raise op.unmodelled(f"rounding {rounding}")
    if result.element.startswith("f8"):
        largest = torch.finfo(dtype).max
        return lambda x: cast(x.float().clamp(-largest, largest), dtype)
    return lambda x: cast(x, dtype)


def _whole_numbers(x: Tensor, low: int, high: int, dtype: torch.dtype) -> Tensor:
    """Truncate floats to integers as a GPU does: NaN becomes 0, numbers out of range saturate."""
    wide = torch.trunc(x.double())
    over, inside = wide >= high, (wide >= low) & (wide < high)
    if high > 1 << 63:
        halved = torch.where(wide >= 2.0**63, wide - 2.0**64, wide)
        whole = cast(torch.where(inside, halved, 0.0), torch.int64)
        return cast(torch.where(over, -1, whole), dtype)
    whole = cast(torch.where(inside, wide, 0.0), torch.int64)
    return cast(torch.where(over, high - 1, torch.where(wide < low, low, whole)), dtype)
