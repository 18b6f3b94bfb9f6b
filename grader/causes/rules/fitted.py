"""What a wrong output is made of: a few numbers that are fitted to it.

Each fit has far more equations than unknowns: one scale for all rows, or one weight for each group
of keys in a row of head_dim numbers. What it says is then so, whatever the answer looks like. It is
asked when nothing else is known, about a few cases.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch

from grader.causes.rules.fitted_columns import other_columns
from grader.causes.rules.fitted_tiles import scale_of_some_tiles
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.causes.rules.wrong_rows import Rows, counts_of, wrong_rows
from grader.checks.correctness import Expected, ranges
from grader.spec.cases import Case
from grader.spec.inputs import Inputs

_MOST_KEYS = 1024
_SAME = 1e-2  # relative, of two weights
_NAMES = 4  # of one number, at most: more say nothing
_EQUATIONS = 2  # and more for each unknown
_OCTAVES = torch.arange(-10.0, 10.25, 0.25, dtype=torch.float64)


def fittable(case: Case, got: dict[str, torch.Tensor]) -> bool:
    """Whether there are enough numbers, and digits of them."""
    if case.dtype != "fp32" or case.rows is not None or not 2 <= case.seqlen_k <= _MOST_KEYS:
        return False
    return "out" in got and bool(got["out"].isfinite().all())


def fitted(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    got: dict[str, torch.Tensor],
    expected: Expected,
) -> Sighting | None:
    """Return what the rows of a wrong `out` are made of, if few numbers say it."""
    rows = wrong_rows(problem_id, case, inputs, got, expected)
    if rows is None:
        return None
    asked: tuple[Callable[[Case, Rows], Sighting | None], ...] = (
        _other_values,
        _other_scale,
        other_columns,
        _shares_of_tiles,
        _shares_of_sinks,
        _other_keys,
        _mixed_exponentials,
        scale_of_some_tiles,
    )
    for ask in asked:
        found = ask(case, rows)
        if found is not None:
            return found
    return None


def _other_values(case: Case, rows: Rows) -> Sighting | None:
    """The weights may be right, and multiply the tile of k."""
    weights = rows.weights.masked_fill(~rows.visible, 0.0)
    if rows.keys.shape != rows.values.shape or not rows.explained(weights @ rows.keys):
        return None
    return by_numbers("WRONG-PRODUCT", variant="of_out", name="out", factor="k", due="v")


# -- the scale ------------------------------------------------------------------------------------


def _other_scale(case: Case, rows: Rows) -> Sighting | None:
    """Scores may have another factor than they should: look for it over twenty octaves."""

    def made(scale: torch.Tensor) -> torch.Tensor:
        scores = scale[:, None, None] * rows.scores
        return scores.masked_fill(~rows.visible, -math.inf).softmax(-1) @ rows.values

    sizes = (abs(rows.scale) or case.head_dim**-0.5) * torch.exp2(_OCTAVES)
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
        "OTHER-SCALE", scale=scale, named=_name(case, rows.scale, scale), due=rows.scale
    )


def _name(case: Case, due: float, scale: float) -> str:
    """Return what has the value of a scale in this case."""
    log2e = 1.0 / math.log(2.0)
    lengths = {"head_dim": case.head_dim, "seqlen_q": case.seqlen_q, "seqlen_k": case.seqlen_k}
    lengths |= {name: case.kwargs[name] for name in ("tile_q", "tile_k") if name in case.kwargs}
    named = {"softmax_scale * log2(e)": due * log2e, "softmax_scale * ln(2)": due / log2e}
    named |= {"-softmax_scale": -due, "softmax_scale / 2": due / 2, "softmax_scale * 2": due * 2}
    named |= {"softmax_scale**2": due * due}
    named |= {"1 / softmax_scale": 1.0 / due} if due else {}
    for name, value in lengths.items():
        named |= {f"1/{name}": 1.0 / value, f"1/sqrt({name})": value**-0.5}
        named |= {f"sqrt({name})": value**0.5}
    named["head_dim**-0.25"] = case.head_dim**-0.25
    alike = [w for w, value in named.items() if abs(scale - value) <= _SAME / 10 * abs(value)]
    return f" ({' or '.join(alike)})" if 0 < len(alike) <= _NAMES else ""


# -- the keys -------------------------------------------------------------------------------------


def _tiles(case: Case, tile: int) -> torch.Tensor:
    keys = torch.arange(case.seqlen_k)
    return torch.arange(-(-case.seqlen_k // tile))[:, None] == keys // tile


def _shares_of_tiles(case: Case, rows: Rows) -> Sighting | None:
    """Weights are right inside each tile of keys, and not from tile to tile."""
    for tile in rows.tiles:
        tiles = _tiles(case, tile)
        if len(tiles) < 2:
            continue
        counts = counts_of(rows, tiles & rows.visible[:, None, :])
        if counts is None:
            continue
        told = _as_keys(rows, counts, tiles & rows.visible.any(0))
        if told is not None or tile == 1:  # the share of one key says nothing of tiles
            return told
        known = ~counts.isnan()
        spread = counts.masked_fill(~known, -math.inf).amax(1) - counts.nan_to_num(1e300).amin(1)
        row = int((known.sum(1) + spread / (1.0 + spread.abs())).argmax())
        numbers = counts[row]
        if float(spread[row]) <= 5 * _SAME * float(numbers.nan_to_num(0.0).abs().max()):
            return None  # a factor of the row
        of_tile = [t for t in range(len(tiles)) if known[row, t]]
        shown = ", ".join(f"{_span(tiles[t])} {float(numbers[t]):.3g}" for t in of_tile[:4])
        return by_numbers(
            "TILE-SHARES",
            tile=tile,
            row=rows.queries[row],
            shown=shown + (", ..." if len(of_tile) > 4 else ""),
        )
    return None


def _shares_of_sinks(case: Case, rows: Rows) -> Sighting | None:
    """Weights are right inside the window, and among the sinks before it, not from one to other."""
    window, sinks = case.kwargs.get("window_size"), case.kwargs.get("num_sink_tokens")
    if not window or not sinks:
        return None
    keys = torch.arange(case.seqlen_k)[None, :]
    far = rows.visible & (keys <= torch.tensor(rows.queries)[:, None] - window)
    counts = counts_of(rows, torch.stack([far, rows.visible & ~far], 1))
    if counts is None or bool((counts[:, 1].isnan() | far.any(1) & counts[:, 0].isnan()).all()):
        return None
    apart = (counts[:, 0] - counts[:, 1]).abs().nan_to_num(0.0)
    row = int(apart.argmax())
    if float(apart[row]) < 5 * _SAME * float(counts[row].abs().max()):
        return None
    of_sinks, of_window = (float(count) for count in counts[row])
    return by_numbers("SINK-SHARES", row=rows.queries[row], of_sinks=of_sinks, of_window=of_window)


def _mixed_exponentials(case: Case, rows: Rows) -> Sighting | None:
    """Weights of a tile are exponentials to another base than those by which tiles are joined."""
    for name, factor in (("log2(e)", 1.0 / math.log(2.0)), ("ln(2)", math.log(2.0))):
        scale = factor * rows.scale
        scores = (scale * rows.scores).masked_fill(~rows.visible, -math.inf)
        lse = torch.logsumexp(scores, -1, keepdim=True)
        found = _shares_of_tiles(case, dataclasses.replace(rows, scale=scale, lse=lse))
        if found is not None and found.id == "TILE-SHARES":
            return by_numbers(
                "EXPONENTIALS-MIXED",
                name=name,
                row=found.figures["row"],
                shown=found.figures["shown"],
            )
    return None


def _other_keys(case: Case, rows: Rows) -> Sighting | None:
    """Single keys at the ends of tiles, or all where head_dim numbers can tell them apart."""
    keys = torch.arange(case.seqlen_k)
    tried = [torch.eye(case.seqlen_k, dtype=torch.bool)]
    for tile in rows.tiles:
        place, tiles = keys % tile, _tiles(case, tile)
        last = (place == tile - 1) | (keys == case.seqlen_k - 1)
        middle = ~last & (place > 0)
        parts = [place == 0, last & (place > 0), middle & (place < tile // 2)]
        parts.append(middle & (place >= tile // 2))
        groups = torch.cat([tiles & part for part in parts])
        tried.append(groups[groups.any(-1)])
    for groups in tried:
        counts = None
        if len(groups) * _EQUATIONS <= rows.values.shape[1]:
            counts = counts_of(rows, groups & rows.visible[:, None, :])
        told = None if counts is None else _as_keys(rows, counts, groups & rows.visible.any(0))
        if told is not None:
            return told
    return None


def _as_keys(rows: Rows, counts: torch.Tensor, groups: torch.Tensor) -> Sighting | None:
    """Say that a row is attention over other keys: each group counts as often in all rows."""
    weights = rows.weights * rows.visible
    shares = weights @ groups.double().T
    times = []
    for row, share in zip(counts, shares, strict=True):
        there = row[~row.isnan() & (row.abs() > _SAME)]
        if not len(there):
            return None
        times.append(row / there.abs().min())
        # Attention over these keys: the weights add up to one.
        if abs(float((row * share).nansum()) - 1.0) > 5 * _SAME:
            return None
    often = torch.stack(times)
    if bool(((often - often.round()).abs() > 5 * _SAME).any()) or bool((often < -0.5).any()):
        return None
    often = often.round()
    known = ~often.isnan()
    once = torch.where(known, often, -1.0).amax(0)
    of_row = ""
    if bool((known & (often != once)).any()):  # other keys in other rows
        row = int((often == 0.0).sum(1).argmax())
        once, of_row = often[row], f" in row {rows.queries[row]}"
    if bool((once > 2.0).any()):
        return None
    missing, twice = (groups[once == number].any(0).numpy() for number in (0.0, 2.0))
    if missing.all() or not (missing | twice).any():
        return None
    words = (("left out", missing), ("counted twice", twice))
    what = [f"{_keys(keys)} {word}" for word, keys in words if keys.any()]
    return by_numbers("OTHER-KEYS", keys=" and ".join(what), of_row=of_row)


def _keys(keys: np.ndarray) -> str:
    return ("key " if keys.sum() == 1 else "keys ") + ranges(keys)


def _span(tile: torch.Tensor) -> str:
    return _keys(tile.numpy())
