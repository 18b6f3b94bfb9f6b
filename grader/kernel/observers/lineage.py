"""What a tile remembers: which rows of which input it holds, and which of its pairs are masked.

A handle of Triton's interpreter that was loaded from an input gets `tags`, one per axis: the `Rows`
that lie along it, or None. What is computed from it has them too. A tile with queries on one axis
and keys on the other is one of pairs, and has besides: `hidden`, the pairs that are masked;
`mask`, as in `trace.Trace`; `mask_line`, where that was made; `weights`, whether it is behind an
exponential.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from grader.kernel.observers.operands import QUERY_SIDE, Operand
from grader.kernel.observers.trace import DROWNED, STATISTIC

# Scores that far down are masked, by -inf or by a finite number; no product of q and k is.
_HIDDEN = -1e4
MADE = (STATISTIC, "out")  # by the call itself
_COUNTS = 1e-3  # of the largest weight beside it


@dataclasses.dataclass(frozen=True)
class Rows:
    """What one axis of a tile holds: rows of an operand by number, -1 where a lane is masked.

    `column` is the first column of these rows that the tile has.
    """

    operand: str
    ids: np.ndarray
    column: int = 0

    @property
    def of_queries(self) -> bool:
        """Whether these are rows of queries, else of keys."""
        return self.operand in QUERY_SIDE

    def repeated(self, number: int) -> Rows:
        """The rows of an axis of this length: a single one may be spread along it."""
        return Rows(self.operand, np.broadcast_to(self.ids, (number,)), self.column)


def _reshaped(tags: tuple, before: tuple, after: Any, *_: Any) -> tuple:
    """Tags behind a reshape that adds or drops axes of length 1; none behind another."""
    after = tuple(after)
    if [n for n in before if n != 1] != [n for n in after if n != 1]:
        return (None,) * len(after)
    long = iter([tag for tag, n in zip(tags, before, strict=True) if n != 1])
    return tuple(next(long) if n != 1 else None for n in after)


# Operations that move axes: what they do to the tags of a tile of a shape, and to an array.
MOVES = {
    "create_expand_dims": (
        lambda tags, shape, axis: (*tags[:axis], None, *tags[axis:]),
        np.expand_dims,
    ),
    "create_broadcast": (
        lambda tags, _, to: tuple(t and t.repeated(n) for t, n in zip(tags, to, strict=True)),
        np.broadcast_to,
    ),
    "create_trans": (lambda tags, _, order: tuple(tags[axis] for axis in order), np.transpose),
    "create_reshape": (_reshaped, lambda array, shape, *_: array.reshape(shape)),
}


def is_of_pairs(handle: Any) -> bool:
    """Whether a tile has queries on one axis and keys on the other."""
    tags = getattr(handle, "tags", None)
    return tags is not None and len(tags) == 2 and None not in tags


def rounded_at(handles: list[Any]) -> int:
    """Return the line that rounded what a result is made of to 16 bits, 0 if none did."""
    return max((getattr(handle, "rounded_at", 0) for handle in handles), default=0)


def merged(handles: list[Any], result: Any) -> tuple | None:
    """Tags of what is computed element by element.

    The first operand that knows an axis decides, an input before what the call made.
    """
    shape = getattr(getattr(result, "data", None), "shape", ())
    tags: list[Rows | None] = [None] * len(shape)
    known = False
    for handle in handles:
        own = getattr(handle, "tags", None)
        if own is None or handle.data.shape != shape:
            continue
        for axis, rows in enumerate(own):
            held = tags[axis]
            if rows is not None and (held is None or held.operand in MADE):
                tags[axis], known = rows, True
    return tuple(tags) if known else None


def carry(source: Any, result: Any, move_tags: Any, move: Any) -> None:
    """Let `result`, which is `source` with its axes moved, remember what `source` does."""
    source.unused = False  # see `grader.kernel.observers.sums`
    result.product = getattr(source, "product", None)
    result.rounded_at = getattr(source, "rounded_at", 0)
    tags = getattr(source, "tags", None)
    if tags is None:
        return
    result.tags = move_tags(tags)
    result.weights = getattr(source, "weights", False)
    result.mask_line = getattr(source, "mask_line", 0)
    for name in ("hidden", "mask"):
        array = getattr(source, name, None)
        if array is not None:
            setattr(result, name, move(array))


def follow_masks(result: Any, handles: list[Any], operation: Any) -> None:
    """Note which pairs are hidden: by a number far down, or by a zero in place of a weight."""
    result.weights = operation in (np.exp, np.exp2)
    result.weights |= any(getattr(handle, "weights", False) for handle in handles)
    # Behind the exponential a number far down is no score any more: dS may be one.
    far = hidden = (result.data <= _HIDDEN) & ~np.bool_(result.weights)
    result.mask = None
    result.mask_line = max((getattr(handle, "mask_line", 0) for handle in handles), default=0)
    for handle in handles:
        hidden = joined(hidden, getattr(handle, "hidden", None), np.logical_or)
        result.mask = joined(getattr(handle, "mask", None), result.mask, np.maximum)
    if operation is np.where:
        condition, *sides = handles
        for side, there in zip(sides, (condition.data, ~condition.data), strict=True):
            if not is_of_pairs(side):
                if result.weights and not side.data.any():
                    hidden = hidden | there
                mask = np.where(there & ~hidden, np.uint8(2), np.uint8(1))
                result.mask = joined(mask, result.mask, np.maximum)
    elif operation is np.multiply and result.weights:
        for handle in handles:
            if not is_of_pairs(handle) or handle.data.dtype.kind != "f":
                hidden = hidden | (handle.data == 0)
    elif operation is np.multiply:
        for handle in handles:
            zero = handle.data == 0
            if not is_of_pairs(handle) and zero.any() and not zero.all():  # a mask as a factor
                mask = np.where(zero & ~hidden, np.uint8(2), np.uint8(1))
                result.mask = joined(mask, result.mask, np.maximum)
    if operation in (np.subtract, np.add) and far.any():
        drowned = far & _of_rows(handles, result)
        for handle in handles:
            drowned &= ~np.bool_(False if (h := getattr(handle, "hidden", None)) is None else h)
        result.mask = joined(drowned * np.uint8(DROWNED), result.mask, np.maximum)
    result.hidden = hidden


def raises_masked(result: Any, handles: list[Any]) -> bool:
    """Whether a factor has made scores that a number far down masked as large, NaN or 0."""
    raised = result.data >= -_HIDDEN
    if not result.weights:  # a factor below 0, and one of 0
        raised |= np.isnan(result.data) | (result.data == 0)
    if not raised.any():
        return False
    same = (h for h in handles if is_of_pairs(h) and h.data.shape == raised.shape)
    return any(bool((raised & (handle.data <= _HIDDEN)).any()) for handle in same)


def _of_rows(handles: list[Any], result: Any) -> bool:
    """Whether one of two operands is a number for each query, the same for all keys."""
    keys = 0 if result.tags[1].of_queries else 1
    for handle in handles:
        data = handle.data
        if not is_of_pairs(handle) and data.shape == result.data.shape and data.size > 1:
            first = data[:1] if keys == 0 else data[:, :1]
            if bool(((data == first) | np.isnan(data)).all()):
                return True
    return False


def shows_masked(weights: Any) -> bool:
    """Whether weights of masked pairs count beside those of the same query's other pairs.

    Where a query has no other pair in the tile, a later one may still make them vanish.
    """
    hidden = weights.hidden
    if not hidden.any():
        return False
    keys = 0 if weights.tags[1].of_queries else 1
    exist = np.logical_and.outer(*(rows.ids >= 0 for rows in weights.tags))
    masked = np.where(hidden & exist, weights.data, 0.0).max(axis=keys)
    others = np.where(~hidden & exist, weights.data, 0.0).max(axis=keys)
    return bool(((others > 0.0) & (masked > _COUNTS * others)).any())


def joined(first: Any, second: Any, join: Any) -> Any:
    """Join two arrays of one shape, either of which may be None."""
    if first is None or second is None:
        return second if first is None else first
    return join(first, second)


def keeping_transposes(patch: Any, note: Callable[..., None]) -> Any:
    """Let `tile.T`, which the interpreter computes without its builder, remember too.

    `note` calls what it is given with the arguments behind it.
    """

    def patched(tensor: Any, *args: Any) -> Any:
        result = patch(tensor, *args)
        plain = tensor.__dict__["T"]

        def transpose(this: Any) -> Any:
            turned = plain.fget(this)
            note(carry, this.handle, turned.handle, lambda tags: tags[::-1], np.transpose)
            return turned

        tensor.T = property(transpose)
        return result

    return patched


def row_axis(
    ids: np.ndarray, active: np.ndarray, columns: np.ndarray
) -> tuple[int | None, np.ndarray]:
    """Return the axis along which a tile's rows lie, and the row of each position on it.

    All lanes of a last tile may lie in one row, which may be that of any axis. Then the column that
    each lane is in tells: along the axis of the rows it stays the same.
    """
    axes = range(ids.ndim) if ids.ndim > 1 and ids.size > 1 else ()
    for axis in sorted(axes, key=lambda axis: _varies(columns, active, axis)):
        others = tuple(other for other in range(ids.ndim) if other != axis)
        rows = ids.max(axis=others)
        along = np.expand_dims(rows, others)
        if bool(((ids == along) | ~active).all()):
            if axis < ids.ndim - 1 and ids.size == ids.shape[axis]:
                continue
            return axis, rows
    return None, ids


def _varies(columns: np.ndarray, active: np.ndarray, axis: int) -> bool:
    """Whether active lanes along an axis lie in several columns."""
    least = np.where(active, columns, columns.max(initial=0)).min(axis)
    most = np.where(active, columns, 0).max(axis)
    return bool((most > least).any())


def padding(addresses: np.ndarray, operand: Operand | None) -> tuple | None:
    """Tags of a tile with no active lane: its rows are the axis with the larger stride."""
    if operand is None or addresses.ndim != 2 or min(addresses.shape) < 2:
        return None
    lanes = addresses.astype(np.int64)
    axis = int(abs(lanes[1, 0] - lanes[0, 0]) < abs(lanes[0, 1] - lanes[0, 0]))
    empty = Rows(operand.name, np.full(addresses.shape[axis], -1))
    return (empty, None) if axis == 0 else (None, empty)
