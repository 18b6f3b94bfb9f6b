"""Fits other scores than softmax_scale times q k^T to wrong rows.

Scores, or some tiles of them, may have another factor, or be sums over other columns of head_dim.
"""

from __future__ import annotations

import math

import torch

from grader.causes.outputs import LOG2E, TILES, names_of
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.causes.rules.wrong_rows import Rows
from grader.spec.cases import Case

_SAME = 1e-2  # relative, of two scales
_NAMES = 4  # of one number, at most: more do not help
_OCTAVES = torch.arange(-10.0, 10.25, 0.25, dtype=torch.float64)
_WIDTHS = (64, 32, 16)


def other_scale(rows: Rows) -> Sighting | None:
    """Find another factor of the scores, over twenty octaves."""

    def made(scale: torch.Tensor) -> torch.Tensor:
        return rows.attention(scale[:, None, None] * rows.scores)

    sizes = (abs(rows.scale) or rows.case.head_dim**-0.5) * torch.exp2(_OCTAVES)
    tried = torch.cat([sizes, -sizes])
    apart = (made(tried) - rows.got).norm(dim=(1, 2))
    scale = float(tried[apart.argmin()])
    for _ in range(6):  # Gauss-Newton in the logarithm of the scale
        step = 1e-5
        here, there = made(torch.tensor([scale, scale * (1.0 + step)], dtype=torch.float64))
        slope = (there - here) / step
        size = float((slope * slope).sum())
        if not size > 0.0:
            return None
        move = float((slope * (rows.got - here)).sum()) / size
        scale *= math.exp(max(-0.2, min(0.2, move)))
    if abs(scale - rows.scale) < _SAME * abs(rows.scale):
        return None
    if not rows.explained(made(torch.tensor([scale], dtype=torch.float64))[0]):
        return None
    return by_numbers(
        "OTHER-SCALE", scale=scale, named=_name(rows.case, rows.scale, scale), due=rows.scale
    )


def _name(case: Case, due: float, scale: float) -> str:
    """Name what has the value of a scale in this case."""
    lengths = {"head_dim": case.head_dim, "seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k}
    lengths |= {name: case.kwargs[name] for name in ("tile_q", "tile_k") if name in case.kwargs}
    named = {"softmax_scale * log2(e)": due * LOG2E, "softmax_scale * ln(2)": due / LOG2E}
    named |= {"-softmax_scale": -due, "softmax_scale / 2": due / 2, "softmax_scale * 2": due * 2}
    named |= {"softmax_scale**2": due * due}
    named |= {"1 / softmax_scale": 1.0 / due} if due else {}
    for name, value in lengths.items():
        named |= {f"1/{name}": 1.0 / value, f"1/sqrt({name})": value**-0.5}
        named |= {f"sqrt({name})": value**0.5}
    named["head_dim**-0.25"] = case.head_dim**-0.25
    alike = names_of(scale, named)
    return f" ({' or '.join(alike)})" if 0 < len(alike) <= _NAMES else ""


def other_columns(rows: Rows) -> Sighting | None:
    """Find scores of the first or last columns of head_dim alone, or of the first ones repeated."""
    every = torch.arange(rows.case.head_dim)
    for width in (w for w in _WIDTHS if w < rows.case.head_dim):
        ends = {"": every[:width], "last": every[-width:], "repeated": every % width}
        for variant, taken in ends.items():
            keys = rows.keys if variant == "repeated" else rows.keys[:, taken]
            scores = rows.scale * rows.rows_of_q[:, taken] @ keys.T
            if rows.explained(rows.attention(scores)):
                columns = f"{int(taken.min())}-{int(taken.max())}"
                return by_numbers(
                    "OTHER-COLUMNS",
                    variant=variant if variant == "repeated" else "",
                    columns=columns,
                    of=rows.case.head_dim,
                )
    return None


def scale_of_some_tiles(rows: Rows) -> Sighting | None:
    """Find another factor in the tiles whose pairs are all visible, or in the others alone."""
    if not rows.scale:
        return None
    factors = {
        "1": 1.0,
        "softmax_scale**2": rows.scale**2,
        "softmax_scale * log2(e)": rows.scale * LOG2E,
        "softmax_scale * ln(2)": rows.scale / LOG2E,
        "log2(e)": LOG2E,
        "-softmax_scale": -rows.scale,
    }
    tried = set()
    for tile_q in TILES:
        for tile_k in TILES:
            full = _full(rows, tile_q, tile_k)[rows.queries]
            key = full.numpy().tobytes()
            parts = full & rows.visible, ~full & rows.visible
            if key in tried or not all(bool(part.any()) for part in parts):
                continue
            tried.add(key)
            for name, factor in factors.items():
                if abs(factor - rows.scale) < 1e-2 * abs(rows.scale):
                    continue
                for of_full in (True, False):
                    scale = torch.where(full == of_full, factor, rows.scale)
                    if rows.explained(rows.attention(scale * rows.scores)):
                        return by_numbers(
                            "SCALE-OF-SOME-TILES",
                            variant="full_tiles" if of_full else "masked_tiles",
                            factor=factor,
                            named=f" ({name})" if name != "1" else "",
                            due=rows.scale,
                        )
    return None


def _full(rows: Rows, tile_q: int, tile_k: int) -> torch.Tensor:
    """Return for each pair whether every pair of its tile is visible, (queries, keys)."""
    queries, keys = rows.sees.shape
    padded = torch.nn.functional.pad(rows.sees, (0, -keys % tile_k))
    padded = torch.nn.functional.pad(padded, (0, 0, 0, -queries % tile_q), value=True)
    whole = padded.unflatten(1, (-1, tile_k)).unflatten(0, (-1, tile_q)).all(3).all(1)
    spread = whole.repeat_interleave(tile_q, 0).repeat_interleave(tile_k, 1)
    return spread[:queries, :keys]
