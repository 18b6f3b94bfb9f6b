"""What observers know of a tile: which rows of which input it holds, and its masked pairs.

It is the note of the tile's value. Axis 0 of each array is that of the programs, with size 1 if it
is the same for all. Row -1 is no row, as in a masked lane. What is unknown for one program is
unknown for all. A tile with queries along one axis and keys along the other is one of pairs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from grader.kernel.machine import events
from grader.kernel.machine.arrays import Tensor
from grader.kernel.machine.ttir import Type
from grader.kernel.observers.operands import QUERY_SIDE
from grader.kernel.observers.record import as_numpy


@dataclasses.dataclass(frozen=True)
class Rows:
    """The rows of an operand along an axis of a tile, and their first column in the tile.

    `ids` are (programs, length), `column` is (programs,): tensors, or numpy arrays from `lanes`.
    """

    operand: str
    ids: Any
    column: Any

    @property
    def of_queries(self) -> bool:
        """Whether these are rows of queries, else of keys."""
        return self.operand in QUERY_SIDE

    def lanes(self, programs: int, length: int) -> Rows:
        """Return the rows as numpy arrays with a number for each lane of each program."""
        ids, column = self.ids.expand(programs, length), self.column.expand(programs)
        return Rows(self.operand, as_numpy(ids), as_numpy(column))


@dataclasses.dataclass(frozen=True)
class Note:
    """The note of a tile: the rows along its axes, and more of a tile of pairs.

    `hidden` says which pairs are masked, `mask` is as in `trace.Trace`, `mask_line` is the line of
    the mask, and `weights` says whether the tile comes from an exponential. `product` is the index
    of the product that the tile is made of, its line, and its first column. `factors` are the
    tiles, with note, array and type, of an elementwise product. `decided` is the line where scores
    only chose between two other numbers, else 0; `loaded` says that an input was loaded as it is.
    """

    axes: tuple[Rows | None, ...]
    hidden: Tensor | None = None
    mask: Tensor | None = None
    mask_line: int = 0
    weights: bool = False
    loaded: bool = False
    product: tuple[int, int, Tensor] | None = None
    factors: tuple[tuple[Note, Tensor, Type], ...] = ()
    decided: int = 0

    @property
    def _arrays(self) -> dict[Any, Tensor]:
        """The arrays with a part for each program."""
        made = self.product[2] if self.product else None
        found = {"hidden": self.hidden, "mask": self.mask, "made": made}
        for axis, rows in enumerate(self.axes):
            if rows is not None:
                found |= {(axis, "ids"): rows.ids, (axis, "column"): rows.column}
        return {name: array for name, array in found.items() if array is not None}

    def _with(self, arrays: dict[Any, Tensor], factors: tuple[Any, ...] = ()) -> Note:
        """Return the note with other arrays and factors."""
        axes = tuple(
            rows and Rows(rows.operand, arrays[axis, "ids"], arrays[axis, "column"])
            for axis, rows in enumerate(self.axes)
        )
        product = self.product and (*self.product[:2], arrays["made"])
        pairs = {name: arrays.get(name) for name in ("hidden", "mask")}
        return dataclasses.replace(self, axes=axes, product=product, factors=factors, **pairs)

    @property
    def shape(self) -> tuple[int]:
        """The number of programs, 1 if the note is the same for all."""
        return (max((array.shape[0] for array in self._arrays.values()), default=1),)

    @property
    def is_of_pairs(self) -> bool:
        """Whether it has queries on one axis and keys on the other."""
        return len(self.axes) == 2 and None not in self.axes

    def __getitem__(self, programs: Any) -> Note:
        def some(array: Tensor) -> Tensor:
            return array[programs] if array.shape[0] > 1 else array

        factors = tuple((note[programs], some(array), type) for note, array, type in self.factors)
        return self._with({name: some(array) for name, array in self._arrays.items()}, factors)

    def moved(self, axes: tuple[Rows | None, ...], change: Callable[[Tensor], Tensor]) -> Note:
        """Return the note with other axes; `change` moves the arrays of pairs likewise."""
        hidden, mask = (tile if tile is None else change(tile) for tile in (self.hidden, self.mask))
        return dataclasses.replace(self, axes=axes, hidden=hidden, mask=mask, factors=())

    def together(self, notes: Sequence[Any], counts: Sequence[int], place: Tensor) -> Note:
        """Merge the notes of several parts into one, as `notes.together` does."""
        known = [note for note in notes if note is not None]
        if len(known) < len(notes):
            return Note((None,) * len(self.axes))
        axes = tuple(
            rows[0] if None not in rows and len({r.operand for r in rows}) == 1 else None
            for rows in zip(*(note.axes for note in known), strict=True)
        )
        weights, loaded = any(n.weights for n in known), all(n.loaded for n in known)
        product = next((note.product for note in known if note.product), None)
        line, decided = (max(getattr(n, of) for n in known) for of in ("mask_line", "decided"))
        joined = Note(axes, None, None, line, weights, loaded, product, decided=decided)
        arrays = [note._arrays for note in known]

        def join(name: Any) -> Tensor:
            first = next(array[name] for array in arrays if name in array)
            parts = [array.get(name, torch.zeros_like(first[:1])) for array in arrays]
            sizes = torch.broadcast_shapes(*(part.shape[1:] for part in parts))
            pairs = zip(parts, counts, strict=True)
            return torch.cat([part.expand((count, *sizes)) for part, count in pairs])[place]

        return joined._with({name: join(name) for name in set().union(*arrays)})


@dataclasses.dataclass(frozen=True)
class Tile:
    """A tile with two axes, of some programs: its note, the rows along its axes, its numbers."""

    note: Any
    axes: tuple[Rows | None, Rows | None]
    numbers: Tensor

    @property
    def turned(self) -> Tile:
        note = self.note and self.note.moved(self.note.axes[::-1], _turn)
        return Tile(note, self.axes[::-1], _turn(self.numbers))

    def of_pairs(self, name: str, nothing: Any) -> np.ndarray:
        """Return `hidden` or `mask` of the note, expanded to all pairs of lanes."""
        array, (rows, columns) = getattr(self.note, name), self.axes
        array = nothing if array is None else as_numpy(array)
        return np.broadcast_to(array, (*rows.ids.shape, columns.ids.shape[1]))


def _turn(tile: Tensor) -> Tensor:
    return tile.transpose(1, 2)


def is_outer(operands: Sequence[Tensor], result: Tensor) -> bool:
    """Whether an operation combines each of some rows with each of others, as a product may.

    Then no operand is as large as the result.
    """
    return all(math.prod(x.shape[1:]) < math.prod(result.shape[1:]) for x in operands)


def as_dot(
    first: tuple[Note, Tensor, Type], second: tuple[Note, Tensor, Type], axis: int
) -> list[tuple[Note, Tensor, Type]]:
    """Return the operands of the dot that equals a product summed over one of its three axes.

    Each factor must be constant along an axis of the other one; if not, the list is empty.
    """
    kept, other = (a for a in range(3) if a != axis)
    for left, right in ((first, second), (second, first)):
        if left[1].shape[other + 1] == 1 and right[1].shape[kept + 1] == 1:
            return [_plane(left, (kept, axis), other), _plane(right, (axis, other), kept)]
    return []


def _plane(
    tile: tuple[Note, Tensor, Type], order: tuple[int, int], along: int
) -> tuple[Note, Tensor, Type]:
    """Return a tile without axis `along`, along which it is constant, the others in `order`."""
    note, array, type = tile

    def flat(array: Tensor) -> Tensor:
        plane = array.select(along + 1, 0)
        return plane.transpose(1, 2) if order[0] > order[1] else plane

    note = note.moved(tuple(note.axes[axis] for axis in order), flat)
    return note, flat(array), Type(tuple(type.shape[axis] for axis in order), type.element)


def moved(event: events.Computed) -> Any:
    """Return the note of a tile whose axes an operation has moved."""
    note, op, types = event.notes[0], event.op, event.types
    if note is None:
        return note
    axes = note.axes
    if op.name == "tt.expand_dims":
        axis = op.number("axis")
        return note.moved((*axes[:axis], None, *axes[axis:]), lambda x: x.unsqueeze(axis + 1))
    if op.name == "tt.trans":
        order = op.numbers("order")
        turn = (0, *(axis + 1 for axis in order))
        return note.moved(tuple(axes[axis] for axis in order), lambda x: x.permute(turn))
    if op.name == "tt.reshape":
        before, after = types[0].shape, types[-1].shape
        found: tuple[Rows | None, ...] = (None,) * len(after)
        if [n for n in before if n != 1] == [n for n in after if n != 1]:
            long = iter([rows for rows, n in zip(axes, before, strict=True) if n != 1])
            found = tuple(next(long) if n != 1 else None for n in after)
        return note.moved(found, lambda x: x.expand((-1, *before)).reshape((-1, *after)))
    return note
