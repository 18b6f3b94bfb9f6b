"""Kinds of tiles and bounds, counted in the reference's mask, and how a map of tiles is drawn."""

from __future__ import annotations

import dataclasses

import torch

import reference

from .canvas import Canvas

FULL, MASKED, NEVER, SINKS = "full", "masked", "never", "sinks"
LETTERS = {FULL: "#", MASKED: "M", NEVER: "", SINKS: "S"}


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The four bounds of p06 for one query tile, in keys; multiples of BLOCK_N but for the last."""

    first_key: int
    full_start: int
    full_end: int
    end_key: int


def visible(problem_id: str, seqlen: int, **options: int) -> torch.Tensor:
    """The reference's mask of a causal problem, (seqlen, seqlen)."""
    rules = reference.rules(problem_id, options)
    del rules["softmax_scale"]
    return reference.visible_keys(seqlen, seqlen, **rules)


def kinds(mask: torch.Tensor, block_m: int, block_n: int) -> list[list[str]]:
    """The kind of every tile of a mask: all of its pairs visible, some, or none."""

    def kind(tile: torch.Tensor) -> str:
        return FULL if tile.all() else MASKED if tile.any() else NEVER

    rows = mask.split(block_m)
    return [[kind(tile) for tile in row.split(block_n, dim=1)] for row in rows]


def with_sinks(tiles: list[list[str]], window: list[list[str]]) -> list[list[str]]:
    """Mark the tiles that only sinks make visible: those that the window alone never visits."""
    return [
        [SINKS if alone == NEVER != kind else kind for kind, alone in zip(row, others, strict=True)]
        for row, others in zip(tiles, window, strict=True)
    ]


def bounds(mask: torch.Tensor, query_start: int, block_m: int, block_n: int) -> Bounds:
    """The bounds of a query tile that has a full tile in its window."""
    row = kinds(mask[query_start : query_start + block_m], block_m, block_n)[0]
    full = [number for number, kind in enumerate(row) if kind == FULL]
    seen = mask[query_start : query_start + block_m].any(0).nonzero()
    return Bounds(
        first_key=int(seen[0]) // block_n * block_n,
        full_start=full[0] * block_n,
        full_end=(full[-1] + 1) * block_n,
        end_key=int(seen[-1]) + 1,
    )


def count(tiles: list[list[str]], *wanted: str) -> int:
    """How many tiles of a map are of these kinds."""
    return sum(kind in wanted for row in tiles for kind in row)


def draw_tile(canvas: Canvas, kind: str, x: float, y: float, size: float) -> None:
    """One tile: solid, striped or an empty outline, with its letter."""
    if kind == NEVER:
        canvas.box(x, y, size, size, "none", stroke="faint", dashed=True)
        return
    if kind == FULL:
        canvas.box(x, y, size, size, "teal")
    else:
        canvas.hatched(x, y, size, size, "teal" if kind == MASKED else "orange")
        canvas.box(x + size / 2 - 10, y + size / 2 - 10, 20, 20, stroke="none", radius=10)
    canvas.text(x + size / 2, y + size / 2 + 5.5, LETTERS[kind], bold=True, anchor="middle")


def draw_map(
    canvas: Canvas, tiles: list[list[str]], x: float, y: float, pitch: float, gap: float = 3
) -> None:
    """All tiles of a map, queries down and keys across."""
    for i, row in enumerate(tiles):
        for j, kind in enumerate(row):
            draw_tile(canvas, kind, x + j * pitch, y + i * pitch, pitch - gap)


def draw_legend(canvas: Canvas, entries: list[tuple[str, str]], x: float, y: float) -> None:
    """One line per kind: a tile, and what its letter says."""
    for number, (kind, words) in enumerate(entries):
        draw_tile(canvas, kind, x, y + 30 * number, 24)
        canvas.text(x + 34, y + 30 * number + 17, words)
