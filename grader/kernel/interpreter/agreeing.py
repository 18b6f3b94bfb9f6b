"""Makes the operands of an operator agree in type and shape, as Triton does, in less time.

What Triton does to two operands, before it adds or compares them, depends on their types and not on
their numbers. It finds that out anew for each pair, and takes a third of the time of a small case
to do so. Here it is asked once for each pair of types: what it made of them says which of a few
steps lead there, and these are taken from then on. Pairs that need any other step are left to it.
Guarded by tests/test_interpreting.py.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

NAME = "binary_op_type_checking_impl"
_NUMBERS = (int, float, bool)


@dataclasses.dataclass(frozen=True)
class _Steps:
    """What becomes of one operand.

    A number becomes a scalar of type `constant`, the elements of a tensor become of type `cast`;
    then it becomes a tile of the type `to`, which a tile is told the `shape` of. None: as it is.
    """

    constant: Any = None
    cast: Any = None
    to: Any = None
    shape: list[int] | None = None


def install(interpreter: Any) -> None:
    """Hook the operators of kernels that are interpreted, where Triton has this one function."""
    semantic = interpreter.interpreter_semantic
    check = getattr(semantic, NAME, None)
    if check is not None:
        setattr(semantic, NAME, _Agreement(semantic, check))
        semantic.broadcast_impl_value = _Agreement(semantic, semantic.broadcast_impl_value)


class _Agreement:
    """Does what `check` does: it returns both operands, in types that agree."""

    def __init__(self, semantic: Any, check: Callable[..., Any]) -> None:
        self._semantic = semantic
        self._check = check
        # Until Triton 3.6 a number's type is known from the tensor that is made of it.
        self._type_of = getattr(semantic, "to_tensor_type", self._type_of_tensor)
        self._known: dict[tuple, tuple[_Steps, _Steps] | None] = {}

    def __call__(self, lhs: Any, rhs: Any, *flags: Any, **named: Any) -> tuple[Any, Any]:
        if named:
            return self._check(lhs, rhs, *flags, **named)
        kinds = self._kind(lhs), self._kind(rhs)
        if None in kinds:
            return self._check(lhs, rhs, *flags)
        key = (*kinds, *flags)
        if key in self._known:
            steps = self._known[key]
            if steps is not None:
                return self._take(lhs, steps[0]), self._take(rhs, steps[1])
            return self._check(lhs, rhs, *flags)
        results = self._check(lhs, rhs, *flags)
        left, right = self._find(lhs, results[0]), self._find(rhs, results[1])
        self._known[key] = None if left is None or right is None else (left, right)
        return results

    def _type_of_tensor(self, number: Any) -> Any:
        return self._semantic.to_tensor(number).type

    def _kind(self, operand: Any) -> Any:
        """Return all of an operand that decides; of a number what type it has alone, and sign."""
        kind = type(operand)
        if kind is self._semantic.tensor:
            return operand.type.name
        if kind in _NUMBERS:
            return kind, self._type_of(operand).name, operand < 0
        return None

    def _find(self, operand: Any, result: Any) -> _Steps | None:
        """Return the steps from an operand to what Triton made of it, None if there are others."""
        if result is operand:
            return _Steps()
        element, constant, cast, is_tile = result.type.scalar, None, None, False
        if type(operand) in _NUMBERS:
            constant = element
            if element.is_int() and element.int_bitwidth < 32:
                return None  # not every number fits
        else:
            cast = None if operand.type.scalar == element else element
            is_tile = operand.type.is_block()
        if not result.type.is_block():
            return _Steps(constant, cast)
        if not is_tile:
            return _Steps(constant, cast, result.type)
        shape, before = ([getattr(n, "value", n) for n in x.shape] for x in (result, operand))
        if shape == before:
            return _Steps(constant, cast)
        return _Steps(constant, cast, result.type, shape) if len(shape) == len(before) else None

    def _take(self, operand: Any, steps: _Steps) -> Any:
        semantic = self._semantic
        if steps.constant is not None:
            operand = semantic.scalar_constant(operand, steps.constant)
        elif steps.cast is not None:
            operand = semantic.cast(operand, steps.cast)
        if steps.to is None:
            return operand
        builder = semantic.builder
        if steps.shape is None:
            handle = builder.create_splat(steps.to.to_ir(builder), operand.handle)
        else:
            handle = builder.create_broadcast(operand.handle, steps.shape)
        return semantic.tensor(handle, steps.to)
