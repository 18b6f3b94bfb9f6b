"""What is known of a tile, of all programs at once: its rows, and which of its pairs are masked.

As in `grader.kernel.observers.lineage`, with the programs as axis 0 of each array, of size 1 where
all of them have the same. A row of -1 is nobody's; -2 stands where nothing is known of a program.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import torch

from grader.kernel.machine.arrays import Tensor, full, numbers
from grader.kernel.machine.notes import NOTHING
from grader.kernel.machine.ttir import Type
from grader.kernel.observers import lineage

_UNKNOWN = -2
_as_numpy = torch.Tensor.numpy


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
        return self.operand in lineage.QUERY_SIDE

    def one(self, program: int, length: int) -> lineage.Rows | None:
        """Return those of one program, on an axis of this length."""
        ids = self.ids[program if self.ids.shape[0] > 1 else 0]
        if int(ids[0]) == _UNKNOWN:
            return None
        column = int(self.column[program if self.column.shape[0] > 1 else 0])
        return lineage.Rows(self.operand, _as_numpy(ids.expand(length)), column)


@dataclasses.dataclass(frozen=True)
class Note:
    """The note of a tile; see `grader.kernel.observers.lineage` for what is masked.

    `product` is which product it is made of, from which line on and from which column on. `factors`
    are the tiles, with note, array and type, that it is the elementwise product of.
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
    def arrays(self) -> list[Tensor]:
        """All that have programs."""
        found = [array for rows in self.axes if rows for array in (rows.ids, rows.column)]
        found += [array for array in (self.hidden, self.mask) if array is not None]
        return found + ([self.product[2]] if self.product else [])

    @property
    def shape(self) -> tuple[int]:
        """How many programs it is of, 1 if it says the same of all."""
        return (max((array.shape[0] for array in self.arrays), default=1),)

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
        """Return one note for those of several parts; what one of them does not know is unknown."""
        known = [note for note in notes if note is not NOTHING]
        pairs = list(zip(notes, counts, strict=True))

        def join(array_of: Callable[[Any], Tensor | None], nothing: Any) -> Tensor | None:
            found = [None if note is NOTHING else array_of(note) for note in notes]
            there = [array for array in found if array is not None]
            if not there:
                return None
            sizes = torch.broadcast_shapes(*(array.shape[1:] for array in there))
            blank = full((1, *sizes), nothing, dtype=there[0].dtype)
            parts = [
                (blank if array is None else array).expand((count, *sizes))
                for array, (_, count) in zip(found, pairs, strict=True)
            ]
            return torch.cat(parts)[place]

        axes: list[Rows | None] = []
        for axis in range(len(self.axes)):
            rows = [note.axes[axis] for note in known if note.axes[axis]]
            if len({r.operand for r in rows}) != 1:
                axes.append(None)
                continue
            ids = join(lambda note, a=axis: note.axes[a] and note.axes[a].ids, _UNKNOWN)
            column = join(lambda note, a=axis: note.axes[a] and note.axes[a].column, 0)
            axes.append(Rows(rows[0].operand, ids, column))
        made = next((note.product for note in known if note.product), None)
        if made:
            made = (*made[:2], join(lambda note: note.product and note.product[2], 0))
        return Note(
            tuple(axes),
            join(lambda note: note.hidden, False),
            join(lambda note: note.mask, 0),
            max(note.mask_line for note in known),
            any(note.weights for note in known),
            all(note.loaded for note in known),
            max(note.rounded_at for note in known),
            made,
        )


def handle(note: Any, program: int, type: Type, value: Tensor) -> Any:
    """Return what is known of a tile of one program as a handle, for the rooms that take these."""
    found = types.SimpleNamespace(data=_one(value, program, type.shape))
    found.dtype = types.SimpleNamespace(primitive_bitwidth=type.bits)
    if note is NOTHING:
        return found
    if note.axes and len(note.axes) == len(type.shape):
        pairs = zip(note.axes, type.shape, strict=True)
        tags = tuple(rows and rows.one(program, length) for rows, length in pairs)
        found.tags = tags if any(tag is not None for tag in tags) else None
    for name in ("hidden", "mask"):
        array = getattr(note, name)
        setattr(found, name, None if array is None else _one(array, program, type.shape))
    found.mask_line, found.weights = note.mask_line, note.weights
    found.rounded_at = note.rounded_at
    if note.loaded:
        found.loaded = True
    if note.product:
        kind, line, columns = note.product
        found.product = kind, line, int(columns[program if columns.shape[0] > 1 else 0])
    return found


def _one(value: Tensor, program: int, shape: tuple[int, ...]) -> Any:
    own = value[program if value.shape[0] > 1 else 0]
    own = own.float() if own.dtype is torch.bfloat16 else own
    return _as_numpy(own.expand(shape))


def per_program(flags: Tensor, programs: int) -> list[int]:
    """Return the programs, by their place in an environment, in which any lane is true."""
    found = flags.flatten(1).any(1) if flags.dim() > 1 else flags
    return numbers(found.expand(programs).nonzero()[:, 0])
