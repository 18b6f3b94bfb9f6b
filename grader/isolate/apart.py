"""Gives each input of a call memory that ends where the input ends.

If all lay in one allocation, a view made of one input could reach the others. In a timed call these
would be the inputs of the calls that follow, too: one launch could compute them all. There the
order of the inputs of all sets, and the gaps between them, are drawn for each go, so that no
address says where another input lies, or to which set it belongs.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import torch

from grader.isolate import device_memory
from grader.isolate.arena import GUARD_BYTES, Layout, View

_STEP_BYTES = 512  # addresses are multiples of it, as those of torch's allocators on a GPU
_ROOM = 0.25  # for gaps, as a share of the bytes that are needed
_drawn = random.SystemRandom()


class Scattered(NamedTuple):
    """Where the blocks of each set's inputs begin, and the outputs of all sets, side by side."""

    starts: tuple[tuple[int, ...], ...]
    outputs_start: int
    total_bytes: int


def blocks(layout: Layout) -> list[range]:
    """Return the bytes of a layout in which inputs lie; slices of one tensor are in one block."""
    found: list[range] = []
    for view in sorted(layout.inputs, key=lambda view: view.offset_bytes):
        first, end = view.offset_bytes, view.offset_bytes + view.extent_bytes
        if found and first < found[-1].stop:
            found[-1] = range(found[-1].start, max(end, found[-1].stop))
        else:
            found.append(range(first, end))
    return found


def scatter(layout: Layout, sets: int, room_bytes: int) -> Scattered:
    """Draw places for `sets` calls of a layout, with guard zones between them.

    The places take at most `room_bytes`, or as much as `sets` layouts where that is more.
    """
    sizes = [-(-len(block) // _STEP_BYTES) * _STEP_BYTES for block in blocks(layout)] * sets
    sizes = [size + GUARD_BYTES for size in sizes]
    sizes.append((layout.total_bytes - layout.inputs_end) * sets)  # each ends with a guard zone
    needed = sum(sizes) + GUARD_BYTES
    spare = max(0, min(int(needed * _ROOM), room_bytes - needed)) // _STEP_BYTES
    order = list(range(len(sizes)))
    _drawn.shuffle(order)
    starts, used = [0] * len(sizes), GUARD_BYTES
    gaps = sorted(_drawn.choices(range(spare + 1), k=len(sizes)))
    for place, gap in zip(order, gaps, strict=True):
        starts[place] = used + gap * _STEP_BYTES
        used += sizes[place]
    *of_inputs, outputs_start = starts
    count = len(of_inputs) // sets
    by_set = tuple(tuple(of_inputs[n * count : (n + 1) * count]) for n in range(sets))
    return Scattered(by_set, outputs_start, used + spare * _STEP_BYTES)


def parts(
    memory: torch.Tensor, layout: Layout, starts: Sequence[int] | None = None
) -> list[tuple[View, torch.Tensor]]:
    """Return for each input its view and the memory of its block, of which it is a view.

    The blocks begin in `memory`, 1-D uint8, at `starts`, or where `layout` has them.
    """
    found = []
    where = blocks(layout)
    for block, start in zip(where, starts or [block.start for block in where], strict=True):
        own = _own(memory, start, len(block))
        for view in layout.inputs:
            offset = view.offset_bytes - block.start
            if 0 <= offset <= len(block) - view.extent_bytes:
                found.append((view._replace(offset_bytes=offset), own))
    return found


def outputs(memory: torch.Tensor, layout: Layout, sets: int, start: int) -> torch.Tensor:
    """Return the memory of the outputs of all sets, one row for each."""
    size = layout.total_bytes - layout.inputs_end
    return memory[start : start + size * sets].view(sets, size)


def _own(memory: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """Return `size` bytes of `memory` as a tensor whose storage has no other bytes."""
    if _is_on_gpu(memory) and size:
        return device_memory.mapped(memory.data_ptr() + start, size, of=memory)
    part = memory[start : start + size]
    return part if _is_on_gpu(memory) else torch.from_numpy(part.numpy())


def _is_on_gpu(memory: torch.Tensor) -> bool:
    """Whether memory really is on a GPU: `absent_gpu` may change what torch.Tensor says."""
    return bool(torch._C.TensorBase.is_cuda.__get__(memory))
