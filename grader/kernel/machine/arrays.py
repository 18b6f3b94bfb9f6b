"""The arrays that hold a kernel's values: torch tensors, with the grid's programs along axis 0.

Axis 0 has size 1 if all programs hold the same values, another axis if the values are the same
along it, so that a splat or a broadcast copies nothing. numpy has no bfloat16 and is no faster.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from grader.kernel.machine.ttir import Operation, Type

Tensor = torch.Tensor

DTYPES = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "index": torch.int64,
    "ptr": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
}
_UNSIGNED = {1: "u1", 2: "u2", 4: "u4", 8: "u8"}
# Stands for the old contents of a register, which a load without `other` leaves in masked lanes: no
# correct kernel uses them.
_LEFT_OUT_INTEGER = -0x5BAD


def dtype_of(type: Type) -> torch.dtype:
    return DTYPES[type.element]


def filled(type: Type, value: Any) -> Tensor:
    """Return an array that stands for a tile of one value, the same in all programs."""
    return full((1,) * (len(type.shape) + 1), value, dtype=dtype_of(type))


def left_out(type: Type) -> Tensor:
    """Return the value of masked lanes after a load without `other`."""
    if type.is_float:
        return filled(type, 1.0).copy_(tensor_of(math.nan))
    return filled(type, 0 if type.bits < 16 or type.pointee else _LEFT_OUT_INTEGER)


def whole(value: Tensor, shape: tuple[int, ...], programs: int = 0) -> Tensor:
    """Expand an array to a whole tile for each of `programs`, by default as many as it has."""
    return value.expand((programs or value.shape[0], *shape))


def same_programs(values: list[Tensor], shapes: list[tuple[int, ...]]) -> list[Tensor]:
    """Expand all values to whole tiles, of as many programs as the largest of them has."""
    programs = max(value.shape[0] for value in values)
    return [whole(v, shape, programs) for v, shape in zip(values, shapes, strict=True)]


def unsigned(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Let a numpy function compute on integers of torch as if they were unsigned.

    A result of floats or booleans keeps its type, one of integers becomes signed again.
    """

    def compute(*values: Tensor) -> Tensor:
        dtype = values[0].dtype
        if dtype is torch.bool:
            arrays = [_numpy(cast(value, torch.uint8)) for value in values]
        else:
            kind = _UNSIGNED[dtype.itemsize]
            arrays = [_numpy(value.contiguous()).view(kind) for value in values]
        with np.errstate(all="ignore"):
            result = np.asarray(function(*arrays))
        if result.dtype.kind in "bf":
            return torch.from_numpy(result)
        result = np.ascontiguousarray(result.astype(arrays[0].dtype, copy=False))
        signed = torch.from_numpy(result.view(f"i{result.dtype.itemsize}"))
        return signed != 0 if dtype is torch.bool else signed

    return compute


def as_bits(value: Tensor) -> Tensor:
    """Return the values of unsigned integers in 64 bits; those of 64 bits stay as they are."""
    if value.dtype is torch.bool or value.itemsize == 8:
        return cast(value, torch.int64)
    return cast(value, torch.int64) & ((1 << 8 * value.itemsize) - 1)


# The originals: a worker's replacements count a submission's reads, or ask for its device.
_numpy, _tolist, _to = torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.to
full, zeros, ones, arange = torch.full, torch.zeros, torch.ones, torch.arange
tensor_of, zeros_like = torch.tensor, torch.zeros_like


def cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an array with its elements as those of another type."""
    return value if value.dtype is dtype else _to(value, dtype)


def numbers(value: Tensor) -> list[Any]:
    return _tolist(value)


def shown(value: Tensor) -> str:
    """Return an array as text, a large one with the first and last numbers of each axis."""
    array = np.asarray(_tolist(value))
    return np.array2string(array, threshold=64, precision=4, max_line_width=100)


def ends(value: Tensor) -> tuple[int, int]:
    low, high = torch.aminmax(value)
    return int(low), int(high)


def constant(op: Operation, type: Type) -> Tensor:
    """Return the value of an arith.constant."""
    text = op.text.removeprefix("{").strip()
    if text.startswith("dense<") and text.endswith(">"):
        text = text[6:-1]
    if text.startswith("["):
        values = [_number(op, part.strip(), type) for part in text[1:-1].split(",")]
        if len(type.shape) != 1 or len(values) != type.shape[0]:
            raise op.unmodelled("with a table")
        return tensor_of(values, dtype=dtype_of(type)).unsqueeze(0)
    return filled(type, _number(op, text, type))


def _number(op: Operation, text: str, type: Type) -> Any:
    if text in ("true", "false"):
        return text == "true"
    try:
        if not type.is_float:
            bits = max(type.bits, 2)
            return (int(text) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
        if text.startswith("0x"):
            bits = np.array(int(text, 16), _UNSIGNED[type.bits // 8])
            return torch.from_numpy(bits).view(dtype_of(type)).item()
        value = float(text)
        return struct.unpack("f", struct.pack("f", value))[0] if type.element == "f32" else value
    except (ValueError, OverflowError):
        raise op.unmodelled(f"with {text[:40]!r}") from None
