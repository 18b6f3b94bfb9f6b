"""Exact mode: numbers have 64 bits wherever a kernel rounds them to 32 or 16.

A module is widened before it is translated. Each operation that makes numbers of 16 bits is a site:
in a call of exact mode it rounds only if that call asks for it, by its key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from grader.base.dtypes import DTYPE_NAMES
from grader.kernel.machine.arrays import DTYPES, Tensor, cast
from grader.kernel.machine.flow import handed, operations, reached
from grader.kernel.machine.ttir import Module, Operation

_WIDENED = ("f16", "bf16", "f32")
_HALF = ("f16", "bf16")
CASTS = ("arith.truncf", "tt.fp_to_fp")
_DTYPES = [DTYPES[name] for name in _WIDENED]
_HALF_DTYPES = [DTYPES[name] for name in _HALF]
_FEWEST = 32  # queries, so many that nothing else has as many numbers by chance
# What hands numbers on as they are.
_MOVES = {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.join"}
_MOVES |= {"tt.split", "tt.cat", "tt.gather", "arith.select", "scf.yield", "scf.condition"}
_UNKNOWN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


def widen(module: Module) -> None:
    """Give all floating-point numbers of a module 64 bits; what is behind a pointer stays."""
    module.types = [
        dataclasses.replace(type, element="f64") if type and type.element in _WIDENED else type
        for type in module.types
    ]


def sites(module: Module) -> dict[Operation, str]:
    """Return the operations that make numbers of 16 bits, with what becomes of these.

    They are the operand of a `dot`, as the weights are, or there is only a `store`; empty where
    others are computed from them.
    """
    made: dict[int, list[int]] = {}
    found: list[Operation] = []
    multiplied: list[int] = []
    used: list[int] = []
    for blocks in module.functions.values():
        for op in operations(blocks):
            for value, other in handed(op):
                made.setdefault(value, []).append(other)
            if op.name in _MOVES:
                made.update((result, list(op.operands)) for result in op.results)
            elif op.name == "tt.dot":
                multiplied += op.operands[:2]
                used += op.operands[2:]
            elif op.name not in ("tt.store", "scf.for", "scf.while", "scf.if"):
                used += op.operands
            results = [module.type(v).element for v in op.results]
            results += [module.type(op.operands[0]).pointee] if "atomic" in op.name else []
            if op.name not in ("arith.constant", *_MOVES) and any(e in _HALF for e in results):
                found.append(op)
    passed, computed = reached(multiplied, made), reached(used, made)

    def what(op: Operation) -> tuple[Any, ...]:
        # One cast for a dot and one for a sum are one rounding.
        return (op.name, op.operands, module.type(op.results[0])) if op.name in CASTS else (op,)

    for_dots = {what(op) for op in found if op.results[0] in passed}

    def use(op: Operation) -> str:
        if what(op) in for_dots:
            return "dot"
        return "" if "atomic" in op.name or op.results[0] in computed else "store"

    return {op: use(op) for op in found if not op.regions or op.name == "tt.reduce"}


@dataclasses.dataclass(eq=False)
class _Kept:
    """What lies from an address on, before it was rounded to what memory holds."""

    start: int
    dtype: torch.dtype
    values: Tensor


class Exact(TorchDispatchMode):
    """One call in exact mode; `found` says by its key what each site that rounds makes.

    That is the student's name for the numbers, their dtype, and the operation.

    A key is the line, negative where nothing is computed from what was rounded. What kernels and
    operators of PyTorch store is rounded in memory; what is read from there is what was stored, for
    as long as memory holds it rounded.
    """

    def __init__(self, rounding: Collection[int], queries: int) -> None:
        """Round at the sites with these keys; `line` is that of the host code that is carried out.

        What has a number for each of the `queries` of all heads, as lse and delta have, is what
        others are computed from.
        """
        super().__init__()
        self._rounding = frozenset(rounding)
        self._queries, self.line = queries, 0
        self._kept: list[_Kept] = []
        self.found: dict[int, tuple[str, str, str]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Without it the first call of a worker imports torch._dynamo, a second or more."""
        return False

    def rounds(self, key: int) -> bool:
        """Whether a site rounds in this call."""
        return key in self._rounding

    def settled(self, values: Tensor, dtype: torch.dtype, key: int, *said: str) -> Tensor:
        """Return what a site makes of values, rounded or not."""
        rounded = cast(cast(values, dtype), torch.float64)
        if key not in self.found and bool(((rounded != values) & (values == values)).any()):
            name, operation = said
            self.found[key] = name, DTYPE_NAMES[dtype], operation
        return rounded if key in self._rounding else values

    def _of_host(self, values: Tensor, dtype: torch.dtype, *said: str) -> Tensor:
        """Return what the running line of the host makes, or hands a kernel, rounded or not."""
        if dtype not in _HALF_DTYPES or not self.line:
            return values
        key = self.line if values.numel() == self._queries >= _FEWEST else -self.line
        return self.settled(values, dtype, key, *said)

    def given(self, flat: Tensor, name: str) -> Tensor | None:
        """Return what a kernel finds in a tensor that it is given; None of whole numbers."""
        if not flat.is_floating_point():
            return None
        values = self.read(flat)
        return self._of_host(values, flat.dtype, name, "") if len(flat) == self._queries else values

    def read(self, flat: Tensor) -> Tensor:
        """Return what lies in memory, without gaps, as it was before it was rounded."""
        values, start, size = flat.double(), flat.data_ptr(), flat.itemsize
        for kept in self._kept:
            offset, odd = divmod(kept.start - start, size)
            low, high = max(0, offset), min(len(flat), offset + len(kept.values))
            if low < high and not odd and kept.dtype is flat.dtype:
                own, before = flat[low:high], kept.values[low - offset : high - offset]
                same = cast(before, flat.dtype) == own
                values[low:high] = torch.where(same, before, values[low:high])
        return values

    def keep(self, flat: Tensor, values: Tensor) -> None:
        """Round values into memory, where it holds others, and keep them."""
        rounded = cast(values, flat.dtype)
        other = (rounded != flat) & ~((rounded != rounded) & (flat != flat))
        flat[other] = rounded[other]
        self._kept = [k for k in self._kept if k.start != flat.data_ptr()]
        self._kept.append(_Kept(flat.data_ptr(), flat.dtype, values))

    def of(self, tensor: Tensor) -> Tensor:
        """Return a tensor, of any strides, as it was before it was rounded."""
        if tensor.dtype not in _DTYPES or not tensor.numel():
            return tensor
        return self.read(_flat(tensor)).as_strided(tensor.shape, tensor.stride())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Let the host compute with numbers of 64 bits, too, and keep what comes out."""
        kwargs = kwargs or {}
        name = function._schema.name.partition("::")[2]
        tensors = [x for x in args if isinstance(x, torch.Tensor)]
        if name in _UNKNOWN or not any(x.dtype in _DTYPES for x in tensors):
            return function(*args, **kwargs)
        wide = tree_map(self._wide, args), tree_map(self._wide, kwargs)
        result = function(*args, **kwargs)
        if not isinstance(result, torch.Tensor) or result.dtype not in _DTYPES:
            return result
        if not function._schema.is_mutable and any(_share(result, x) for x in tensors):
            return result  # a view
        values = function(*wide[0], **wide[1])
        if values.dtype is torch.float64 and values.shape == result.shape and result.numel():
            values = self._of_host(values, result.dtype, "", name)
            flat = _flat(result)
            every = self.read(flat)
            every.as_strided(result.shape, result.stride()).copy_(values)
            self.keep(flat, every)
        return result

    def _wide(self, value):
        if isinstance(value, torch.Tensor):
            return self.of(value)
        return torch.float64 if value in _DTYPES else value


def _flat(tensor: Tensor) -> Tensor:
    """Return a tensor's elements from the first to the last, with what lies between them."""
    last = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.detach().as_strided((last + 1,), (1,))


def _share(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
