"""Fits a few numbers to rows of a wrong `out`.

Each fit has far more equations than unknowns, so that it does not hold by chance: one scale for all
rows, or one weight for each group of keys in a row of head_dim numbers. Fits are tried on a few
cases, when no other rule finds the cause.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from grader.causes.outputs import Outputs, tiles_of
from grader.causes.rules.fitted_scores import other_columns, other_scale, scale_of_some_tiles
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.causes.rules.wrong_rows import Rows, counts_of, wrong_rows
from grader.checks.correctness import named_ranges, ranges_of

_SAME = 1e-2  # relative, of two weights
_EQUATIONS = 2  # and more for each unknown


def fitted(wrong: Outputs) -> Sighting | None:
    """Return what rows of a wrong `out` are made of, if a few fitted numbers explain it."""
    rows = wrong_rows(wrong)
    if rows is None:
        return None
    return (
        _shares_in_columns(rows)
        or _other_values(rows)
        or other_scale(rows)
        or other_columns(rows)
        or _shares_of_tiles(rows)
        or _shares_of_sinks(rows)
        or _other_keys(rows)
        or _mixed_exponentials(rows)
        or scale_of_some_tiles(rows)
    )


def _other_values(rows: Rows) -> Sighting | None:
    """Find right weights that multiply k in place of v."""
    weights = rows.weights.masked_fill(~rows.visible, 0.0)
    if rows.keys.shape != rows.values.shape or not rows.explained(weights @ rows.keys):
        return None
    return by_numbers("WRONG-PRODUCT", variant="of_out", name="out", factor="k", due="v")


def _shares_in_columns(rows: Rows) -> Sighting | None:
    """Find wrong shares of tiles in some columns of out alone."""
    columns = rows.wrong_columns
    if len(columns) == rows.case.head_dim:
        return None
    where = f"columns {ranges_of(columns.tolist())} of "
    found = _shares_of_tiles(rows.of_columns(columns), where)
    return found if found is not None and found.id == "TILE-SHARES" else None


def _shares_of_tiles(rows: Rows, columns: str = "") -> Sighting | None:
    """Find weights that are right inside each tile of keys, but not from tile to tile."""
    for tile in rows.tiles:
        tiles = tiles_of(len(rows.keys), tile)
        if len(tiles) < 2:
            continue
        counts = counts_of(rows, tiles & rows.visible[:, None, :])
        if counts is None:
            continue
        found = _as_keys(rows, counts, tiles & rows.visible.any(0))
        if found is not None or tile == 1:  # the share of one key says nothing of tiles
            return found
        known = ~counts.isnan()
        spread = counts.masked_fill(~known, -math.inf).amax(1) - counts.nan_to_num(1e300).amin(1)
        row = int((known.sum(1) + spread / (1.0 + spread.abs())).argmax())
        numbers = counts[row]
        if float(spread[row]) <= 5 * _SAME * float(numbers.nan_to_num(0.0).abs().max()):
            return None  # one factor for the whole row
        of_tile = [t for t in range(len(tiles)) if known[row, t]]
        each = (f"{named_ranges('key', tiles[t])} {float(numbers[t]):.3g}" for t in of_tile[:4])
        return by_numbers(
            "TILE-SHARES",
            tile=tile,
            columns=columns,
            row=rows.queries[row],
            shown=", ".join(each) + (", ..." if len(of_tile) > 4 else ""),
        )
    return None


def _shares_of_sinks(rows: Rows) -> Sighting | None:
    """Find weights that are right inside the window and among the sinks, but not between these."""
    options = rows.case.kwargs
    window, sinks = options.get("window_size"), options.get("num_sink_tokens")
    if not window or not sinks:
        return None
    keys = torch.arange(len(rows.keys))[None, :]
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


def _mixed_exponentials(rows: Rows) -> Sighting | None:
    """Find weights that are exponentials to another base than the factors that rescale tiles."""
    for name, factor in (("log2(e)", 1.0 / math.log(2.0)), ("ln(2)", math.log(2.0))):
        scale = factor * rows.scale
        scores = (scale * rows.scores).masked_fill(~rows.visible, -math.inf)
        lse = torch.logsumexp(scores, -1, keepdim=True)
        found = _shares_of_tiles(dataclasses.replace(rows, scale=scale, lse=lse))
        if found is not None and found.id == "TILE-SHARES":
            return by_numbers(
                "EXPONENTIALS-MIXED",
                name=name,
                row=found.figures["row"],
                shown=found.figures["shown"],
            )
    return None


def _other_keys(rows: Rows) -> Sighting | None:
    """Find single keys at the ends of tiles that do not count once; any key if head_dim allows."""
    keys = torch.arange(len(rows.keys))
    tried = [torch.eye(len(keys), dtype=torch.bool)]
    for tile in rows.tiles:
        place, tiles = keys % tile, tiles_of(len(keys), tile)
        last = (place == tile - 1) | (keys == len(keys) - 1)
        middle = ~last & (place > 0)
        parts = [place == 0, last & (place > 0), middle & (place < tile // 2)]
        parts.append(middle & (place >= tile // 2))
        groups = torch.cat([tiles & part for part in parts])
        tried.append(groups[groups.any(-1)])
    for groups in tried:
        counts = None
        if len(groups) * _EQUATIONS <= rows.values.shape[1]:
            counts = counts_of(rows, groups & rows.visible[:, None, :])
        found = None if counts is None else _as_keys(rows, counts, groups & rows.visible.any(0))
        if found is not None:
            return found
    return None


def _as_keys(rows: Rows, counts: torch.Tensor, groups: torch.Tensor) -> Sighting | None:
    """Find rows that are attention over other keys: groups are left out or counted twice."""
    if not bool((counts.nan_to_num(0.0).abs() > _SAME).any()):
        return None  # zeros in place of a whole result say nothing of keys
    weights = rows.weights * rows.visible
    shares = weights @ groups.double().T
    times = []
    for row, share in zip(counts, shares, strict=True):
        there = row[~row.isnan() & (row.abs() > _SAME)]
        if not len(there):  # all are left out, and the row is 0
            times.append(torch.zeros_like(row).masked_fill(row.isnan(), math.nan))
            continue
        times.append(row / there.abs().min())
        # In attention over other keys, the weights still add up to one.
        if abs(float((row * share).nansum()) - 1.0) > 5 * _SAME:
            return None
    often = torch.stack(times)
    if bool(((often - often.round()).abs() > 5 * _SAME).any()) or bool((often < -0.5).any()):
        return None
    often = often.round()
    known = ~often.isnan()
    once = torch.where(known, often, -1.0).amax(0)
    of_row = ""
    if bool((known & (often != once)).any()):  # rows differ: show one of them
        row = int((often == 0.0).sum(1).argmax())
        once, of_row = often[row], f" in row {rows.queries[row]}"
    if bool((once > 2.0).any()):
        return None
    missing, twice = (groups[once == number].any(0).numpy() for number in (0.0, 2.0))
    if missing.all() or not (missing | twice).any():
        return None
    words = (("left out", missing), ("counted twice", twice))
    what = [f"{named_ranges('key', keys)} {word}" for word, keys in words if keys.any()]
    return by_numbers("OTHER-KEYS", keys=" and ".join(what), of_row=of_row)
