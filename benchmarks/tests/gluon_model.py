"""A small model of Gluon on Hopper: runs a kernel's own source on the CPU, partition by partition.

The source is executed with fake modules of Gluon's names, whose functions work on torch tensors.
Partitions and copies proceed one step at a time, in an order drawn from a seed: a run repeats.
Mistakes that the hardware does not report raise an error here:

- Shared memory is NaN until it is written.
- A wait for a phase that never completes is a deadlock; the error names every barrier waited for.
- A product reads its operands in shared memory from its issue until its wait: a change in between
  means that they were released too early. Its result cannot be used before.
- Copies by TMA happen at any later time. A store reads shared memory until its wait, and ordinary
  writes before it need a fence.

Not modelled: layouts, registers, time, clusters, and warps apart from their partition.
"""

from __future__ import annotations

import builtins
import math
import random
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.tests.partitions import Barrier, Fault, Partitions, State


def load(sources: Mapping[str, str]) -> list[types.ModuleType]:
    """Return modules executed from Gluon `sources` on this model: text by name, in import order."""
    fakes = _modules() | {name: types.ModuleType(name) for name in sources}
    saved = {name: sys.modules.get(name) for name in fakes}
    sys.modules.update(fakes)
    try:
        for name, text in sources.items():
            exec(compile(text, name, "exec"), vars(fakes[name]))
    finally:
        for name, module in saved.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    return [fakes[name] for name in sources]


def launch(kernel: Callable[..., None], programs: int, *args: Any, seed: int = 0) -> None:
    """Run the programs of a one-axis grid one after the other.

    Raises:
        Fault: the kernel broke a rule; the message says which.
    """
    for program in range(programs):
        State.program, State.programs = program, programs
        State.rng = random.Random(f"{seed} {program}")
        State.run = seed + program
        kernel(*args)


class Descriptor:
    """A tensor descriptor of a CPU tensor, for blocks of `block`; past the end it reads zeros."""

    def __init__(self, tensor: torch.Tensor, block: list[int]) -> None:
        self.tensor, self.dtype, self.layout = tensor, tensor.dtype, None
        nbytes = math.prod(block) * tensor.element_size()
        self.block_type = types.SimpleNamespace(shape=list(block), nbytes=nbytes)

    def box(self, at: list[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        """Return the slices of a block in the tensor, and of the part of the block inside of it."""
        theirs, ours = [], []
        for start, size, limit in zip(at, self.block_type.shape, self.tensor.shape, strict=True):
            inside = max(0, min(size, limit - start))
            theirs.append(slice(start, start + inside))
            ours.append(slice(0, inside))
        return tuple(theirs), tuple(ours)


class Pointer:
    """A pointer into a dense CPU tensor, plus offsets."""

    def __init__(self, tensor: torch.Tensor, offset: Any = 0) -> None:
        self.tensor, self.offset = tensor, offset

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.tensor, self.offset + other)


class Memory:
    """A view of tiles in shared memory."""

    def __init__(self, data: torch.Tensor, label: str) -> None:
        self.data, self.label = data, label
        self.dtype, self.shape = data.dtype, list(data.shape)

    def index(self, i: int) -> Memory:
        if not 0 <= i < self.shape[0]:
            raise Fault(f"stage {i} of {self.shape[0]}: {self.label}")
        return Memory(self.data[i], f"{self.label}[{i}]")

    def reshape(self, shape: list[int]) -> Memory:
        return Memory(self.data.view(shape), self.label)

    def permute(self, order: tuple[int, ...]) -> Memory:
        return Memory(self.data.permute(order), self.label)

    def slice(self, start: int, length: int, dim: int) -> Memory:
        return Memory(self.data.narrow(dim, start, length), self.label)

    def load(self, layout: Any) -> torch.Tensor:
        return self.data.clone()

    def store(self, value: torch.Tensor) -> None:
        if value.dtype != self.dtype or list(value.shape) != self.shape:
            raise Fault(f"store of {value.dtype} {list(value.shape)} to {self.dtype} {self.shape}")
        self.data.copy_(value)
        State.scheduler.local.unfenced.add(self.data.data_ptr())
        _step()


class Barriers:
    """An allocation of barriers."""

    def __init__(self, count: int) -> None:
        number = State.allocations
        self.bars = [Barrier(f"barrier {number}[{i}]") for i in range(count)]

    def index(self, i: int) -> Barrier:
        return self.bars[i]


class Product:
    """The result of an asynchronous product before its wait."""

    def __init__(self, a: Any, b: Memory, acc: torch.Tensor | None) -> None:
        self.operands = [(x, x.data.clone()) for x in (a, b) if isinstance(x, Memory)]
        left = a.data if isinstance(a, Memory) else a
        if left.dtype != b.dtype or left.shape[1] != b.shape[0]:
            raise Fault(f"product of {left.dtype} {list(left.shape)} and {b.dtype} {b.shape}")
        self.value = left.float() @ b.data.float() + (0 if acc is None else acc)
        self.is_done = False

    def finish(self) -> torch.Tensor:
        for memory, before in self.operands:
            if not torch.equal(memory.data.isnan(), before.isnan()) or not torch.equal(
                memory.data.nan_to_num(), before.nan_to_num()
            ):
                raise Fault(f"{memory.label} changed under a product that reads it")
        self.is_done = True
        return self.value


def _step() -> None:
    State.scheduler.step()


def _modules() -> dict[str, types.ModuleType]:
    """Return the modules that Gluon source imports, by name."""
    names = ("", ".language", ".language.nvidia", ".language.nvidia.hopper")
    found = {
        f"triton.experimental.gluon{name}": types.ModuleType(f"triton.experimental.gluon{name}")
        for name in names
    }
    found["triton"] = types.ModuleType("triton")
    found["triton.experimental"] = types.ModuleType("triton.experimental")
    gluon, language, _, hopper = (found[f"triton.experimental.gluon{name}"] for name in names)
    found["triton.experimental"].gluon = gluon
    gluon.jit, gluon.language = (lambda function: function), language
    vars(language).update(_language())
    hopper.mbarrier = types.SimpleNamespace(
        init=_init, expect=_expect, arrive=_arrive, wait=_wait, MBarrierLayout=lambda: "barriers"
    )
    hopper.tma = types.SimpleNamespace(
        tensor_descriptor=Descriptor,
        async_copy_global_to_shared=_load_tile,
        async_copy_shared_to_global=_store_tile,
        async_atomic_add=_add_tile,
        store_wait=_store_wait,
    )
    hopper.fence_async_shared = _fence
    hopper.warpgroup_mma, hopper.warpgroup_mma_wait = _product, _product_wait
    return found


def _language() -> dict[str, Any]:
    def either(of_numbers: Callable, of_tensors: Callable) -> Callable:
        def function(a: Any, b: Any) -> Any:
            if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
                return of_numbers(a, b)
            return of_tensors(torch.as_tensor(a), torch.as_tensor(b))

        return function

    def where(condition: Any, a: Any, b: Any) -> Any:
        if isinstance(condition, bool):
            return a if condition else b
        return torch.where(condition, torch.as_tensor(a), torch.as_tensor(b))

    def load(pointer: Pointer, mask: Any = None, other: float = 0.0) -> torch.Tensor:
        if mask is None:
            return pointer.tensor.view(-1)[pointer.offset]
        found = torch.full(mask.shape, other, dtype=pointer.tensor.dtype)
        found[mask] = pointer.tensor.view(-1)[pointer.offset[mask]]
        return found

    def store(pointer: Pointer, value: torch.Tensor, mask: torch.Tensor) -> None:
        at = pointer.offset[mask]
        if at.numel() and not 0 <= int(at.min()) <= int(at.max()) < pointer.tensor.numel():
            raise Fault("store out of bounds")
        pointer.tensor.view(-1)[at] = value[mask]

    return {
        "constexpr": lambda value: value,
        "tensor": Any,
        "shared_memory_descriptor": Memory,
        "float32": torch.float32,
        "int64": torch.int64,
        "BlockedLayout": lambda *_: None,
        "SwizzledSharedLayout": lambda *_: None,
        "NVMMADistributedLayout": lambda *_: None,
        "SliceLayout": lambda *_: None,
        "DotOperandLayout": lambda *_: None,
        "convert_layout": lambda value, layout: value,
        "arange": lambda start, end, layout=None: torch.arange(start, end),
        "zeros": lambda shape, dtype, layout=None: torch.zeros(shape, dtype=dtype),
        "zeros_like": torch.zeros_like,
        "full": lambda shape, value, dtype, layout=None: torch.full(shape, value, dtype=dtype),
        "where": where,
        "maximum": either(builtins.max, torch.maximum),
        "minimum": either(builtins.min, torch.minimum),
        "max": lambda value, axis: value.amax(axis),
        "sum": lambda value, axis: value.sum(axis),
        "exp2": torch.exp2,
        "log2": torch.log2,
        "cdiv": lambda a, b: -(-a // b),
        "cast": lambda value, dtype: value,
        "static_range": range,
        "static_assert": lambda holds: None,
        "program_id": lambda axis: State.program,
        "num_programs": lambda axis: State.programs,
        "load": load,
        "store": store,
        "NVMMASharedLayout": types.SimpleNamespace(get_default_for=lambda *_: None),
        "allocate_shared_memory": _allocate,
        "warp_specialize": _warp_specialize,
    }


def _allocate(dtype: torch.dtype, shape: list[int], layout: Any) -> Memory | Barriers:
    State.allocations += 1
    if layout == "barriers":
        return Barriers(shape[0])
    data = torch.full(shape, math.nan, dtype=dtype)
    return Memory(data, f"tiles {list(shape)}")


def _warp_specialize(
    functions_and_args: list[tuple[Callable[..., None], tuple]],
    worker_num_warps: list[int],
    worker_num_regs: list[int],
) -> None:
    if not len(worker_num_warps) == len(worker_num_regs) == len(functions_and_args) - 1:
        raise Fault("warp_specialize: one number of warps and registers per worker")
    State.scheduler = Partitions(functions_and_args)
    try:
        State.scheduler.run()
    finally:
        State.scheduler = None


def _init(bar: Barrier, count: int) -> None:
    bar.count = bar.pending = count


def _expect(bar: Barrier, nbytes: int) -> None:
    bar.arrive(1, nbytes)
    _step()


def _arrive(bar: Barrier, *, count: int = 1, pred: bool = True) -> None:
    if pred:
        bar.arrive(count)
    _step()


def _wait(bar: Barrier, phase: int, pred: bool = True) -> None:
    if pred:
        State.scheduler.wait(bar, phase)


def _load_tile(desc: Descriptor, at: list[int], bar: Barrier, tile: Memory) -> None:
    def copy() -> None:
        theirs, ours = desc.box(at)
        block = torch.zeros(desc.block_type.shape, dtype=desc.dtype)
        block[ours] = desc.tensor[theirs]
        tile.data.copy_(block)
        bar.bytes -= desc.block_type.nbytes
        bar.settle()

    if desc.block_type.shape != tile.shape:
        raise Fault(f"load of {desc.block_type.shape} to {tile.shape}")
    State.scheduler.copies.append(copy)
    _step()


def _store_tile(desc: Descriptor, at: list[int], tile: Memory) -> None:
    _begin_store(desc, at, tile, torch.Tensor.copy_)


def _add_tile(desc: Descriptor, at: list[int], tile: Memory) -> None:
    _begin_store(desc, at, tile, torch.Tensor.add_)


def _begin_store(desc: Descriptor, at: list[int], tile: Memory, how: Callable[..., Any]) -> None:
    if desc.dtype != tile.dtype or desc.block_type.shape != tile.shape:
        raise Fault(f"store of {tile.dtype} {tile.shape} by a descriptor of {desc.dtype}")
    if tile.data.data_ptr() in State.scheduler.local.unfenced:
        raise Fault(f"{tile.label} was written, and stored by TMA without a fence between")
    State.scheduler.local.stores.append((desc, at, tile, tile.data.clone(), how))
    _step()


def _store_wait(pendings: int) -> None:
    stores = State.scheduler.local.stores
    while len(stores) > pendings:
        desc, at, tile, before, how = stores.pop(0)
        if not torch.equal(tile.data.nan_to_num(), before.nan_to_num()):
            raise Fault(f"{tile.label} changed under a store that reads it")
        theirs, ours = desc.box(at)
        how(desc.tensor[theirs], tile.data[ours])
    _step()


def _fence() -> None:
    State.scheduler.local.unfenced.clear()
    _step()


def _product(
    a: Any, b: Memory, acc: torch.Tensor, *, use_acc: bool = True, is_async: bool = False
) -> Product:
    if isinstance(acc, Product):  # products of one shape into one result run in order
        acc = acc.value
    product = Product(a, b, acc if use_acc else None)
    State.scheduler.local.products.append(product)
    _step()
    return product


def _product_wait(num_outstanding: int, deps: tuple) -> Any:
    _step()
    under_way = State.scheduler.local.products
    while len(under_way) > num_outstanding:
        under_way.pop(0).finish()
    for dep in deps:
        if isinstance(dep, Product) and not dep.is_done:
            raise Fault("the result of a product is taken while the product is under way")
    values = tuple(dep.value if isinstance(dep, Product) else dep for dep in deps)
    return values[0] if len(values) == 1 else values
