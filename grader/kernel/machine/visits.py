"""How often each program of a launch runs each region of a kernel, without computing its tiles.

A region is code that runs together: a function's block, the body of a loop, a side of a branch.
Only the operations run on which loops and branches depend, so that a long sequence takes no longer
than its rounds.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from grader.kernel.machine import flow, kinds
from grader.kernel.machine.arrays import Tensor, filled
from grader.kernel.machine.parse import parse
from grader.kernel.machine.program import Program
from grader.kernel.machine.steps import Body, Env, Limits, Run, Stopped
from grader.kernel.machine.ttir import Block, Module, NotMeasured, Operation, Place, type_of

_SMALL = type_of("i64")
_VISIT = Operation("machine.visit", (), (), Place())
_LIMITS = Limits(steps=4_000_000, seconds=10.0, elements=1 << 24, value_bytes=1 << 33)
_MOST_SEEN = 2  # recorded rounds of an access
_MOST_SECONDS = 1.0
_ALIGNED = 512
_APART = 1 << 44  # bytes between the addresses of two tensors
_DATA = (*kinds.ACCESSES, "tt.dot", "tt.call")


class DependsOnData(NotMeasured):
    """How often a loop or a branch runs depends on what a kernel computes or other programs do."""


@dataclasses.dataclass
class Region:
    """Operations that run together, without those of regions inside it.

    `loop` says that it is a loop's body, `parent` is the region around it. `macs` are the products
    of its dots, `loaded` and `stored` the bytes of its accesses to memory; `lines` counts its
    operations by file and line.
    """

    number: int
    parent: Region | None
    loop: bool
    lines: collections.Counter[tuple[str, int]] = dataclasses.field(
        default_factory=collections.Counter
    )
    macs: int = 0
    loaded: int = 0
    stored: int = 0

    @property
    def around(self) -> Region | None:
        """The innermost loop body that is or contains the region, None outside loops."""
        region: Region | None = self
        while region is not None and not region.loop:
            region = region.parent
        return region


@dataclasses.dataclass(frozen=True)
class Visited:
    """The regions of a kernel, and how often each program runs each: (regions, programs)."""

    regions: tuple[Region, ...]
    counts: Tensor


@dataclasses.dataclass(frozen=True)
class Seen:
    """A load or a store, of tiles of a `shape` with elements of `width` bytes.

    `rounds` has the addresses in bytes, (programs, *shape), of its first rounds, with a mask of the
    same shape or None. A tensor that is no view begins at a multiple of 512 bytes, as PyTorch's do
    on a GPU.
    """

    op: Operation
    region: int
    shape: tuple[int, ...]
    width: int
    rounds: list[tuple[Tensor, Tensor | None]]

    @property
    def kind(self) -> str:
        return self.op.name.removeprefix("tt.")


def visited(text: str, grid: tuple[int, int, int], arguments: Sequence[tuple[str, Any]]) -> Visited:
    """Count the visits of a launch of the kernel of TTIR `text`.

    Args:
        grid: how many programs there are along each axis.
        arguments: a name and a value, a tensor or a number, for each parameter of the TTIR.

    Raises:
        DependsOnData: the rounds of a loop, or the side of a branch, are not known before the
            kernel runs.
        NotMeasured: the text cannot be read or executed.
    """
    program = _Control(parse(text), math.prod(grid))
    program.launch(grid, arguments, limits=_LIMITS, lenient=True)
    return Visited(tuple(program.regions.values()), program.counts)


def addressed(
    text: str,
    grid: tuple[int, int, int],
    arguments: Sequence[tuple[str, Any]],
    programs: Sequence[int],
) -> list[Seen]:
    """Return the addresses at which some programs of a launch load and store tiles.

    Accesses that do not run, or whose address depends on loaded data, are left out.

    Raises:
        NotMeasured: as `visited`.
    """
    program = _Control(parse(text), math.prod(grid), addresses=True)
    tensors = [value for _, value in arguments if hasattr(value, "data_ptr")]
    addresses = {
        tensor.data_ptr(): (number + 1) * _APART
        + tensor.storage_offset() * tensor.element_size() % _ALIGNED
        for number, tensor in enumerate(tensors)
    }
    limits = dataclasses.replace(_LIMITS, seconds=_MOST_SECONDS)
    with contextlib.suppress(_Enough, Stopped):
        program.launch(
            grid, arguments, addresses=addresses, limits=limits, only=programs, lenient=True
        )
    return [program.seen[op] for op in program.asked if program.seen[op].rounds]


class _Enough(Exception):
    """All accesses have enough recorded rounds."""


class _Control(Program):
    """A kernel that runs only the operations on which loops and branches depend.

    Every other value is a single 0, which loops and branches pass on. Each region counts its
    visits; with `addresses`, the program computes the addresses of loads and stores, too.
    """

    def __init__(self, module: Module, programs: int, *, addresses: bool = False) -> None:
        self.regions = _regions_of(module)
        self.counts = torch.zeros((len(self.regions), programs), dtype=torch.int64)
        self.seen: dict[Operation, Seen] = {}
        self._nothing = filled(_SMALL, 0)
        self._needed = set[int]()
        self.asked: list[Operation] = []
        self._leave_out_data(module, addresses)
        super().__init__(module)

    def _leave_out_data(self, module: Module, addresses: bool) -> None:
        """Find the values that control needs, and the accesses to record; shrink all others."""
        operations = list(module.operations)
        makers = module.makers
        made = flow.made_of(module, lambda op: not op.regions or op.name in kinds.COMBINING)
        handed = [*flow.all_handed(module)]
        for value, other in (pair for op in operations for pair in _alike(op)):
            made.setdefault(value, []).append(other)
            handed.append((value, other))
        needed = flow.reached([value for op in operations for value in _decides(op)], made)
        if any(value in makers and _is_data(makers[value], module) for value in needed):
            raise DependsOnData("a loop or a branch depends on what the kernel computes")
        for op in operations if addresses else ():
            if op.name in ("tt.load", "tt.store") and module.type(op.operands[0]).shape:
                own = flow.reached(list(_given(op)), made)
                if not any(value in makers and makers[value].name in _DATA for value in own):
                    self.asked.append(op)
                    needed |= own
        self._needed = needed
        # A launch sets all arguments, and what gets a kept value, even in vain, keeps its type.
        kept = needed.union(module.functions[module.entry][0].arguments)
        while more := {value for value, other in handed if other in kept} - kept:
            kept |= more
        module.types = [t if n in kept else _SMALL for n, t in enumerate(module.types)]

    def fresh(self) -> Env:
        """Return an environment with a single 0 for each value that is no constant."""
        return [self._nothing if array is None else array for array in super().fresh()]

    def body(self, block: Block) -> Body:
        """Translate the needed operations of a block, all operations of a reduction's."""
        region = self.regions.get(block)
        if region is None:
            return super().body(block)
        operations = [op for op in block.operations if op in self.asked or self._runs(op)]
        for op in operations:
            if op in self.asked:
                pointer = self.module.type(op.operands[0])
                self.seen[op] = Seen(op, region.number, pointer.shape, pointer.width, [])
        found, row = super().body(dataclasses.replace(block, operations=operations)), region.number

        def visit(env: Env) -> None:
            self.counts[row, env[0]] += 1

        found.steps.insert(0, (_VISIT, visit))
        return found

    def _runs(self, op: Operation) -> bool:
        return op.name in (*kinds.CONTROL, *kinds.ENDS) or not self._needed.isdisjoint(op.results)

    def _step(self, op: Operation) -> Run | None:
        if op not in self.seen:
            return super()._step(op)
        own = super()._step(op) if self._runs(op) else None
        seen, (pointers, *mask) = self.seen[op], _given(op)

        def run(env: Env) -> None:
            if own is not None:
                own(env)
            if len(seen.rounds) < _MOST_SEEN:
                addresses = self.state.memories.addresses(env[pointers], seen.width)
                seen.rounds.append((addresses, env[mask[0]] if mask else None))
            elif all(len(other.rounds) >= _MOST_SEEN for other in self.seen.values()):
                raise _Enough

        return run


def _regions_of(module: Module) -> dict[Block, Region]:
    """Return the region of each block, but for blocks inside reductions."""
    found: dict[Block, Region] = {}

    def add(block: Block, parent: Region | None, *, loop: bool = False) -> None:
        region = found[block] = Region(len(found), parent, loop)
        for op in block.operations:
            _note(op, region, module)
            for inner in op.regions if op.name in kinds.CONTROL else ():
                add(inner[0], region, loop=op.name in kinds.LOOPS)

    for blocks in module.functions.values():
        for block in blocks:
            add(block, None)
    return found


def _is_data(op: Operation, module: Module) -> bool:
    if op.name == "tt.load":
        return module.type(op.results[0]).is_float
    return op.name in _DATA


def _given(op: Operation) -> tuple[int, ...]:
    """Return the pointers of a load or a store, and its mask where it has one."""
    return (op.operands[0], *op.operands[1 if op.name == "tt.load" else 2 :][:1])


def _decides(op: Operation) -> tuple[int, ...]:
    """Return the values that decide how often an operation runs, or which of its regions."""
    if op.name == "scf.for":
        return op.operands[:3]
    return op.operands[:1] if op.name in ("scf.if", "scf.condition", "cf.cond_br") else ()


def _alike(op: Operation) -> Iterator[tuple[int, int]]:
    """Yield each result of a loop with its variable: one keeps its type if the other does."""
    if op.name in kinds.LOOPS:
        carried = op.regions[-1][0].arguments[1 if op.name == "scf.for" else 0 :]
        yield from zip(op.results, carried, strict=True)


def _note(op: Operation, region: Region, module: Module) -> None:
    """Add an operation to the counts of a region."""
    region.lines[op.place.file, op.place.line] += 1
    if op.name == "tt.dot":
        depth = module.type(op.operands[0]).shape[-1]
        region.macs += module.type(op.results[0]).numel * depth
    elif op.name in kinds.ACCESSES:
        pointer = module.type(op.operands[0])
        size = pointer.numel * pointer.width
        if op.name == "tt.load":
            region.loaded += size
        else:
            region.stored += size
