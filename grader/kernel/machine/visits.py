"""How often each program of a launch runs each region of a kernel, without computing its tiles.

A region is what runs together: a function's block, the body of a loop, a side of a branch. Of the
kernel's text only that is executed which loops and branches depend on, so that a sequence of any
length takes as long as its rounds.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from grader.kernel.machine import flow
from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.parse import parse
from grader.kernel.machine.program import Program
from grader.kernel.machine.steps import Env, Limits, Run, Stopped, Translation
from grader.kernel.machine.ttir import Block, Module, NotMeasured, Operation, Place, type_of

_VISIT, _ACCESS = "visit", "access"
_LIMITS = Limits(steps=4_000_000, seconds=10.0, elements=1 << 24, value_bytes=1 << 33)
_MOST_SEEN = 2  # rounds of an access that are looked at, of each program
_MOST_SECONDS = 1.0
_ALIGNED = 512
_APART = 1 << 44  # bytes between the addresses of two tensors
_COMBINING = ("tt.reduce", "tt.scan", "tt.map_elementwise")


_DATA = ("tt.load", *flow.STORES, "tt.dot", "tt.call")


class DependsOnData(NotMeasured):
    """How often a loop or a branch runs depends on what a kernel computes or other programs do."""


@dataclasses.dataclass
class Region:
    """Operations that run together, those of regions inside it apart.

    `loop` says that it is a loop's body, `parent` is the region around it. `macs` are the products
    of its dots, `loaded` and `stored` the bytes of its accesses to memory; `lines` says how many
    operations it has of each line of each file.
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
        """The innermost loop that it is, or lies in; None outside of loops."""
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
    same shape or None. A tensor begins at a multiple of 512 bytes, as PyTorch's on a GPU, if it is
    no view of another.
    """

    op: Operation
    region: int
    shape: tuple[int, ...]
    width: int
    rounds: list[tuple[Tensor, Tensor | None]]

    @property
    def kind(self) -> str:
        """What it does: load or store."""
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
    module = parse(text)
    sliced, regions = _Slice(module).result
    program = _Counting(sliced, len(regions), math.prod(grid))
    program.launch(grid, arguments, limits=_LIMITS, lenient=True)
    return Visited(tuple(regions), program.counts)


def addressed(
    text: str,
    grid: tuple[int, int, int],
    arguments: Sequence[tuple[str, Any]],
    programs: Sequence[int],
) -> list[Seen]:
    """Return where some programs of a launch load and store tiles, as far as numbers alone say it.

    Left out is what goes where a kernel has loaded that it should, and what does not run.

    Raises:
        NotMeasured: as `visited`.
    """
    sliced = _Slice(parse(text), addresses=True)
    tensors = [value for _, value in arguments if hasattr(value, "data_ptr")]
    addresses = {
        tensor.data_ptr(): (number + 1) * _APART
        + tensor.storage_offset() * tensor.element_size() % _ALIGNED
        for number, tensor in enumerate(tensors)
    }
    program = _Watching(sliced.result[0], sliced.seen)
    limits = dataclasses.replace(_LIMITS, seconds=_MOST_SECONDS)
    with contextlib.suppress(_Enough, Stopped):
        program.launch(
            grid, arguments, addresses=addresses, limits=limits, only=programs, lenient=True
        )
    return [seen for seen in sliced.seen if seen.rounds]


class _Enough(Exception):
    """All accesses were looked at often enough."""


class _Watching(Program):
    """A kernel of which only addresses are left."""

    def __init__(self, module: Module, seen: list[Seen]) -> None:
        self._seen = seen
        super().__init__(module, steps={_VISIT: lambda *_: lambda _: None, _ACCESS: self._access})

    def _access(self, op: Operation, translation: Translation) -> Run:
        seen = self._seen[int(op.text)]
        pointers, *mask = op.operands

        def run(env: Env) -> None:
            if len(seen.rounds) < _MOST_SEEN:
                addresses = translation.state.memories.addresses(env[pointers], seen.width)
                seen.rounds.append((addresses, env[mask[0]] if mask else None))
            elif all(len(other.rounds) >= _MOST_SEEN for other in self._seen):
                raise _Enough

        return run


class _Counting(Program):
    """A kernel of which only visits are left."""

    def __init__(self, module: Module, regions: int, programs: int) -> None:
        self.counts = torch.zeros((regions, programs), dtype=torch.int64)
        super().__init__(module, steps={_VISIT: self._visit})

    def _visit(self, op: Operation, translation: Translation) -> Run:
        row = self.counts[int(op.text)]

        def run(env: Env) -> None:
            row[env[0]] += 1

        return run


class _Slice:
    """Makes a module of what control flow depends on, with a visit at the start of each region.

    With `addresses` there is an access in the place of each load and store as well.
    """

    def __init__(self, module: Module, *, addresses: bool = False) -> None:
        self.seen: list[Seen] = []
        self._module = module
        self._addresses = addresses
        self._regions: list[Region] = []
        blocks = (block for those in module.functions.values() for block in those)
        self._arguments = {block.label: block.arguments for block in blocks}  # of what is jumped to
        self._needed = self._what_control_needs()
        functions = {
            name: [self._block(block, None) for block in blocks]
            for name, blocks in module.functions.items()
        }
        small = type_of("i64")
        types = [t if n in self._needed else small for n, t in enumerate(module.types)]
        for value in module.functions[module.entry][0].arguments:
            types[value] = module.type(value)
        self.result = Module(functions, types, module.names), self._regions

    def _what_control_needs(self) -> set[int]:
        made: dict[int, list[int]] = {}
        wanted: list[int] = []
        makers: dict[int, Operation] = {}
        for op in self._module.operations:
            makers.update(dict.fromkeys(op.results, op))
            if not op.regions or op.name in _COMBINING:
                for result in op.results:
                    made.setdefault(result, []).extend(op.operands)
            for value, other in _handed(op, self._arguments):
                made.setdefault(value, []).append(other)
            wanted += _decides(op)
        needed = flow.reached(wanted, made)
        for value in needed:
            op = makers.get(value)
            if op is not None and self._is_data(op):
                raise DependsOnData("a loop or a branch depends on what the kernel computes")
        self._asked = set()
        for op in self._module.operations if self._addresses else ():
            if op.name in ("tt.load", "tt.store") and self._module.type(op.operands[0]).shape:
                own = flow.reached(list(_given(op)), made)
                if not any(value in makers and makers[value].name in _DATA for value in own):
                    self._asked.add(op)
                    needed |= own
        return needed

    def _is_data(self, op: Operation) -> bool:
        loads = op.name == "tt.load" and self._module.type(op.results[0]).is_float
        return loads or op.name in (*flow.STORES, "tt.dot", "tt.call")

    def _block(self, block: Block, parent: Region | None, *, loop: bool = False) -> Block:
        region = Region(len(self._regions), parent, loop)
        self._regions.append(region)
        visit = Operation(_VISIT, (), (), Place(), text=str(region.number))
        found = [visit]
        for op in block.operations:
            _note(op, region, self._module)
            found += self._operation(op, region)
        # A launch gives the kernel all of its arguments.
        is_entry = block is self._module.functions[self._module.entry][0]
        given = (v for v in block.arguments if is_entry or v in self._needed)
        return Block(block.label, list(given), found)

    def _operation(self, op: Operation, region: Region) -> Iterator[Operation]:
        if op.name == "scf.for":
            (body,) = op.regions[0]
            carried = [value in self._needed for value in body.arguments[1:]]
            index = body.arguments[0]
            inner = self._block(body, region, loop=True)
            inner.arguments = [index, *_where(carried, body.arguments[1:])]
            _end(inner, body, carried)
            operands = (*op.operands[:3], *_where(carried, op.operands[3:]))
            results = tuple(_where(carried, op.results))
            yield dataclasses.replace(
                op, operands=operands, results=results, regions=([inner],), attributes={}
            )
        elif op.name == "scf.if":
            given = [value in self._needed for value in op.results]
            sides = []
            for (side,) in op.regions:
                inner = self._block(side, region)
                _end(inner, side, given)
                sides.append([inner])
            results = tuple(_where(given, op.results))
            yield dataclasses.replace(op, results=results, regions=tuple(sides))
        elif op.name == "scf.while":
            (before,), (body,) = op.regions
            first = [value in self._needed for value in before.arguments]
            second = [value in self._needed for value in body.arguments]
            asked = self._block(before, region, loop=True)
            asked.arguments = _where(first, before.arguments)
            _end(asked, before, [True, *second])
            inner = self._block(body, region, loop=True)
            inner.arguments = _where(second, body.arguments)
            _end(inner, body, first)
            operands = tuple(_where(first, op.operands))
            results = tuple(_where(second, op.results))
            yield dataclasses.replace(
                op, operands=operands, results=results, regions=([asked], [inner])
            )
        elif op.name in ("cf.br", "cf.cond_br"):
            targets = []
            for label, handed in op.targets:
                needed = [value in self._needed for value in self._arguments[label]]
                targets.append((label, tuple(_where(needed, handed))))
            yield dataclasses.replace(op, targets=tuple(targets))
        elif op.name == "tt.return":
            yield dataclasses.replace(op, operands=())
        elif op.name in ("scf.yield", "scf.condition") or not self._needed.isdisjoint(op.results):
            yield op
        if op in self._asked:
            yield Operation(_ACCESS, (), _given(op), op.place, text=str(len(self.seen)))
            pointer = self._module.type(op.operands[0])
            self.seen.append(Seen(op, region.number, pointer.shape, pointer.width, []))


def _where(kept: Sequence[bool], values: Sequence[int]) -> list[int]:
    return [value for value, keep in zip(values, kept, strict=True) if keep]


def _end(sliced: Block, block: Block, kept: Sequence[bool]) -> None:
    """Let a block hand on what is left; one that hands nothing on may have no end."""
    last = block.last
    if last is not None and last.name in ("scf.yield", "scf.condition"):
        operands = tuple(_where(kept, last.operands))
        sliced.operations[-1] = dataclasses.replace(last, operands=operands)


def _given(op: Operation) -> tuple[int, ...]:
    """Return the pointers of a load or a store, and its mask where it has one."""
    return (op.operands[0], *op.operands[1 if op.name == "tt.load" else 2 :][:1])


def _decides(op: Operation) -> tuple[int, ...]:
    """Return the values that say how often, and which of its regions, an operation runs."""
    if op.name == "scf.for":
        return op.operands[:3]
    return op.operands[:1] if op.name in ("scf.if", "scf.condition", "cf.cond_br") else ()


def _handed(op: Operation, labels: dict[str, list[int]]) -> Iterator[tuple[int, int]]:
    yield from flow.handed(op)
    if op.name == "scf.for":  # what is left of a variable is kept with it
        yield from zip(op.results, op.regions[0][0].arguments[1:], strict=True)
    elif op.name == "scf.while":
        yield from zip(op.results, op.regions[1][0].arguments, strict=True)
    for label, values in op.targets:
        yield from zip(labels[label], values, strict=True)


def _note(op: Operation, region: Region, module: Module) -> None:
    """Add an operation to what a region has."""
    region.lines[op.place.file, op.place.line] += 1
    if op.name == "tt.dot":
        depth = module.type(op.operands[0]).shape[-1]
        region.macs += module.type(op.results[0]).numel * depth
    elif op.name in ("tt.load", *flow.STORES):
        pointer = module.type(op.operands[0])
        size = pointer.numel * pointer.width
        if op.name == "tt.load":
            region.loaded += size
        else:
            region.stored += size
