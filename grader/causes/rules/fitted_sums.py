"""Fits other rows, one more number, or other counts of columns to wrong row sums.

A fit has one unknown for each tile of columns, and at least twice as many rows. Fits are tried on a
few cases, when no other rule finds the cause.
"""

from __future__ import annotations

import torch

from grader.causes.outputs import Outputs, factors_of
from grader.causes.rules.sighting import Sighting, by_numbers, line_of
from grader.checks.correctness import Expected, element_errors, named_ranges
from grader.kernel.observers.trace import Trace

_UNEXPLAINED = 1e-3  # of the error of the rows, at most
_FEWEST = 4  # rows
_EQUATIONS = 2  # and more for each unknown
_TILES = (4096, 2048, 1024, 512, 256, 128, 64, 32, 16)
_SAME = 1e-2  # of two counts
_MOST_COUNT = 64.0
_SPANS = 4  # different counts that a message names, at most


def fitted(wrong: Outputs) -> Sighting | None:
    """Return what a wrong y is made of, if a few fitted numbers explain it."""
    x, w = (wrong.inputs.all[name].double() for name in ("x", "w"))
    y, truth = wrong.got["y"].double(), wrong.expected.truth["y"]
    off = y - truth
    if not bool(off.any()):
        return None
    return (
        _alike(y, truth)
        or _rows_of_others(wrong.got["y"], wrong.expected)
        or _left_over(wrong.got["y"], wrong.expected)
        or _one_number_more(x, off)
        or _columns(x * w, y, off)
    )


def _alike(y: torch.Tensor, truth: torch.Tensor) -> Sighting | None:
    """Find one value in all rows of y, or in all rows of each tile."""
    ends = torch.nonzero(y[1:] != y[:-1]).flatten() + 1
    if _FEWEST * (len(ends) + 1) > len(y) or bool((truth[1:] == truth[:-1]).any()):
        return None
    if not bool(y.any()):  # `_columns` says that no column counts
        return None
    rows = int(ends[0]) if len(ends) else len(y)
    value, sums = float(y[0]), truth[:rows].sum()
    of_all = ""
    if abs(value - sums) <= 1e-4 * truth[:rows].abs().sum():
        of_all = ", the sum over all of them"
    return by_numbers(
        "ROWS-ALIKE",
        variant="of_a_tile" if len(ends) else "",
        of_all=of_all,
        last=rows - 1,
        value=value,
        number=len(ends) + 1,
    )


def _rows_of_others(y: torch.Tensor, expected: Expected) -> Sighting | None:
    """Find rows of y that are the right sums of other rows."""
    truth = expected.truth["y"]
    nearest, own = _nearest(y.double(), truth), torch.arange(len(y))
    if bool((nearest == own).all()) or len(nearest.unique()) < min(len(y), _FEWEST):
        return None
    if bool((element_errors("y", y, expected, around=truth[nearest]) > 1.0).any()):
        return None
    row = int((nearest != own).int().argmax())
    return by_numbers(
        "ROWS-ELSEWHERE",
        row=row,
        other=int(nearest[row]),
        number=int((nearest != own).sum()),
        rows=len(y),
    )


def _left_over(y: torch.Tensor, expected: Expected) -> Sighting | None:
    """Find rows of y to which that of an earlier tile of the same program was added."""
    wrong, truth = element_errors("y", y, expected) > 1.0, expected.truth["y"]
    first = int(wrong.int().argmax())
    if first == 0 or not bool(wrong[first:].all()):
        return None
    around = truth + torch.nn.functional.pad(y.double()[:-first], (first, 0))
    if bool((element_errors("y", y, expected, around=around) > 1.0).any()):
        return None
    return by_numbers("ROWS-ELSEWHERE", variant="left_over", row=first, other=0, number=first)


def _nearest(values: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Return the index of the number of `truth` that is nearest to each of `values`."""
    ascending, order = truth.sort()
    above = torch.searchsorted(ascending, values).clamp(max=len(truth) - 1)
    below = (above - 1).clamp(min=0)
    is_below = (values - ascending[below]).abs() <= (values - ascending[above]).abs()
    return order[torch.where(is_below, below, above)]


def _one_number_more(x: torch.Tensor, off: torch.Tensor) -> Sighting | None:
    """Find one number by which every row of y is off."""
    more = float(off.mean())
    if float((off - more).norm()) > _UNEXPLAINED * float(off.norm()):
        return None
    lanes = ""
    if abs(more - round(more)) <= 1e-4 * abs(more):
        count = round(more)
        tiles = [t for t in _TILES if count == -x.shape[1] % t]
        lanes = (
            f", as many as a tile of {tiles[-1]} has elements past the last column" if tiles else ""
        )
    return by_numbers(
        "ROWS-OFFSET",
        size=abs(more),
        large="large" if more > 0 else "small",
        lanes=lanes,
        more=more,
    )


def _columns(products: torch.Tensor, y: torch.Tensor, off: torch.Tensor) -> Sighting | None:
    """Find tiles of columns that count more than once, or not at all."""
    rows, cols = products.shape
    for tile in _TILES:
        tiles = -(-cols // tile)
        if tile // 2 >= cols or tiles * _EQUATIONS > rows:
            continue
        padded = torch.nn.functional.pad(products, (0, tiles * tile - cols))
        parts = padded.unflatten(1, (tiles, tile)).sum(2)
        counts = factors_of(parts.mT, y, _UNEXPLAINED * float(off.norm()))
        if counts is None or float(counts.abs().max()) > _MOST_COUNT:
            continue
        spans = _spans(counts, tile, cols)
        if not spans:
            return None
        return by_numbers(
            "COLUMNS-COUNTED-OTHERWISE", columns=spans[0], counts=", ".join(spans[:_SPANS])
        )
    return None


def as_read(wrong: Outputs, trace: Trace) -> Sighting | None:
    """Find columns that count in y as often as they were read, which is not once."""
    if wrong.case.rows is None or "y" not in wrong.got:
        return None
    reads = torch.from_numpy(trace.arrays["visits"].sum(axis=0)).double()
    x, w = (wrong.inputs.all[name].double().cpu() for name in ("x", "w"))
    if bool((reads != reads[0]).any()) or bool((reads == 1.0).all()):
        return None
    made = (x * w) @ reads[0]
    if bool((element_errors("y", wrong.got["y"], wrong.expected, around=made) > 1.0).any()):
        return None
    spans = _spans(reads[0], 1, x.shape[1])
    return Sighting(
        "COLUMNS-COUNTED-OTHERWISE",
        line_of(trace, "x"),
        columns=spans[0],
        counts=", ".join(spans[:_SPANS]),
    )


def _spans(counts: torch.Tensor, tile: int, cols: int) -> list[str]:
    """Name the columns that do not count once, those with the same count together."""
    spans = []
    left = (counts - 1.0).abs() > _SAME
    while left.any():
        count = float(counts[int(left.int().argmax())])
        alike = left & ((counts - count).abs() <= _SAME * max(1.0, abs(count)))
        columns = alike.repeat_interleave(tile)[:cols]
        one = int(columns.sum()) == 1
        spans.append(f"{named_ranges('column', columns)} {_times(count, one)}")
        left &= ~alike
    return spans


def _times(count: float, one: bool) -> str:
    verb = "counts" if one else "count"
    if abs(count) <= _SAME:
        return f"{verb} not at all"
    return f"{verb} twice" if abs(count - 2.0) <= _SAME else f"{verb} {count:.3g} times"
