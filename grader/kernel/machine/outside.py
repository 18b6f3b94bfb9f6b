"""Says how a kernel accesses memory outside its tensors: what the error of such an access tells."""

from __future__ import annotations

import dataclasses
import enum

import torch

from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.steps import Env, Translation
from grader.kernel.machine.tensors import Memory, place_in
from grader.kernel.machine.ttir import AtPlace, Operation, Place

WRAPS = "a 32-bit offset overflows"  # and puts an access out of bounds
_OF_POINTERS = {"tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape"}


class Outside(enum.StrEnum):
    """How an access is out of bounds."""

    EDGE = "edge"  # a tile begins in its tensor and reaches past its end, without a mask
    MASK = "mask"  # as EDGE, although there is a mask
    BLOCK = "block"  # as EDGE, by a block pointer
    STRIDE = "stride"  # the distance of its elements is none of the tensor's strides
    SHIFT = "shift"  # as EDGE or MASK, where tiles divide the tensor, and need no mask
    TILE = "tile"  # a whole tile lies past the end
    BEFORE = "before"  # before the start
    POINTER = "pointer"  # as TILE or BEFORE, by the pointer alone, before it has a tile's offsets
    NOWHERE = "nowhere"  # in no tensor
    WRAPS = "wraps"  # by an offset of 32 bits that overflows


class OutOfBounds(AtPlace):
    """A kernel touched memory outside the tensors that it was given."""

    def __init__(self, text: str, place: Place, how: Outside = Outside.NOWHERE) -> None:
        super().__init__(text, place)
        self.how = how


@dataclasses.dataclass(frozen=True)
class _Tile:
    """The tile of a program that accesses a tensor, with lanes outside of its `size` elements.

    `offsets` are those of all lanes from the tensor's first element; `active` lanes are accessed.
    """

    op: Operation
    translation: Translation
    memory: Memory
    offsets: Tensor
    active: Tensor
    first: int  # the offset of the first lane that is outside
    size: int
    is_masked: bool

    @property
    def apart(self) -> int:
        """A distance of its elements that is no stride of the tensor, 0 if there is none."""
        pointer = self.translation.module.type(self.op.operands[0])
        if pointer.width != self.memory.tensor.element_size():
            return 0
        for axis, length in enumerate(self.offsets.shape):
            first, *others = self.offsets.movedim(axis, 0).reshape(length, -1)[:2, 0].tolist()
            if others and abs(others[0] - first) not in (0, *self.memory.tensor.stride()):
                return abs(others[0] - first)
        return 0

    @property
    def begin(self) -> int:
        return int(self.offsets[self.active].min())

    @property
    def divides(self) -> bool:
        """Whether tiles of this size divide the last axes of the tensor evenly."""
        shape, tile = self.memory.tensor.shape, self.offsets.shape
        lengths = shape[len(shape) - len(tile) :]
        return len(lengths) == len(tile) and not any(
            n % m for n, m in zip(lengths, tile, strict=True)
        )

    def starts_outside(self, env: Env, row: int) -> bool:
        """Whether the program's pointer is outside already before a tile's offsets are added.

        That pointer is the last scalar one on another line than the operation that uses it.
        """
        module = self.translation.module
        made = module.makers
        value, line = self.op.operands[0], self.op.place.line
        while (op := made.get(value)) is not None and op.name in _OF_POINTERS:
            if not module.type(value).shape and op.place.line != line:
                break
            value, line = op.operands[0], op.place.line
        found = env[value]
        if module.type(value).shape or found is None:
            return False
        offset = int(found.reshape(-1)[row if found.shape[0] > 1 else 0]) - self.memory.base
        return not 0 <= offset < self.size

    def how(self, env: Env, row: int) -> Outside:
        """Return how the tile is outside; it is that of the program in `row` of `env`."""
        if self.apart:
            return Outside.STRIDE
        if self.first < 0 or self.begin >= self.size:
            if self.starts_outside(env, row):
                return Outside.POINTER
            return Outside.BEFORE if self.first < 0 else Outside.TILE
        if self.divides:
            return Outside.SHIFT
        if self.translation.by_blocks:
            return Outside.BLOCK
        return Outside.MASK if self.is_masked else Outside.EDGE

    def described(self, how: Outside) -> str:
        name, tensor = self.memory.names[0], self.memory.tensor
        if how is Outside.STRIDE:
            strides = tuple(tensor.stride())
            return f": they lie {self.apart:,} apart, and the strides of {name} are {strides}"
        if how in (Outside.POINTER, Outside.BEFORE, Outside.TILE):
            index, shape = self.memory.index_of(self.first), tuple(tensor.shape)
            return f", where {name}{index} would be; its shape is {shape}"
        index = self.memory.index_of(self.begin)
        text = f", where the tile begins at {name}{index}" if how is Outside.SHIFT else ""
        return text + (", under a mask" if self.is_masked else ", without a mask")


def out_of_bounds(
    op: Operation,
    translation: Translation,
    env: Env,
    memory: Memory | None,
    lanes: tuple[Tensor, Tensor, Tensor],
    *,
    does: str,
    is_masked: bool,
) -> OutOfBounds:
    """Return the error of an operation that accesses elements outside a tensor, or outside of all.

    `lanes` are their offsets in the tensor, which are active, and which of these are outside. The
    first program with such a lane is described. `does` names the kind of access.
    """
    offsets, _, outside = lanes
    pointer = translation.module.type(op.operands[0])
    row = int(outside.reshape(len(outside), -1).any(1).nonzero()[0, 0])
    shape = torch.broadcast_shapes(outside.shape[1:], offsets.shape[1:], pointer.shape)
    places, here, lost = (array[row if array.shape[0] > 1 else 0].expand(shape) for array in lanes)
    count, all_lanes = int(lost.sum()), int(here.sum())
    program = place_in(translation.state.grid, int(env[0][row]))
    text = f"; program {program}: "
    if all_lanes == 1:
        text += "1 element"
    else:
        text += f"{count:,} of {all_lanes:,}" if count < all_lanes else f"all {count:,}"
        text += " elements"
    if memory is None:
        return OutOfBounds(f"{does} outside every tensor of the launch{text}", op.place)
    first, size = int(places[lost][0]), memory.size(pointer.width)
    side, distance = ("before the start", -first) if first < 0 else ("past the end", first - size)
    text += f", the first of them {distance:,} {side}".replace(" 0 ", " right ")
    tile = _Tile(op, translation, memory, places, here, first, size, is_masked)
    how = tile.how(env, row)
    where = f"a tensor: {side} of argument {memory.name}"
    return OutOfBounds(f"{does} outside {where}{text}{tile.described(how)}", op.place, how)
