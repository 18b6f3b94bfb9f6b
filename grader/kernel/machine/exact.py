"""Exact mode: a kernel's numbers have 64 bits where they would have 32 or 16.

`widen` changes a module before its translation. Each operation that makes 16-bit numbers is a site,
which rounds only if a call in exact mode asks for it by the site's key.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from grader.kernel.dispatch import DispatchMode
from grader.kernel.machine import kinds
from grader.kernel.machine.arrays import DTYPES, Tensor, cast, dtype_of
from grader.kernel.machine.flow import made_of, reached
from grader.kernel.machine.tensors import flat
from grader.kernel.machine.ttir import Module, Operation

_WIDENED = ("f16", "bf16", "f32")
_HALF = ("f16", "bf16")
_CASTS = ("arith.truncf", "tt.fp_to_fp")
_DTYPES = [DTYPES[name] for name in _WIDENED]
_FEWEST = 32  # queries: with fewer, other tensors may have as many numbers by chance
# Operations that pass numbers on unchanged.
_MOVES = {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.join"}
_MOVES |= {"tt.split", "tt.cat", "tt.gather", "arith.select", *kinds.PASSING}
_NO_SITES = {"arith.constant", *kinds.CONTROL, *_MOVES}
_UNKNOWN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}


def widen(module: Module) -> None:
    """Give all floating-point numbers of a module 64 bits; memory keeps its types."""
    module.types = [
        dataclasses.replace(type, element="f64") if type and type.element in _WIDENED else type
        for type in module.types
    ]


class Site(NamedTuple):
    """An operation that makes 16-bit numbers: the student's `name` for them, and their `use`.

    `use` is "dot" for an operand of a dot, as the weights are, and "store" for numbers that are
    only stored. If others are computed from them, it is the name of the site's own operation. The
    key is the line, negative for "dot" and "store".
    """

    key: int
    name: str
    dtype: torch.dtype
    use: str


def sites(module: Module, path: str) -> dict[Operation, Site]:
    """Return the operations of the file at `path` that make numbers of 16 bits."""
    made = made_of(module, lambda op: op.name in _MOVES)
    found: list[Operation] = []
    multiplied: list[int] = []
    used: list[int] = []
    same: dict[int, list[int]] = {}  # from results to the operands that they pass on or widen
    computing: dict[int, list[int]] = {}  # by line, the operands of operations that compute
    named: set[int] = set()  # single results: those of a loop share one name
    for op in module.operations:
        named.update(op.results[:1] if len(op.results) == 1 and not op.regions else ())
        if op.name in (*_MOVES, "arith.extf"):
            same.update((result, list(op.operands)) for result in op.results)
        else:
            computing.setdefault(op.place.line_in(path), []).extend(op.operands)
        if op.name == "tt.dot":
            multiplied += op.operands[:2]
            used += op.operands[2:]
        elif op.name not in ("tt.store", *kinds.CONTROL, *_MOVES):
            used += op.operands
        is_half = any(module.type(value).element in _HALF for value in op.results)
        if is_half and op.place.line_in(path) and op.name not in _NO_SITES:
            found.append(op)
    passed, computed = reached(multiplied, made), reached(used, made)

    def what(op: Operation) -> Any:
        # Equal casts of one value, for a dot and for a sum, are one rounding.
        return (op.operands, module.type(op.results[0])) if op.name in _CASTS else op

    for_dots = {what(op) for op in found if op.results[0] in passed}

    def site(op: Operation) -> Site:
        (result,), line = op.results, op.place.line_in(path)
        of_operand = op.name in _CASTS and op.operands[0] in named
        # A line names only its last result: in `acc += x * w` not the product.
        parts = () if op.name in _CASTS else reached(list(computing.get(line, ())), same)
        whole = "" if result in parts else op.place.name
        name = module.names[op.operands[0]] if of_operand else whole
        use = "dot" if what(op) in for_dots else "" if result in computed else "store"
        use = "" if op.name == "tt.atomic_rmw" else use
        return Site(-line if use else line, name, dtype_of(module.type(result)), use or op.name)

    return {op: site(op) for op in found}


class Exact(DispatchMode):
    """One call in exact mode; `found` has the sites that change numbers if they round.

    Kernels and PyTorch operators store rounded numbers in memory; a read returns the exact ones, as
    long as memory still holds those that they were rounded to.
    """

    def __init__(self, rounding: Collection[int], queries: int) -> None:
        """Round at the sites with these keys; `line` is the running line of the host code.

        A tensor with a number for each of the `queries` of all heads, such as lse or delta, counts
        as one that other numbers are computed from.
        """
        super().__init__()
        self._rounding = frozenset(rounding)
        self._queries, self.line = queries, 0
        self._kept: list[tuple[int, torch.dtype, Tensor]] = []  # addresses, types, and exact values
        self.found: dict[int, Site] = {}

    def rounds(self, site: Site) -> bool:
        return site.key in self._rounding

    def settled(self, site: Site, values: Tensor) -> Tensor:
        """Return a site's values, rounded if the call asks for it; note whether that matters."""
        rounded = cast(cast(values, site.dtype), torch.float64)
        if bool(((rounded != values) & (values == values)).any()):
            self.found.setdefault(site.key, site)
        return rounded if self.rounds(site) else values

    def _of_host(self, values: Tensor, dtype: torch.dtype, name: str, use: str) -> Tensor:
        """Settle values that the running host line makes, or passes to a kernel."""
        if dtype is torch.float32 or not self.line:
            return values
        key = self.line if values.numel() == self._queries >= _FEWEST else -self.line
        return self.settled(Site(key, name, dtype, use), values)

    def given(self, memory: Tensor, name: str) -> Tensor | None:
        """Return the values that a kernel reads in a tensor that it gets, None for integers."""
        if not memory.is_floating_point():
            return None
        values = self.read(memory)
        if len(memory) != self._queries:
            return values
        return self._of_host(values, memory.dtype, name, "")

    def read(self, memory: Tensor) -> Tensor:
        """Return the values of contiguous memory as they were before rounding."""
        values, start, size = memory.double(), memory.data_ptr(), memory.itemsize
        for first, dtype, kept in self._kept:
            offset, odd = divmod(first - start, size)
            low, high = max(0, offset), min(len(memory), offset + len(kept))
            if low < high and not odd and dtype is memory.dtype:
                own, before = memory[low:high], kept[low - offset : high - offset]
                same = cast(before, memory.dtype) == own
                values[low:high] = torch.where(same, before, values[low:high])
        return values

    def keep(self, memory: Tensor, values: Tensor) -> None:
        """Round values into memory, where they differ from it, and remember the exact ones."""
        rounded = cast(values, memory.dtype)
        other = (rounded != memory) & ~((rounded != rounded) & (memory != memory))
        memory[other] = rounded[other]
        self._kept = [kept for kept in self._kept if kept[0] != memory.data_ptr()]
        self._kept.append((memory.data_ptr(), memory.dtype, values))

    def of(self, tensor: Tensor) -> Tensor:
        """Return the values of a tensor, of any strides, as they were before rounding."""
        if tensor.dtype not in _DTYPES or not tensor.numel():
            return tensor
        return self.read(flat(tensor)).as_strided(tensor.shape, tensor.stride())

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Run an operator of the host, repeat it in 64 bits, and remember the exact result."""
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
            memory = flat(result)
            every = self.read(memory)
            every.as_strided(result.shape, result.stride()).copy_(values)
            self.keep(memory, every)
        return result

    def _wide(self, value):
        if isinstance(value, torch.Tensor):
            return self.of(value)
        return torch.float64 if value in _DTYPES else value


def _share(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()
