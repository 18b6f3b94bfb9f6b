"""Computes `a + b` of two tiles in one step, where Triton's interpreter takes some twenty.

Which function of numpy an operator comes to, on what types, and what type its result has, depends
on the types of the operands alone. Triton is asked once for each pair of them, under observation:
where it brought two operands into agreement and then made one call of numpy, that call is all that
is made from then on, and numpy broadcasts instead of Triton. All else is left to Triton: types that
do not agree in these ways, errors, operators that do more. So is every operator while a call is
traced, for a tracer wants to see the steps. Guarded by tests/test_interpreting.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.kernel.interpreter.agreeing import NAME as AGREEMENT

_SYMBOLS = ("add", "sub", "mul", "truediv", "and", "or", "xor")
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_OPERATORS = {
    *(f"__{name}__" for name in (*_SYMBOLS, *_COMPARISONS)),
    *(f"__r{name}__" for name in _SYMBOLS),
}
_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)  # all that bools have in common
# Casts to these are numpy's own.
_WIDER = {
    ("int32", "int64"),
    *(("fp16", "fp32"), ("fp16", "fp64"), ("fp32", "fp64")),
    *(("int32", "fp16"), ("int32", "fp32"), ("int32", "fp64")),
}
_FLOATS = (2.0**-126, (2 - 2.0**-23) * 2.0**127)  # of fp32, without a sign
_INTS = (-(2**31), 2**31 - 1)
_ALL = slice(None)
_UNKNOWN = object()


@dataclasses.dataclass(frozen=True)
class _Step:
    """One call of numpy, of `this` and `other` or of `other` and `this`.

    `casts` are the types of numpy that the elements of each become first, None as they are; for a
    number that which it is made an array of. The result has the dtype `made`.
    """

    function: Callable[[Any, Any], Any]
    reverse: bool
    casts: tuple[Any, Any]
    made: Any
    of_handle: Any
    of_tensor: Any


class Arithmetic:
    """Takes the place of the operators of tensors, with what is known of their types."""

    def __init__(self, interpreter: Any) -> None:
        self._builder = interpreter.interpreter_builder
        self._semantic = interpreter.interpreter_semantic
        self._class = interpreter.InterpreterBuilder
        self._handle = _maker(interpreter.TensorHandle)
        self._tensor = self._semantic.tensor
        self._plain = self._primitives()
        self._known: dict[tuple, _Step | None] = {}

    def _primitives(self) -> tuple[Any, Any]:
        return self._class.binary_op, self._class.create_addptr

    def shortened(self, name: str, call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return what to put in the place of `call`, which is the method `name` of a tensor."""
        if name == "__getitem__":
            return self._indexed(call)
        if name not in _OPERATORS:
            return call
        known, builder, plain = self._known, self._class, self._plain
        make_handle, make_tensor, tensor = self._handle, self._tensor, self._semantic.tensor

        def operate(this: Any, other: Any) -> Any:
            number = type(other) is not tensor
            kind = _kind(other) if number else other.type.name
            if kind is None or builder.binary_op is not plain[0]:
                return call(this, other)
            key = name, this.type.name, kind
            step = known.get(key, _UNKNOWN)
            if step is _UNKNOWN:
                return self._observe(key, call, this, other)
            if step is None:
                return call(this, other)
            first, second = step.casts
            left = this.handle.data
            if first is not None:
                left = left.astype(first)
            if number:
                right = np.array([other], dtype=second)
            else:
                right = other.handle.data
                if second is not None:
                    right = right.astype(second)
            made = step.function(right, left) if step.reverse else step.function(left, right)
            if made.dtype != step.made:
                made = made.astype(step.made)
            return make_tensor(make_handle(made, step.of_handle), step.of_tensor)

        return operate

    def _indexed(self, call: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        """Return what to put in the place of `x[:, None]`."""
        known: dict[tuple, tuple[tuple[int, ...], Any]] = {}
        builder, plain = self._class, self._plain
        make_handle, make_tensor = self._handle, self._tensor

        def index(this: Any, places: Any) -> Any:
            if type(places) is not tuple or builder.binary_op is not plain[0]:
                return call(this, places)
            if not all(place is None or place == _ALL for place in places):
                return call(this, places)
            data = this.handle.data
            key = this.type.name, data.shape, *(place is None for place in places)
            if key not in known:
                made = call(this, places)
                known[key] = made.handle.data.shape, made.type
                return made
            shape, type_ = known[key]
            return make_tensor(make_handle(data.reshape(shape), this.handle.dtype), type_)

        return index

    def _observe(self, key: tuple, call: Callable[..., Any], this: Any, other: Any) -> Any:
        """Let Triton compute, and remember how; None where that is not known, or not alike."""
        agreed: list[tuple] = []
        done: list[tuple] = []
        semantic, builder = self._semantic, self._builder
        agree, binary, add = getattr(semantic, AGREEMENT), builder.binary_op, builder.create_addptr

        def agreement(lhs: Any, rhs: Any, *flags: Any, **named: Any) -> Any:
            results = agree(lhs, rhs, *flags, **named)
            agreed.append((lhs, rhs, *results))
            return results

        def binary_op(lhs: Any, rhs: Any, function: Any) -> Any:
            handle = binary(lhs, rhs, function)
            done.append((lhs, rhs, function, handle))
            return handle

        def create_addptr(pointer: Any, offset: Any) -> Any:
            handle = add(pointer, offset)
            size = max(1, pointer.get_element_ty().primitive_bitwidth // 8)
            done.append((pointer, offset, _moving(size), handle))
            return handle

        setattr(semantic, AGREEMENT, agreement)
        builder.binary_op, builder.create_addptr = binary_op, create_addptr
        try:
            result = call(this, other)
        finally:
            setattr(semantic, AGREEMENT, agree)
            del builder.binary_op, builder.create_addptr
        self._known[key] = None
        if len(agreed) == len(done) == 1 and type(result) is self._tensor:
            self._known[key] = self._step(this, other, result, agreed[0], done[0])
        return result

    def _step(self, this: Any, other: Any, result: Any, agreed: tuple, done: tuple) -> _Step | None:
        """Return the one step from two operands to a result, if it is known to be that."""
        lhs, rhs, function, handle = done
        sides = agreed[2].handle, agreed[3].handle
        if handle is not result.handle or {id(lhs), id(rhs)} != {id(side) for side in sides}:
            return None
        left, right = agreed[:2] if lhs is sides[0] else reversed(agreed[:2])
        reverse = left is not this
        if (right if reverse else left) is not this:
            return None
        if not reverse and right is not other and type(other) is self._tensor:
            return None
        if lhs.data.dtype == bool and function not in _BITWISE:
            return None
        of_this, of_other = (rhs, lhs) if reverse else (lhs, rhs)
        casts = _cast(this, of_this), _cast(other, of_other)
        if False in casts:
            return None
        return _Step(function, reverse, casts, handle.data.dtype, handle.dtype, result.type)


def _maker(handle: type) -> Callable[[Any, Any], Any]:
    """Return what makes the handle of an array that fits its type: Triton looks whether it does."""
    if [field.name for field in dataclasses.fields(handle)] != ["data", "dtype", "attr"]:
        return handle
    new = object.__new__

    def make(data: Any, dtype: Any) -> Any:
        made = new(handle)
        made.data, made.dtype, made.attr = data, dtype, {}
        return made

    return make


def _moving(size: int) -> Callable[[Any, Any], Any]:
    """Return what moves pointers to elements of `size` bytes."""

    def move(pointers: Any, offsets: Any) -> Any:
        return pointers + size * offsets.astype(np.uint64)

    return move


def _kind(number: Any) -> Any:
    """Return all of a number that decides, None for one that is looked at each time."""
    kind = type(number)
    if kind is int and _INTS[0] <= number <= _INTS[1]:
        return kind, number < 0
    if kind is float and (_FLOATS[0] <= abs(number) <= _FLOATS[1] or _is_plain_zero(number)):
        return kind, number < 0
    return None


def _is_plain_zero(number: float) -> bool:
    """Whether a number is 0.0: what becomes of -0.0 is another thing in Triton 3.9 than before."""
    return number == 0.0 and math.copysign(1.0, number) > 0


def _cast(operand: Any, handle: Any) -> Any:
    """Return the type of numpy that an operand's elements became, None for as they are.

    False where they became it in a way that is not numpy's.
    """
    made = handle.data.dtype
    if not hasattr(operand, "handle"):
        small = made.kind in "iu" and made.itemsize < 4  # not every number fits
        return False if small or str(handle.dtype) == "bf16" else made
    before, after = str(operand.handle.dtype.scalar), str(handle.dtype.scalar)
    if before == after:
        return None
    return made if (before, after) in _WIDER else False
