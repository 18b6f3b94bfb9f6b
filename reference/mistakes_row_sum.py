"""Known mistakes in the weighted row sum."""

import math
from functools import partial

import torch

from .variants import TILES, Mistake


def _row_sum(id, compute, tile=None):
    def fn(inputs, options, problem_id="p02"):
        return {"y": compute(inputs["x"].double(), inputs["w"].double())}

    return Mistake(id, ("p02",), fn, tile)


def _swapped_axes(x, w):
    return x.T @ w if x.shape[0] == x.shape[1] else x.new_full(x.shape[:1], math.nan)


def _weight_by_row(x, w):
    rows = torch.arange(x.shape[0], device=x.device)
    inside = rows < w.shape[0]
    return torch.where(inside, w[rows.clamp(max=w.shape[0] - 1)] * x.sum(1), math.nan)


def _fitted(tile, cols):
    """Return the tile size of the stub's launch, which shrinks it for short rows."""
    return min(tile, 1 << (cols - 1).bit_length())


def _last_columns_dropped(x, w, tile):
    tile = _fitted(tile, x.shape[1])
    columns = x.shape[1] // tile * tile
    return x[:, :columns] @ w[:columns]


def _overwritten(x, w, tile):
    first = (x.shape[1] - 1) // tile * tile
    return x[:, first:] @ w[first:]


def _half_accumulated(inputs, options, problem_id="p02", *, tile):
    x, w = inputs["x"], inputs["w"]
    y = torch.zeros_like(x[:, 0])
    for start in range(0, x.shape[1], tile):
        columns = slice(start, start + tile)
        y = (y.double() + x[:, columns].double() @ w[columns].double()).to(x.dtype)
    return {"y": y.double()}


def _half_multiplied(inputs, options, problem_id="p02"):
    x, w = inputs["x"], inputs["w"]
    return {"y": (x * w).double().sum(1)}


def _last_column_again(x, w, tile, fits):
    """Return the sums of tiles whose lanes past the end are clamped to the last column."""
    again = -x.shape[1] % (_fitted(tile, x.shape[1]) if fits else tile)
    return x @ w + again * x[:, -1] * w[-1]


_ROW_TILES = (*TILES, 256, 512, 1024, 2048)

ROW_SUM_MISTAKES = (
    _row_sum("ROW-SUM-ZEROS", lambda x, w: torch.zeros_like(x[:, 0])),
    _row_sum("WEIGHTS-IGNORED", lambda x, w: x.sum(1)),
    _row_sum("WEIGHTS-BY-ROW", _weight_by_row),
    _row_sum("AXES-SWAPPED", _swapped_axes),
    _row_sum("MEAN-NOT-SUM", lambda x, w: x @ w / x.shape[1]),
    *(
        _row_sum("LAST-COLUMN-TILE-DROPPED", partial(_last_columns_dropped, tile=tile), tile)
        for tile in _ROW_TILES
    ),
    *(
        _row_sum(
            "LAST-COLUMN-COUNTED-AGAIN", partial(_last_column_again, tile=tile, fits=fits), tile
        )
        for tile in _ROW_TILES
        for fits in (True, False)
    ),
    *(
        _row_sum("ROW-SUM-OVERWRITTEN", partial(_overwritten, tile=tile), tile)
        for tile in _ROW_TILES
    ),
    Mistake("HALF-PRODUCTS", ("p02",), _half_multiplied),
    *(
        Mistake("HALF-ACCUMULATED", ("p02",), partial(_half_accumulated, tile=tile), tile)
        for tile in TILES
    ),
)
