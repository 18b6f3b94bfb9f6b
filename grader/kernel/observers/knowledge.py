"""What is known of a tile: which rows of which input it holds, and which of its pairs are masked.

An observer keeps it as the note of the tile's value. The programs are axis 0 of each array, of size
1 where all of them have the same. A row of -1 is nobody's, as where a lane is masked. What is not
known of one of the programs is not known at all. A tile with queries on one axis and keys on the
other is one of pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.notes import NOTHING
from grader.kernel.machine.ttir import Type
from grader.kernel.observers.operands import QUERY_SIDE
from grader.kernel.observers.record import as_numpy


@dataclasses.dataclass(frozen=True)
class Rows:
    """What an axis of a tile holds: rows of an operand, and the first column that it has of them.

    `ids` are (programs, length), `column` is (programs,).
    """

    operand: str
    ids: Tensor
    column: Tensor

    @property
    def of_queries(self) -> bool:
        """Whether these are rows of queries, else of keys."""
        return self.operand in QUERY_SIDE

    def lanes(self, programs: int, length: int) -> Lanes:
        """Return them with a number for each lane of so many programs."""
        ids, column = self.ids.expand(programs, length), self.column.expand(programs)
        return Lanes(self.operand, as_numpy(ids), as_numpy(column))


@dataclasses.dataclass(frozen=True)
class Lanes:
    """Rows with a number for each lane of each program."""

    operand: str
    ids: np.ndarray
    column: np.ndarray
    of_queries = Rows.of_queries


@dataclasses.dataclass(frozen=True)
class Note:
    """The note of a tile: what its axes hold.

    Of pairs `hidden` says which are masked, `mask` is as in `trace.Trace`, `mask_line` is where
    that was made, and `weights` says whether the tile is behind an exponential. `rounded_at` is the
    line that rounded what it is made of to 16 bits. `product` is which product it is made of, from
    which line on and from which column on. `factors` are the tiles, with note, array and type, that
    it is the elementwise product of.
    """

    axes: tuple[Rows | None, ...]
    hidden: Tensor | None = None
    mask: Tensor | None = None
    mask_line: int = 0
    weights: bool = False
    loaded: bool = False
    rounded_at: int = 0
    product: tuple[int, int, Tensor] | None = None
    factors: tuple[tuple[Note, Tensor, Type], ...] = ()

    @property
    def shape(self) -> tuple[int]:
        """How many programs it is of, 1 if it says the same of all."""
        arrays = [array for rows in self.axes if rows for array in (rows.ids, rows.column)]
        arrays += [array for array in (self.hidden, self.mask) if array is not None]
        arrays += [self.product[2]] if self.product else []
        return (max((array.shape[0] for array in arrays), default=1),)

    @property
    def is_of_pairs(self) -> bool:
        """Whether it has queries on one axis and keys on the other."""
        return len(self.axes) == 2 and None not in self.axes

    def __getitem__(self, programs: Any) -> Note:
        return self.each(lambda array: array[programs] if array.shape[0] > 1 else array)

    def each(
        self, change: Callable[[Tensor], Tensor], axes: tuple[Rows | None, ...] | None = None
    ) -> Note:
        """Return it with all arrays changed; where `axes` are given, those of pairs alone."""
        rows = axes
        if rows is None:
            rows = tuple(r and Rows(r.operand, change(r.ids), change(r.column)) for r in self.axes)
        hidden, mask = (x if x is None else change(x) for x in (self.hidden, self.mask))
        product = self.product
        if product and axes is None:
            product = (*product[:2], change(product[2]))
        factors = () if axes else tuple((n.each(change), change(a), t) for n, a, t in self.factors)
        changed = {"axes": rows, "hidden": hidden, "mask": mask, "product": product}
        return dataclasses.replace(self, factors=factors, **changed)

    def together(self, notes: Sequence[Any], counts: Sequence[int], place: Tensor) -> Note:
        """Return one note for those of several parts."""
        known = [note for note in notes if note is not NOTHING]
        whole = len(known) == len(notes)

        def join(found: Sequence[Tensor | None]) -> Tensor | None:
            there = [array for array in found if array is not None]
            if not there or not whole:
                return None
            sizes = torch.broadcast_shapes(*(array.shape[1:] for array in there))
            blank = torch.zeros((1,) * there[0].dim(), dtype=there[0].dtype)
            arrays = [blank if array is None else array for array in found]
            pairs = zip(arrays, counts, strict=True)
            return torch.cat([array.expand((count, *sizes)) for array, count in pairs])[place]

        axes: list[Rows | None] = [None] * len(self.axes)
        for axis, rows in enumerate(zip(*(note.axes for note in known), strict=True)):
            if whole and None not in rows and len({r.operand for r in rows}) == 1:
                held = (join([getattr(r, name) for r in rows]) for name in ("ids", "column"))
                axes[axis] = Rows(rows[0].operand, *held)
        made = next((note.product for note in known if note.product), None) if whole else None
        if made:
            made = (*made[:2], join([note.product and note.product[2] for note in known]))
        return Note(
            tuple(axes),
            join([note.hidden for note in known]),
            join([note.mask for note in known]),
            max(note.mask_line for note in known),
            any(note.weights for note in known),
            all(note.loaded for note in known),
            max(note.rounded_at for note in known),
            made,
        )


@dataclasses.dataclass(frozen=True)
class Tile:
    """A tile with two axes, of some programs: what is known of it, and its numbers."""

    note: Any
    axes: tuple[Lanes | None, Lanes | None]
    numbers: Tensor

    @property
    def turned(self) -> Tile:
        """The tile with its axes exchanged."""
        note = self.note if self.note is NOTHING else self.note.each(_turn, self.note.axes[::-1])
        return Tile(note, self.axes[::-1], _turn(self.numbers))

    def of_pairs(self, name: str, nothing: Any) -> np.ndarray:
        """Return `hidden` or `mask` of the note, with a number for each pair of lanes."""
        array, (rows, columns) = getattr(self.note, name), self.axes
        array = nothing if array is None else as_numpy(array)
        return np.broadcast_to(array, (*rows.ids.shape, columns.ids.shape[1]))


def _turn(tile: Tensor) -> Tensor:
    return tile.transpose(1, 2)


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
