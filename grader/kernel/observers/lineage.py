"""What a tile remembers: which rows of which input it holds, and which of its pairs are masked.

The handle of a tile that was loaded from an input has `tags`, one per axis: the `Rows`
that lie along it, or None. What is computed from it has them too. A tile with queries on one axis
and keys on the other is one of pairs, and has besides: `hidden`, the pairs that are masked;
`mask`, as in `trace.Trace`; `mask_line`, where that was made; `weights`, whether it is behind an
exponential.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from grader.kernel.observers.operands import QUERY_SIDE, Operand
from grader.kernel.observers.trace import STATISTIC

MADE = (STATISTIC, "out")  # by the call itself


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


def is_of_pairs(handle: Any) -> bool:
    """Whether a tile has queries on one axis and keys on the other."""
    tags = getattr(handle, "tags", None)
    return tags is not None and len(tags) == 2 and None not in tags


def rounded_at(handles: list[Any]) -> int:
    """Return the line that rounded what a result is made of to 16 bits, 0 if none did."""
    return max((getattr(handle, "rounded_at", 0) for handle in handles), default=0)


def joined(first: Any, second: Any, join: Any) -> Any:
    """Join two arrays of one shape, either of which may be None."""
    if first is None or second is None:
        return second if first is None else first
    return join(first, second)


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
