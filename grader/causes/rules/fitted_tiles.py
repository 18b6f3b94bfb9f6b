"""Scores of which only some tiles have another factor: those with a mask, or those without."""

from __future__ import annotations

import math

import torch

from grader.causes.rules.sighting import Sighting, by_numbers
from grader.causes.rules.wrong_rows import Rows
from grader.spec.cases import Case

_TILES = (128, 64, 32, 16)
_LOG2E = 1.0 / math.log(2.0)


def scale_of_some_tiles(case: Case, rows: Rows) -> Sighting | None:
    """Tiles in which every pair is visible have one factor, the tiles at the edges another."""
    if not rows.scale:
        return None
    factors = {
        "1": 1.0,
        "softmax_scale**2": rows.scale**2,
        "softmax_scale * log2(e)": rows.scale * _LOG2E,
        "softmax_scale * ln(2)": rows.scale / _LOG2E,
        "log2(e)": _LOG2E,
        "-softmax_scale": -rows.scale,
    }
    tried = set()
    for tile_q in _TILES:
        for tile_k in _TILES:
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
                    scores = (scale * rows.scores).masked_fill(~rows.visible, -math.inf)
                    if rows.explained(scores.softmax(-1) @ rows.values):
                        return _told(rows, name, factor, of_full=of_full)
    return None


def _full(rows: Rows, tile_q: int, tile_k: int) -> torch.Tensor:
    """Return of each pair whether every pair of its tile is visible, (queries, keys)."""
    queries, keys = rows.sees.shape
    padded = torch.nn.functional.pad(rows.sees, (0, -keys % tile_k))
    padded = torch.nn.functional.pad(padded, (0, 0, 0, -queries % tile_q), value=True)
    whole = padded.unflatten(1, (-1, tile_k)).unflatten(0, (-1, tile_q)).all(3).all(1)
    spread = whole.repeat_interleave(tile_q, 0).repeat_interleave(tile_k, 1)
    return spread[:queries, :keys]


def _told(rows: Rows, name: str, factor: float, *, of_full: bool) -> Sighting:
    shown = f" ({name})" if name != "1" else ""
    return by_numbers(
        "SCALE-OF-SOME-TILES",
        variant="full_tiles" if of_full else "masked_tiles",
        factor=factor,
        named=shown,
        due=rows.scale,
    )
