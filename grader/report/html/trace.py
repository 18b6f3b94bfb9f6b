"""One program, tile by tile, as the page shows it: a small table for each tile."""

from __future__ import annotations

import dataclasses

from grader.base.text import clean
from grader.report.state import command, left_out
from grader.spec.trace_record import Shown, SourceLine, TileRound, TraceRecord

_NAME, _NUMBER = 40, 16
Row = tuple[str, list[str], list[str], str, bool]


@dataclasses.dataclass(frozen=True)
class TileView:
    """A tile: what it is, whether the state parts here, facts, and rows of name, yours, oracle.

    A row ends with how the two compare, in a word, and whether they differ. `gap` names tiles
    before it that are left out.
    """

    caption: str
    parts: bool
    facts: tuple[str, ...]
    rows: list[Row]
    gap: str


@dataclasses.dataclass(frozen=True)
class TraceView:
    """One program as the page shows it; what is wrong with it stands among the facts above."""

    summary: str
    program: str
    shown: str
    tiles: list[TileView]
    rest: str
    lines: tuple[SourceLine, ...]
    notes: tuple[str, ...]
    command: str


def trace_view(record: TraceRecord, lines: tuple[SourceLine, ...]) -> TraceView:
    """Return what the page shows of a trace, and of the lines behind what is wrong."""
    part, program = record.parting, record.program
    end = f", parts in tile {part.number}" if part is not None else ""
    last = record.rounds[-1].number if record.rounds else 0
    earlier = [0, *(tile.number for tile in record.rounds)][:-1]
    tiles = [
        _tile(tile, before, parts=part is not None and tile.number == part.number)
        for before, tile in zip(earlier, record.rounds, strict=True)
    ]
    where = shown = ""
    if program is not None:
        ids = ", ".join(map(str, program.ids))
        where = (
            f"program ({ids}) of {clean(program.kernel, _NAME)} in the case {record.check}:"
            f"{record.number}, which holds queries {program.queries} of head {program.head},"
            f" batch entry {program.batch}"
        )
        numbers = " and ".join(map(str, program.shown_queries))
        one = len(program.shown_queries) == 1
        shown = (
            f"shown are {'query' if one else 'queries'} {numbers} and columns {program.columns} of"
            " V, after each tile"
        )
    return TraceView(
        summary=f"One program, tile by tile{end}",
        program=where,
        shown=shown,
        tiles=tiles,
        rest=_not_shown(last, record.tiles + 1),
        lines=lines,
        notes=record.notes,
        command=command(record),
    )


def _tile(tile: TileRound, earlier: int, *, parts: bool) -> TileView:
    line = f", line {tile.line}" if tile.line else ""
    facts = tile.facts
    if not tile.ended:
        facts += ("read later: the end of this round was not seen",)
    return TileView(
        caption=f"tile {tile.number}: keys {clean(tile.keys, 60)}{line}",
        parts=parts,
        facts=facts,
        rows=[_row(shown) for shown in tile.shown],
        gap=_not_shown(earlier, tile.number),
    )


def _not_shown(before: int, after: int) -> str:
    """Name the tiles between two, if there are any."""
    between = range(before + 1, after)
    return f"{left_out(between)} not shown" if between else ""


def _row(shown: Shown) -> Row:
    name = clean(shown.name, _NAME) + ("" if shown.query is None else f"[{shown.query}]")
    if shown.agrees is None:
        word = "not compared"
    elif shown.agrees:
        word = "agrees"
    elif shown.query is None and shown.apart:
        word = f"differs in {shown.apart} {'query' if shown.apart == 1 else 'queries'}"
    else:
        word = "differs"
    yours, oracle = _numbers(shown.yours), _numbers(shown.oracle or ())
    return name, yours, oracle, word, shown.agrees is False


def _numbers(values: tuple[str, ...]) -> list[str]:
    return [clean(value, _NUMBER) for value in values]
