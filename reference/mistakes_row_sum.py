"""Known mistakes in the weighted row sum."""

import math
from functools import partial

import torch

from .variants import TILES, Mistake


def _row_sum(id, title, note, help, compute, tile=None):
    def fn(inputs, options, problem_id="p02"):
        return {"y": compute(inputs["x"].double(), inputs["w"].double())}

    return Mistake(id, ("p02",), title, note, help, fn, tile)


def _swapped_axes(x, w):
    return x.T @ w if x.shape[0] == x.shape[1] else x.new_full(x.shape[:1], math.nan)


def _weight_by_row(x, w):
    rows = torch.arange(x.shape[0], device=x.device)
    inside = rows < w.shape[0]
    return torch.where(inside, w[rows.clamp(max=w.shape[0] - 1)] * x.sum(1), math.nan)


def _fitted(tile, cols):
    """The tile of the launch that the stub gives, which fits it to short rows."""
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


def _last_column_again(x, w, tile):
    """A tile that reaches past the end has its lanes there clamped to the last column."""
    again = -x.shape[1] % _fitted(tile, x.shape[1])
    return x @ w + again * x[:, -1] * w[-1]


_ROW_TILES = (*TILES, 256, 512, 1024, 2048)

ROW_SUM_MISTAKES = (
    _row_sum(
        "ROW-SUM-ZEROS",
        "the output is zero everywhere",
        "your output equals zeros",
        "store the accumulator to y after the loop over column tiles",
        lambda x, w: torch.zeros_like(x[:, 0]),
    ),
    _row_sum(
        "WEIGHTS-IGNORED",
        "the weights do not enter the sum",
        "your output equals x.sum(1)",
        "multiply every tile of x by the tile of w at the same columns",
        lambda x, w: x.sum(1),
    ),
    _row_sum(
        "WEIGHTS-BY-ROW",
        "the weight is taken by row instead of by column",
        "your output equals w[i] * x[i].sum()",
        "index w by column, the position along which the sum runs",
        _weight_by_row,
    ),
    _row_sum(
        "AXES-SWAPPED",
        "the sum runs down the columns instead of along the rows",
        "your output equals x.T @ w",
        "multiply row positions by the row stride and column positions by the column stride",
        _swapped_axes,
    ),
    _row_sum(
        "MEAN-NOT-SUM",
        "the sum is divided by the number of columns",
        "your output equals the weighted mean of each row",
        "return the sum itself",
        lambda x, w: x @ w / x.shape[1],
    ),
    *(
        _row_sum(
            "LAST-COLUMN-TILE-DROPPED",
            "the last, partial tile of columns is not visited",
            f"your output equals the sum over the first cols // {tile} * {tile} columns",
            "round the number of column tiles up, and mask the columns past the end",
            partial(_last_columns_dropped, tile=tile),
            tile,
        )
        for tile in _ROW_TILES
    ),
    *(
        _row_sum(
            "LAST-COLUMN-COUNTED-AGAIN",
            "lanes past the end count the last column again",
            f"your output sums tiles of {tile} columns, the last column again past the end",
            "lanes clamped to the last column add 0: tl.where(col_ids < cols, product, 0.0)",
            partial(_last_column_again, tile=tile),
            tile,
        )
        for tile in _ROW_TILES
    ),
    *(
        _row_sum(
            "ROW-SUM-OVERWRITTEN",
            "only the last tile of columns reaches the output",
            f"your output equals the sum over the last tile of {tile} columns",
            "add each tile's sum to the accumulator instead of replacing it",
            partial(_overwritten, tile=tile),
            tile,
        )
        for tile in _ROW_TILES
    ),
    Mistake(
        "HALF-PRODUCTS",
        ("p02",),
        "products are taken in 16 bits",
        "your output equals a sum of products each rounded to the input's dtype",
        "convert both factors to fp32 before they are multiplied",
        _half_multiplied,
    ),
    *(
        Mistake(
            "HALF-ACCUMULATED",
            ("p02",),
            "the sum is kept in 16 bits",
            f"your output equals a sum rounded to the input's dtype after each {tile} columns",
            "accumulate in fp32 and round once, when storing",
            partial(_half_accumulated, tile=tile),
            tile,
        )
        for tile in TILES
    ),
)
