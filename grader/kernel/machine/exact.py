"""Exact mode: a kernel's numbers have 64 bits where they would have 32 or 16.

`widen` changes a module before its translation. Each operation that makes 16-bit numbers is a site,
which rounds only if a call in exact mode asks for it by the site's key.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from grader.kernel.dispatch import DispatchMode
from grader.kernel.machine import kinds
from grader.kernel.machine.arrays import DTYPES, Tensor, cast, dtype_of
from grader.kernel.machine.flow import made_of, reached
from grader.kernel.machine.tensors import Memory, flat
from grader.kernel.machine.ttir import Module, Operation

_WIDENED = ("f16", "bf16", "f32")
_HALF = ("f16", "bf16")
_CASTS = ("arith.truncf", "tt.fp_to_fp")
_DTYPES = [DTYPES[name] for name in _WIDENED]
_HALVES = [DTYPES[name] for name in _HALF]
# Operations that pass numbers on unchanged.
_MOVES = {"tt.splat", "tt.broadcast", "tt.expand_dims", "tt.trans", "tt.reshape", "tt.join"}
_MOVES |= {"tt.split", "tt.cat", "tt.gather", "arith.select", *kinds.PASSING}
_NO_SITES = {"arith.constant", *kinds.CONTROL, *_MOVES}
# Operators of PyTorch that do so, by their names without the "_" of those in place; and products,
# whose operands may be rounded.
_PASSING = set(
    "_to_copy _unsafe_index _unsafe_view cat clone constant_pad_nd copy fill flip full_like gather"
    " index index_copy index_fill index_put index_select lift_fresh masked_fill masked_scatter neg"
    " new_full new_ones new_zeros ones_like repeat roll scatter select_backward select_scatter"
    " slice_backward slice_scatter stack take where zero zeros_like".split()
)
_PRODUCTS = {"mm", "bmm", "mv", "dot", "addmm", "baddbmm"}
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
    long as memory still holds those that they were rounded to. A read for an operation that
    computes is a site as well, on the line that made the tensor.
    """

    def __init__(self, rounding: Collection[int]) -> None:
        """Round at the sites with these keys; `line` is the running line of the host code."""
        super().__init__()
        self._rounding, self.line = frozenset(rounding), 0
        self._kept: list[tuple[int, torch.dtype, Tensor]] = []  # addresses, types, and exact values
        self._made: dict[int, int] = {}  # by address of a storage, the line that made it
        self._read: dict[int, list[Tensor]] = {}  # by key, values that lay in memory when read
        self.found: dict[int, Site] = {}

    def rounds(self, site: Site) -> bool:
        return site.key in self._rounding

    def settled(self, site: Site, values: Tensor) -> Tensor:
        """Return a site's values, rounded if the call asks for it; note whether that matters."""
        rounded = cast(cast(values, site.dtype), torch.float64)
        if bool(((rounded != values) & (values == values)).any()):
            self.found.setdefault(site.key, site)
        return rounded if self.rounds(site) else values

    def loaded(self, site: Site, memory: Memory, values: Tensor) -> Tensor:
        """Settle what a kernel loads; where it also stores to that memory, on the line that loads.

        The same numbers may lie there until the launch ends only if the kernel does not store.
        """
        line = self._made.get(_storage(memory.flat))
        if not line or memory.exact is None or memory.may_change or site.key < 0:
            return self.settled(site, values)
        read = self._read.setdefault(line, [])
        if not any(memory.exact is one for one in read):
            read.append(memory.exact)
        return self.settled(site._replace(key=line, name=memory.name), values)

    def given(self, memory: Tensor) -> Tensor | None:
        """Return the values that a kernel reads in a tensor that it gets, None for integers."""
        return self.read(memory) if memory.is_floating_point() else None

    def _computed(self, name: str, given: Any, values: Any) -> Any:
        """Settle the values of one argument of an operator that computes with them."""
        if not isinstance(given, torch.Tensor) or given.dtype not in _HALVES:
            return values
        line = self._made.get(_storage(given))
        if not line:  # an input
            return values
        self._read.setdefault(line, []).append(values)
        return self.settled(Site(line, "", given.dtype, name), values)

    def ends(self, results: Iterable[Tensor]) -> None:
        """Forget the sites of what was read from memory if the call returns all of it in `results`.

        The delta of a backward pass is computed from `out`, which has to be rounded.
        """
        storages = {_storage(x): (x.untyped_storage(), x.dtype) for x in results}
        whole = [torch.empty(0, dtype=dtype).set_(memory) for memory, dtype in storages.values()]
        final = torch.cat([torch.empty(0, dtype=torch.float64), *map(self.read, whole)])
        for key, read in self._read.items():
            if key in self.found and all(self._are_in(final, x, key) for x in read):
                del self.found[key]

    def _are_in(self, final: Tensor, values: Tensor, key: int) -> bool:
        rounded = cast(cast(values, self.found[key].dtype), torch.float64)
        return bool(torch.isin(values[(rounded != values) & (values == values)], final).all())

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
        given = args, kwargs or {}
        name = function._schema.name.partition("::")[2]
        tensors = [x for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
        wide = tree_map(self._wide, given)  # before an operator changes its operand in place
        result = function(*args, **given[1])
        known = {_storage(x) for x in tensors}
        made = {_storage(x) for x in tree_leaves(result) if isinstance(x, torch.Tensor)}
        self._made.update(dict.fromkeys(made - known, self.line))
        in_place = function._schema.is_mutable
        if not isinstance(result, torch.Tensor) or name in _UNKNOWN:
            return result
        if result.dtype not in _DTYPES and (in_place or result.dtype is not torch.float64):
            return result
        if not any(x.dtype in _DTYPES for x in tensors) or (made <= known and not in_place):
            return result  # the latter is a view
        base, widens = name.removesuffix("_"), result.dtype not in _HALVES
        if base not in _PRODUCTS and (widens or base not in _PASSING):
            wide = tree_map(functools.partial(self._computed, name), given, wide)
        values = function(*wide[0], **wide[1])
        if values.dtype is torch.float64 and values.shape == result.shape and result.numel():
            if result.dtype in _HALVES and self.line:
                values = self.settled(Site(-self.line, "", result.dtype, name), values)
            memory = flat(result)
            every = self.read(memory)
            every.as_strided(result.shape, result.stride()).copy_(values)
            self.keep(memory, every)
        return result

    def _wide(self, value):
        if isinstance(value, torch.Tensor):
            return self.of(value)
        return torch.float64 if value in _DTYPES else value


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
