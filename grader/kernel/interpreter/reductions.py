"""Reductions and scans with a function of the kernel's own, whole tiles at a time.

Triton's interpreter calls that function for one element after the other, which is slow. A function
that may stand in tl.reduce is associative, so neighbours may be combined first, as on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

Arrays = list[np.ndarray]


def install(interpreter: Any) -> None:
    """Take the place of the interpreter's loops, where it has them."""
    for kind, name, whole in (
        ("ReduceOps", "generic_reduce", _reduce),
        ("ScanOps", "generic_scan", _scan),
    ):
        operation = getattr(interpreter, kind, None)
        if operation is not None and hasattr(operation, name):
            setattr(operation, name, _or_else(whole, getattr(operation, name)))


def _or_else(whole: Callable[..., Any], each: Callable[..., Any]) -> Callable[..., Any]:
    """Call `whole`; where the function does not bear tiles, or has a mistake, `each`."""

    @functools.wraps(each)
    def call(this: Any, input: Sequence[Any]) -> Any:
        try:
            return whole(this, input)
        except Exception:  # a branch on one element, say; a mistake is raised again
            return each(this, input)

    return call


def _reduce(this: Any, input: Sequence[Any]) -> list[Any]:
    """Combine neighbours until one element is left along the axis, of all axes if it is None."""
    data = [tensor.handle.data for tensor in input]
    rank, axis = data[0].ndim, this.axis
    if axis is None:
        data, axis = [array.reshape(-1) for array in data], 0
    while (size := data[0].shape[axis]) > 1:
        last = [_cut(array, axis, slice(size - size % 2, None)) for array in data]
        left = [_cut(array, axis, slice(0, size - 1, 2)) for array in data]
        right = [_cut(array, axis, slice(1, None, 2)) for array in data]
        pairs = _combined(this, input, left, right)
        data = [np.concatenate(both, axis) for both in zip(pairs, last, strict=True)]
    if this.axis is None:
        one = [array.reshape((1,) * rank) if this.keep_dims else array[0] for array in data]
    else:
        one = data if this.keep_dims else [array.squeeze(axis) for array in data]
    return [this.to_tensor(a, t.dtype) for a, t in zip(one, input, strict=True)]


def _scan(this: Any, input: Sequence[Any]) -> list[Any]:
    """Combine each element with the one 1, 2, 4 and so on before it."""
    data = [tensor.handle.data for tensor in input]
    size, distance = data[0].shape[this.axis], 1
    places = np.arange(size).reshape(-1, *[1] * (data[0].ndim - 1 - this.axis % data[0].ndim))
    while distance < size:
        before = [np.roll(array, distance, this.axis) for array in data]
        pairs = _combined(this, input, before, data)
        data = [np.where(places < distance, *both) for both in zip(data, pairs, strict=True)]
        distance *= 2
    return [this.to_tensor(array, tensor.dtype) for array, tensor in zip(data, input, strict=True)]


def _refuse_to_branch(_: Any) -> bool:
    """A tile of several elements would be true, whatever they are."""
    raise TypeError("a branch on an element")


def _cut(array: np.ndarray, axis: int, part: slice) -> np.ndarray:
    return array[(*[slice(None)] * (axis % array.ndim), part)]


def _combined(this: Any, input: Sequence[Any], left: Arrays, right: Arrays) -> Arrays:
    """Call the kernel's function with two tiles of each tensor."""
    tiles = [
        this.to_tensor(array, tensor.dtype)
        for side in (left, right)
        for array, tensor in zip(side, input, strict=True)
    ]
    kind = type(tiles[0])
    truth, kind.__bool__ = kind.__bool__, _refuse_to_branch
    try:
        found = this.combine_fn.fn(*tiles)
    finally:
        kind.__bool__ = truth
    found = found if isinstance(found, tuple) else (found,)
    if len(found) != len(input):
        raise ValueError(f"got {len(found)} results, expected {len(input)}")
    arrays = [getattr(getattr(value, "handle", None), "data", value) for value in found]
    return [
        np.broadcast_to(array, side.shape).astype(side.dtype)
        for array, side in zip(arrays, left, strict=True)
    ]
