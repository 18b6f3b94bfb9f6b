"""Which pairs of a tile of scores are masked, by what is computed of it: of all programs at once.

See `grader.kernel.observers.knowledge.Note`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from grader.kernel.machine.arrays import Tensor, cast
from grader.kernel.observers.knowledge import Note
from grader.kernel.observers.trace import DROWNED

EXPONENTIALS = ("math.exp", "math.exp2")
PRODUCT, CHOICE = "arith.mulf", "arith.select"
DIFFERENCE = "arith.subf"
SUMS = ("arith.addf", DIFFERENCE)
_HIDDEN = -1e4
_COUNTS = 1e-3  # of the largest weight beside it


def _of_pairs(note: Any) -> bool:
    return isinstance(note, Note) and note.is_of_pairs


def _any(flags: Tensor) -> Tensor:
    """Return whether any lane of a program is true, in as many dimensions."""
    return flags.flatten(1).any(1).reshape((-1,) + (1,) * (flags.dim() - 1))


def _joined(
    first: Tensor | None, second: Tensor | None, join: Callable[..., Tensor]
) -> Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return join(first, second)


def _marked(there: Tensor, number: int, otherwise: int) -> Tensor:
    return cast(torch.where(there, number, otherwise), torch.uint8)


def follow(
    name: str,
    result: Tensor,
    operands: Sequence[Tensor],
    notes: Sequence[Any],
    keys: int,
    *,
    weights: bool,
) -> tuple[Tensor | None, Tensor | None]:
    """Return which pairs of a result are hidden, and its mask as in `trace.Trace`.

    `notes` are those of the operands, `keys` is the axis of the keys, and `weights` says whether
    the result is behind an exponential.
    """
    known = [note for note in notes if isinstance(note, Note)]
    # Behind the exponential a number far down is no score any more: dS may be one.
    far = torch.zeros((1,) * result.dim(), dtype=torch.bool) if weights else result <= _HIDDEN
    hidden, mask = far, None
    for note in known:
        hidden = _joined(hidden, note.hidden, torch.logical_or)
        mask = _joined(note.mask, mask, torch.maximum)
    assert hidden is not None
    if name == CHOICE:
        condition = operands[0]
        sides = zip(operands[1:], notes[1:], (condition, ~condition), strict=True)
        for side, note, there in sides:
            if not _of_pairs(note):
                if weights:
                    hidden = hidden | (there & ~_any(side != 0))
                mask = _joined(_marked(there & ~hidden, 2, 1), mask, torch.maximum)
    elif name == PRODUCT:
        for side, note in zip(operands, notes, strict=True):
            if _of_pairs(note):
                continue
            zero = side == 0
            if weights:
                hidden = hidden | zero
            elif bool(zero.any()) and not bool(zero.all()):  # a mask as a factor
                mixed = _any(zero) & _any(~zero)
                marks = _marked(zero & ~hidden, 2, 1) * mixed
                mask = _joined(marks, mask, torch.maximum)
    elif name in SUMS and not weights:
        added = _added(name, operands, notes, keys)
        if added is not None:
            mask = _joined(_marked(added & ~hidden, 2, 1), mask, torch.maximum)
            return hidden, mask
    if name in SUMS and bool(far.any()):
        drowned = far & _of_rows(operands, notes, keys)
        for note in known:
            if note.hidden is not None:
                drowned = drowned & ~note.hidden
        mask = _joined(cast(drowned, torch.uint8) * DROWNED, mask, torch.maximum)
    return hidden, mask


def _added(name: str, operands: Sequence[Tensor], notes: Sequence[Any], keys: int) -> Tensor | None:
    """Return where a tile that is added hides scores, which is 0 elsewhere; None of another."""
    for number, (data, note) in enumerate(zip(operands, notes, strict=True)):
        if _of_pairs(note) or data.shape[keys] == 1:  # one number for each query: a maximum
            continue
        down = data >= -_HIDDEN if number and name == DIFFERENCE else data <= _HIDDEN
        if bool(down.any()) and bool((down | (data == 0)).all()):
            return down
    return None


def _of_rows(operands: Sequence[Tensor], notes: Sequence[Any], keys: int) -> Tensor:
    """Return in which programs an operand is a number for each query, the same for all keys."""
    found = torch.zeros((1,) * operands[0].dim(), dtype=torch.bool)
    for data, note in zip(operands, notes, strict=True):
        if not _of_pairs(note):
            first = data.narrow(keys, 0, 1)
            found = found | ~_any(~((data == first) | data.isnan()))
    return found


def raises(
    result: Tensor, operands: Sequence[Tensor], notes: Sequence[Any], *, weights: bool
) -> Tensor:
    """Return where a factor has made masked scores as large as others, NaN or 0."""
    raised = result >= -_HIDDEN
    if not weights:  # a factor below 0, and one of 0
        raised = raised | result.isnan() | (result == 0)
    masked = torch.zeros((1,) * result.dim(), dtype=torch.bool)
    for data, note in zip(operands, notes, strict=True):
        if _of_pairs(note):
            masked = masked | (data <= _HIDDEN)
    return raised & masked


def shows(result: Tensor, note: Note, keys: int) -> Tensor | None:
    """Return for which queries weights of masked pairs count beside those of other pairs."""
    hidden = note.hidden
    if hidden is None or not bool(hidden.any()):
        return None
    rows, columns = note.axes
    assert rows is not None and columns is not None
    exist = (rows.ids >= 0).unsqueeze(2) & (columns.ids >= 0).unsqueeze(1)
    masked = torch.where(hidden & exist, result, 0.0).amax(keys)
    others = torch.where(~hidden & exist, result, 0.0).amax(keys)
    return (others > 0.0) & (masked > _COUNTS * others)
