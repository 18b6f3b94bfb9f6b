"""The film of one program: its source, its tiles on the map and its state, tile by tile."""

from __future__ import annotations

import re
from collections.abc import Iterable
from types import SimpleNamespace

from grader.report.html import grids, source
from grader.spec.grade_record import ProblemResult, TileMap, Verdict
from grader.spec.trace_record import TRACED, SourceLine, TileRound, TraceRecord, why_untraced


def film(
    trace: TraceRecord,
    maps: Iterable[TileMap | None],
    data: bytes,
    wrong: tuple[SourceLine, ...] = (),
    known: int | None = None,
) -> SimpleNamespace:
    """Return what the template shows of a trace: with the map of its head, if it is among `maps`.

    `data` is the submission, empty where it is not at hand; `wrong` are the lines behind a
    difference, `known` the one that a message names.
    """
    tiles = next((tiles for tiles in maps if tiles is not None and _is_of(tiles, trace)), None)
    grid = grids.tile_grid(tiles) if tiles is not None else None
    behind = {line.line for line in wrong} | ({known} if known else set())
    marked = behind | {line.line for tile in trace.rounds for line in tile.ran}
    return SimpleNamespace(
        trace=trace,
        wrong=wrong,
        wrong_lines=behind,
        parts=source.excerpt(data, marked) if data else (),
        grid=grid,
        outlines={tile.number: _outline(grid, tiles, trace, tile) for tile in trace.rounds},
    )


def _is_of(tiles: TileMap, trace: TraceRecord) -> bool:
    """Whether a map is of the head that the program is of, or of any where there is none."""
    program = trace.program
    same = program is None or (tiles.batch, tiles.head) == (program.batch, program.head)
    return same and tiles.product == "out" and bool(tiles.rows)


def _outline(
    grid: SimpleNamespace | None, tiles: TileMap | None, trace: TraceRecord, tile: TileRound
) -> str:
    """Return x, y, width and height of a tile on the map, "" where it is not on it."""
    if grid is None or tiles is None or trace.program is None:
        return ""
    sides = (tile.keys, tiles.tile_k), (trace.program.queries, tiles.tile_q)
    spans = [_span(text, max(1, size)) for text, size in sides]
    box = [start + grid.cell * span[0] for start, span in zip(grid.corner, spans, strict=True)]
    box += [grid.cell * span[1] for span in spans]
    inside = box[0] + box[2] <= grid.width and box[1] + box[3] <= grid.height
    return " ".join(f"{number:g}" for number in box) if inside and min(box[2:]) > 0 else ""


def _span(positions: str, size: int) -> tuple[float, float]:
    """Return where positions such as "3, 8-9" begin, and how far they reach, in tiles."""
    numbers = [int(digits) for digits in re.findall(r"\d{1,9}", positions)]
    first, last = (numbers[0], numbers[-1]) if numbers else (0, -1)
    return first // size, last // size + 1 - first // size


def no_film(problem: ProblemResult) -> str:
    """Say why no program is shown of a problem that has one, "" where there is nothing to say."""
    if problem.verdict is Verdict.NOT_IMPLEMENTED or not problem.checks:
        return ""
    if problem.id not in TRACED:
        return why_untraced(problem.id)
    follow = f"make trace P={problem.id} follows one"
    work = problem.components.get("work")
    ended = problem.verdict not in (Verdict.PASS, Verdict.FAIL)
    if ended:
        return f"no program was followed in a call that came back; {follow} up to where a call ends"
    if work is not None and work.reason:
        return f"no program was followed, for the work was not counted; {follow}"
    return f"no program was followed in this run; {follow}"
