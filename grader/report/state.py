"""The trace of one program in words: where its state goes wrong, and the command to show it."""

from __future__ import annotations

from collections.abc import Sequence

from grader.base.text import clean
from grader.spec.trace_record import Shown, SourceLine, TileRound, TraceRecord

_STATE, _CODE = 1200, 200


def state_facts(record: TraceRecord, lines: Sequence[SourceLine]) -> list[tuple[str, str]]:
    """Return the facts about a program's state, and the lines that assign wrong values."""
    rows = [("line", f"{line.line}  {clean(line.text, _CODE)}") for line in lines]
    return [("state", state(record)), *rows]


def state(record: TraceRecord) -> str:
    """Return one sentence: whose state, up to which tile it is right, and what goes wrong then."""
    return clean(f"{_queries(record)}: {_came_to(record)}", _STATE)


def first_wrong(record: TraceRecord) -> str:
    """Return which variables go wrong in which tile, and the line if only one assigns them."""
    part = record.parting
    if part is None:
        return ""
    line = f" (line {part.lines[0].line})" if len(part.lines) == 1 else ""
    return f"{_listed(part.names, 'goes wrong', 'go wrong')} in tile {part.number}{line}"


def command(record: TraceRecord) -> str:
    """Return the command that shows the case and the program again."""
    followed = record.program
    ids = ",".join(map(str, followed.ids)) if followed and followed.kernel else ""
    program = f" PROGRAM={ids}" if ids else ""
    place = f"CASE={record.check}:{record.number}"
    return clean(f"make trace P={record.problem} {place} SEED={record.seed}{program}")


def left_out(tiles: Sequence[int]) -> str:
    """Return "tile 3 is" or "tiles 3 to 7 are", for consecutive tiles."""
    first, last = tiles[0], tiles[-1]
    return f"tile {first} is" if first == last else f"tiles {first} to {last} are"


def _queries(record: TraceRecord) -> str:
    program = record.program
    if program is None:
        return "no program"
    batch = f", batch entry {program.batch}" if program.batch else ""
    one = program.queries.isdecimal()
    return f"{'query' if one else 'queries'} {program.queries} of head {program.head}{batch}"


def _came_to(record: TraceRecord) -> str:
    part = record.parting
    if part is None:
        return record.conclusion
    tiles = {tile.number: tile for tile in record.rounds}
    here = tiles.get(part.number)
    where = f"tile {part.number}{_keys(here)}"
    if part.number == 1:
        begins = f"wrong in {where}"
    else:
        before = f"tile {part.number - 1}{_keys(tiles.get(part.number - 1))}"
        begins = f"right up to {before}, wrong in {where}"
    if here is not None and here.facts:
        return f"{begins}: {here.facts[0]}"
    if part.by_factor or here is None:
        return f"{begins}: {part.text}"
    known = [s.name for s in here.shown if s.agrees and s.name not in part.names]
    wrong = _listed(part.names, "goes wrong", "go wrong")
    right = f"; {_listed(known, 'stays right', 'stay right')}" if known else ""
    above = [
        f"; {s.name} is larger than the largest score of the visible keys"
        for s in here.shown
        if s.role == "maximum" and s.agrees is False and (s.name not in part.names or _is_larger(s))
    ]
    return f"{begins}: {wrong}{right}{''.join(above[:1])}"


def _is_larger(shown: Shown) -> bool:
    pairs = zip(shown.yours, shown.oracle or (), strict=False)
    return any(float(own) > float(wanted) for own, wanted in pairs)


def _listed(names: Sequence[str], one: str, several: str) -> str:
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} and {last} {several}" if first else f"{last} {one}"


def _keys(tile: TileRound | None) -> str:
    return f" (keys {tile.keys})" if tile is not None else ""
