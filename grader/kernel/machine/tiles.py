"""What Triton's operations on whole tiles compute: shapes, dots, reductions, scans.

A reduction combines neighbours, and so halves its axis each time: any associative function gives
a GPU's result, and a 16-bit sum rounds as often as there. torch computes the usual ones at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from grader.base.dtypes import as_tf32
from grader.kernel.machine import events
from grader.kernel.machine.arrays import (
    Tensor,
    arange,
    as_bits,
    cast,
    constant,
    dtype_of,
    filled,
    ones,
    same_programs,
    whole,
    zeros,
)
from grader.kernel.machine.outside import OutOfBounds
from grader.kernel.machine.steps import Env, Run, Translation
from grader.kernel.machine.tensors import reinterpreted
from grader.kernel.machine.ttir import Module, Operation

Function = Callable[..., Tensor]

_ATTRIBUTES = {
    "tt.make_range": {"start", "end"},
    "tt.expand_dims": {"axis"},
    "tt.trans": {"order"},
    "tt.reshape": {"allow_reorder", "efficient_layout"},
    "tt.gather": {"axis", "efficient_layout"},
}


def function_of(op: Operation, module: Module) -> Function:
    """Return the function that an operation on a tile's shape computes.

    Raises:
        Unmodelled: the operation has an unknown attribute.
    """
    op.check(_ATTRIBUTES.get(op.name, ()))
    return FUNCTIONS[op.name](op, module)


def _constant(op: Operation, module: Module) -> Function:
    (result,) = op.results
    value = cast(constant(op, module.written[result]), dtype_of(module.type(result)))
    return lambda: value


def _poison(op: Operation, module: Module) -> Function:
    value = filled(module.type(op.results[0]), 0)
    return lambda: value


def _make_range(op: Operation, module: Module) -> Function:
    first, end = op.number("start"), op.number("end")
    if (end - first,) != module.type(op.results[0]).shape:
        raise op.unmodelled(f"from {first} to {end}")
    value = arange(first, end, dtype=torch.int32).unsqueeze(0)
    return lambda: value


def _splat(op: Operation, module: Module) -> Function:
    axes = (1,) * len(module.type(op.results[0]).shape)
    return lambda x: x.view(-1, *axes)


def _expand_dims(op: Operation, module: Module) -> Function:
    axis = op.number("axis") + 1
    return lambda x: x.unsqueeze(axis)


def _trans(op: Operation, module: Module) -> Function:
    order = (0, *(axis + 1 for axis in op.numbers("order")))
    return lambda x: x.permute(order)


def _reshape(op: Operation, module: Module) -> Function:
    before, after = (module.type(v).shape for v in (op.operands[0], op.results[0]))
    return lambda x: whole(x, before).reshape((x.shape[0], *after))


def _join(op: Operation, module: Module) -> Function:
    shape = module.type(op.operands[0]).shape
    return lambda a, b: torch.stack(same_programs([a, b], [shape, shape]), -1)


def _cat(op: Operation, module: Module) -> Function:
    shapes = [module.type(value).shape for value in op.operands]
    return lambda a, b: torch.cat(same_programs([a, b], shapes), 1)


def _bitcast(op: Operation, module: Module) -> Function:
    before, after = module.written[op.operands[0]], module.written[op.results[0]]
    if after.pointee:
        return lambda x: reinterpreted(x, before.width, after.width)
    raw, bits, dtype = dtype_of(before), dtype_of(after), dtype_of(module.type(op.results[0]))
    if before.element == "i1" or after.element == "i1":
        return lambda x: cast(x, dtype)
    return lambda x: cast(cast(x, raw).contiguous().view(bits), dtype)


def _gather(op: Operation, module: Module) -> Function:
    axis = op.number("axis") + 1
    shapes = [module.type(value).shape for value in op.operands]
    size = shapes[0][axis - 1]

    def gather(source: Tensor, index: Tensor) -> Tensor:
        source, index = same_programs([source, cast(index, torch.int64)], shapes)
        if bool(((index < 0) | (index >= size)).any()):
            raise OutOfBounds(f"tl.gather with an index outside 0..{size - 1}", op.place)
        return source.gather(axis, index)

    return gather


def _histogram(op: Operation, module: Module) -> Function:
    shape = module.type(op.operands[0]).shape
    bins = module.type(op.results[0]).shape[0]

    def count(x: Tensor, mask: Tensor | None = None) -> Tensor:
        counted = ones((1, 1), dtype=torch.bool) if mask is None else mask
        x, counted = same_programs([as_bits(x), counted], [shape, shape])
        counted = counted & (x < bins) & (x >= 0)
        found = zeros((x.shape[0], bins), dtype=torch.int32)
        return found.scatter_add(1, torch.where(counted, x, 0), cast(counted, torch.int32))

    return count


FUNCTIONS: dict[str, Callable[[Operation, Module], Function]] = {
    "arith.constant": _constant,
    "ub.poison": _poison,
    "tt.make_range": _make_range,
    "tt.splat": _splat,
    "tt.unsplat": lambda op, module: lambda x: x.reshape((x.shape[0],)),
    "tt.broadcast": lambda op, module: lambda x: x,
    "tt.expand_dims": _expand_dims,
    "tt.trans": _trans,
    "tt.reshape": _reshape,
    "tt.join": _join,
    "tt.cat": _cat,
    "tt.gather": _gather,
    "tt.histogram": _histogram,
    "arith.bitcast": _bitcast,
    "tt.bitcast": _bitcast,
}


# -- operations with more than one result, or with regions ---------------------------------------


def split(op: Operation, translation: Translation) -> Run:
    """Translate a tt.split."""
    (operand,), (first, second) = op.operands, op.results
    shape = translation.module.type(operand).shape

    def run(env: Env) -> None:
        env[first], env[second] = whole(env[operand], shape).unbind(-1)

    return run


_PRECISIONS = {"ieee", "tf32", "tf32x3", "bf16x3", "bf16x6"}


def dot(op: Operation, translation: Translation) -> Run:
    """Translate a tt.dot: 16-bit operands have exact products and fp32 sums, rounded at the end."""
    types = [translation.module.type(value) for value in op.operands]
    op.check(("inputPrecision", "maxNumImpreciseAcc"))
    precision = op.attributes.get("inputPrecision", "ieee")
    if precision not in _PRECISIONS:
        raise op.unmodelled(precision)
    cuts = precision == "tf32" and types[0].element == "f32"
    dtype = dtype_of(types[2])
    work = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    a, b, c = op.operands
    (result,) = op.results
    shapes = [type.shape for type in types]
    flat = [shape[-2:] for shape in shapes]

    def run(env: Env) -> None:
        if translation.state.observe is not None:
            translation.state.observe(events.Multiplied(op, env[0], env[a], env[b]))
        values = same_programs([cast(env[value], work) for value in (a, b, c)], shapes)
        if cuts and translation.state.tf32:
            values[:2] = [as_tf32(value) for value in values[:2]]
        left, right, into = (v.reshape((-1, *s)) for v, s in zip(values, flat, strict=True))
        out = torch.baddbmm(into, left, right)
        env[result] = cast(out.reshape((-1, *shapes[2])), dtype)

    return run


def _sum(x: Tensor, axis: int) -> Tensor:
    return x.sum(axis, dtype=x.dtype)


def _passing_over_nan(reduce: Callable[..., Tensor], neutral: float) -> Callable[..., Tensor]:
    def passing(x: Tensor, axis: int) -> Tensor:
        found = reduce(x, axis)
        if bool((found != found).any()):
            cleaned = reduce(torch.where(x != x, neutral, x), axis)
            found = torch.where((x != x).all(axis), found, cleaned)
        return found

    return passing


_REDUCED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "arith.addf": _sum,
    "arith.addi": _sum,
    "arith.maxsi": torch.amax,
    "arith.minsi": torch.amin,
    "arith.maximumf": torch.amax,
    "arith.minimumf": torch.amin,
    "arith.maxnumf": _passing_over_nan(torch.amax, -math.inf),
    "arith.minnumf": _passing_over_nan(torch.amin, math.inf),
}
_SCANNED: dict[str, Callable[..., Tensor]] = {
    "arith.addf": torch.cumsum,
    "arith.addi": torch.cumsum,
}
_EXACT = (torch.float32, torch.float64, torch.int32, torch.int64)


def _of_one_operation(op: Operation, table: dict[str, Callable[..., Tensor]]) -> Callable | None:
    """Return the function of a region that applies one operation to its two arguments."""
    operations, arguments = op.regions[0][0].operations, op.regions[0][0].arguments
    if len(op.operands) != 1 or len(op.regions[0]) != 1 or len(operations) != 2:
        return None
    first, last = operations
    plain = first.operands == tuple(arguments) and last.operands == first.results
    return table.get(first.name) if plain else None


def _combination(
    op: Operation, translation: Translation
) -> Callable[[Env, list[Tensor], list[Tensor]], list[Tensor]]:
    """Return a function that applies any region to pairs of elements.

    Each element counts as a program of its own, so that the region may have branches.
    """
    block = op.regions[0][0]
    body = translation.body(block)
    live = translation.live(*op.regions)
    if len(op.regions[0]) != 1:
        raise op.unmodelled("with branches")

    def combine(env: Env, first: list[Tensor], second: list[Tensor]) -> list[Tensor]:
        tiles = [x.shape for x in (*first, *second)]
        shape = torch.broadcast_shapes((len(env[0]), *tiles[0][1:]), *tiles)
        inner = env.copy()
        each = math.prod(shape[1:])
        for value in live:
            if env[value] is not None and (value == 0 or env[value].shape[0] > 1):
                inner[value] = env[value].repeat_interleave(each, 0)
        for value, x in zip(block.arguments, (*first, *second), strict=True):
            inner[value] = x.expand(shape).reshape(-1)
        return [value.expand(math.prod(shape)).reshape(shape) for value in body.run(inner)]

    return combine


def _axis(op: Operation) -> int:
    op.check(("axis", "reverse"))
    return op.number("axis") + 1


def reduce(op: Operation, translation: Translation) -> Run:
    """Translate a tt.reduce."""
    axis = _axis(op)
    shapes = [translation.module.type(value).shape for value in op.operands]
    plain = _of_one_operation(op, _REDUCED)
    if plain is _sum and dtype_of(translation.module.type(op.operands[0])) not in _EXACT:
        plain = None
    site = translation.sites.get(op)
    combine = None if plain and not site else _combination(op, translation)

    def run(env: Env) -> None:
        values = [_along(env[v], axis, s) for v, s in zip(op.operands, shapes, strict=True)]
        if plain and not (site and translation.state.exact.rounds(site)):
            env[op.results[0]] = plain(values[0], axis)
            return
        assert combine is not None
        while values[0].shape[axis] > 1:
            pairs = [v.unflatten(axis, (-1, 2)) for v in values]
            halves = [[p.select(axis + 1, side) for p in pairs] for side in (0, 1)]
            values = combine(env, *halves)
        for result, value in zip(op.results, values, strict=True):
            env[result] = value.squeeze(axis)

    return run


def scan(op: Operation, translation: Translation) -> Run:
    """Translate a tt.scan: combine each element with the one before it, then 2, 4 before ..."""
    axis = _axis(op)
    backwards = op.attributes.get("reverse") == "true"
    shapes = [translation.module.type(value).shape for value in op.operands]
    size = shapes[0][axis - 1]
    plain = _of_one_operation(op, _SCANNED)
    exact = dtype_of(translation.module.type(op.operands[0])) in _EXACT
    combine = None if plain and exact else _combination(op, translation)

    def run(env: Env) -> None:
        values = [_along(env[v], axis, s) for v, s in zip(op.operands, shapes, strict=True)]
        values = [value.flip(axis) for value in values] if backwards else values
        if combine is None:
            assert plain is not None
            values = [plain(values[0], axis, dtype=values[0].dtype)]
        distance = size if combine is None else 1
        while combine is not None and distance < size:
            before = [v.narrow(axis, 0, size - distance) for v in values]
            here = [v.narrow(axis, distance, size - distance) for v in values]
            after = combine(env, before, here)
            first = list(after[0].shape)  # a value that all programs share becomes one of each
            first[axis] = distance
            pairs = zip(values, after, strict=True)
            values = [
                torch.cat([v.narrow(axis, 0, distance).expand(first), x], axis) for v, x in pairs
            ]
            distance *= 2
        for result, value in zip(op.results, values, strict=True):
            env[result] = value.flip(axis) if backwards else value

    return run


def map_elementwise(op: Operation, translation: Translation) -> Run:
    """Translate a tt.map_elementwise whose region gets one element of each operand at a time."""
    if op.number("pack") != 1:
        raise op.unmodelled("with pack")
    combine = _combination(op, translation)
    shape = translation.module.type(op.operands[0]).shape

    def run(env: Env) -> None:
        values = same_programs([env[value] for value in op.operands], [shape] * len(op.operands))
        for result, value in zip(op.results, combine(env, values, []), strict=True):
            env[result] = value

    return run


def _along(value: Tensor, axis: int, shape: tuple[int, ...]) -> Tensor:
    """Expand an array to its full size along one axis."""
    sizes = list(value.shape)
    sizes[axis] = shape[axis - 1]
    return value.expand(sizes)


STEPS: dict[str, Callable[..., Run]] = {
    "tt.split": split,
    "tt.dot": dot,
    "tt.reduce": reduce,
    "tt.scan": scan,
    "tt.map_elementwise": map_elementwise,
}
