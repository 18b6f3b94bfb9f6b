"""The film of one program: its source, its tiles on the map and its state, tile by tile."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

from grader.report.html import grids, source
from grader.spec.grade_record import ProblemResult, TileMap, Verdict
from grader.spec.trace_record import UNTRACED, SourceLine, TraceRecord


def film(
    trace: TraceRecord,
    maps: Iterable[TileMap | None],
    data: bytes,
    wrong: tuple[SourceLine, ...] = (),
    known: int | None = None,
) -> SimpleNamespace:
    """Return the view of a trace for the template, with the map of its head if `maps` has it.

    `data` is the submission's source, empty if it is missing; `wrong` are the lines that assign
    wrong values, `known` is the line that a message names.
    """
    tiles = next((tiles for tiles in maps if tiles is not None and _is_of(tiles, trace)), None)
    behind = {line.line for line in wrong} | ({known} if known else set())
    marked = behind | {line.line for tile in trace.rounds for line in tile.ran}
    return SimpleNamespace(
        trace=trace,
        wrong=wrong,
        wrong_lines=behind,
        parts=source.excerpt(data, marked) if data else (),
        grid=grids.tile_grid(tiles) if tiles is not None else None,
    )


def _is_of(tiles: TileMap, trace: TraceRecord) -> bool:
    """Whether a map shows the output of the program's head, or of any head without a program."""
    program = trace.program
    same = program is None or (tiles.batch, tiles.head) == (program.batch, program.head)
    return same and tiles.product == "out" and bool(tiles.rows)


def no_film(problem: ProblemResult) -> str:
    """Return why no program of a problem is shown, "" where no reason is needed."""
    if problem.verdict is Verdict.NOT_IMPLEMENTED or not problem.checks:
        return ""
    if problem.id in UNTRACED:
        return UNTRACED[problem.id]
    ended = problem.verdict not in (Verdict.PASS, Verdict.FAIL)
    follow = f"make trace P={problem.id} follows one"
    if ended:
        return f"none was followed, for a call did not come back; {follow} up to where it ends"
    return f"none was followed in this run; {follow}"
