"""What is known of a tile whose axes are moved, and of two that are multiplied and summed."""

from __future__ import annotations

from typing import Any

from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.ttir import Type
from grader.kernel.observers.knowledge import Note, Rows


def as_dot(
    first: tuple[Note, Tensor, Type], second: tuple[Note, Tensor, Type], axis: int
) -> list[tuple[Note, Tensor, Type]]:
    """Return the two tiles of a dot that a product, summed over one of its three axes, amounts to.

    Each of the tiles is the same along an axis that the other one has. Nothing where they are not.
    """
    kept, other = (a for a in range(3) if a != axis)
    for left, right in ((first, second), (second, first)):
        if left[1].shape[other + 1] == 1 and right[1].shape[kept + 1] == 1:
            return [_plane(left, (kept, axis), other), _plane(right, (axis, other), kept)]
    return []


def _plane(
    tile: tuple[Note, Tensor, Type], order: tuple[int, int], along: int
) -> tuple[Note, Tensor, Type]:
    """Return a tile without an axis along which it is the same, its two others in an order."""
    note, array, type = tile

    def flat(array: Tensor) -> Tensor:
        plane = array.select(along + 1, 0)
        return plane.transpose(1, 2) if order[0] > order[1] else plane

    note = note.each(flat, tuple(note.axes[axis] for axis in order))
    return note, flat(array), Type(tuple(type.shape[axis] for axis in order), type.element)


def moved(note: Note, name: str, op: Any, types: tuple[Type, ...]) -> Any:
    """Return the note of a tile whose axes an operation has moved."""
    axes = note.axes
    if name == "tt.expand_dims":
        axis = op.number("axis")
        return note.each(lambda x: x.unsqueeze(axis + 1), (*axes[:axis], None, *axes[axis:]))
    if name == "tt.trans":
        order = op.numbers("order")
        turn = (0, *(axis + 1 for axis in order))
        return note.each(lambda x: x.permute(turn), tuple(axes[axis] for axis in order))
    if name == "tt.reshape":
        before, after = types[0].shape, types[-1].shape
        found: tuple[Rows | None, ...] = (None,) * len(after)
        if [n for n in before if n != 1] == [n for n in after if n != 1]:
            long = iter([rows for rows, n in zip(axes, before, strict=True) if n != 1])
            found = tuple(next(long) if n != 1 else None for n in after)
        return note.each(lambda x: x.expand((-1, *before)).reshape((-1, *after)), found)
    return note
