"""`python -m grader trace`: shows one program of a kernel tile by tile."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from itertools import groupby

from rich.console import Console

from grader.base import stdout
from grader.base.atomic_write import write_whole
from grader.base.text import clean, fit, styled, wrap
from grader.commands.options import SEED, SUBMISSION, expect_folder, expect_place, seed_of, writing
from grader.commands.trace.wanted import Wanted, expect_traceable
from grader.judge.sealed import is_sealed, unlined
from grader.report.state import command, left_out
from grader.spec.environment import probe
from grader.spec.problem import load_problem, problem_ids, problems_named
from grader.spec.trace_record import TRACED, Shown, SourceLine, TileRound, TraceRecord

_NAME, _LABEL, _NUMBER = 17, 9, 13  # widths of columns
_MOST_FACTS = 3


def render(record: TraceRecord, *, width: int = 80, color: bool = False) -> str:
    """Return the case, the program, the tiles around its divergence, and the conclusion."""
    lines = _head(record, width)
    shown = _chosen(record)
    parts_at = record.parting.number if record.parting else None
    for is_shown, group in groupby(record.rounds, key=lambda r: r.number in shown):
        tiles = list(group)
        if not is_shown:
            lines += ["", _left_out(tiles)]
            continue
        for tile in tiles:
            lines += ["", *_tile(tile, parts_at, width)]
    if record.tiles > len(record.rounds):
        lines += ["", f"{record.tiles - len(record.rounds)} more tiles"]
    lines += ["", *_end(record, width)]
    return styled(((line, _style_of(line)) for line in lines), width, color=color)


def _head(record: TraceRecord, width: int) -> list[str]:
    place = f"{record.check}:{record.number}"
    lines = wrap(f"trace of {record.problem} {place}, {clean(record.file, 60)}", width)
    if record.case:
        lines += wrap(f"{clean(record.case)}   seed={record.seed}", width, "  input    ")
    result = {"right": "right", "wrong": "wrong", "failed": "none"}[record.result]
    if record.failure is not None:
        result = clean(record.failure)
    lines += wrap(result, width, "  result   ")
    program = record.program
    if program is not None:
        ids = ", ".join(map(str, program.ids))
        where = f"({ids}) of {clean(program.kernel, 40)}: " if program.kernel else ""
        place = f"head {program.head}, batch entry {program.batch}"
        text = f"{where}queries {program.queries} of {place}"
        lines += wrap(text, width, "  program  " if program.kernel else "  tile     ")
        queries = " and ".join(map(str, program.shown_queries))
        plural = "queries" if len(program.shown_queries) > 1 else "query"
        text = f"{plural} {queries}, columns {program.columns} of V"
        lines += wrap(text, width, "  shown    ")
    return lines


def _chosen(record: TraceRecord) -> set[int]:
    """Return the numbers of the tiles to show: first, last, and those around a divergence."""
    if not record.rounds:
        return set()
    wanted = {1, record.rounds[-1].number}
    if record.parting is not None:
        wanted |= {record.parting.number + step for step in (-1, 0, 1)}
    else:
        wanted.add(2)
        wanted |= {next((r.number for r in record.rounds if r.facts), 1)}
    return wanted


def _left_out(tiles: list[TileRound]) -> str:
    first, last = tiles[0].number, tiles[-1].number
    which = f"tile {first}" if first == last else f"tiles {first} to {last}"
    compared = [s.agrees for tile in tiles for s in tile.shown if s.role is not None]
    if compared and all(compared):
        return f"{which} agree{'s' if first == last else ''} with the reference"
    return f"{left_out([first, last])} not shown"


def _tile(tile: TileRound, parts_at: int | None, width: int) -> list[str]:
    mark = "   <- diverges here" if tile.number == parts_at else ""
    line = f"   line {tile.line}" if tile.line else ""
    lines = [f"tile {tile.number}   keys {tile.keys}{line}{mark}"]
    for fact in tile.facts[:_MOST_FACTS]:
        lines += wrap(clean(fact), width, "  ! ")
    for shown in tile.shown:
        lines += _numbers(shown)
    if mark or tile.facts or not tile.ended:
        lines += _code(tile.ran, width)
    if not tile.ended:
        lines.append("  (read later: the end of this round was not seen)")
    return lines


def _numbers(shown: Shown) -> list[str]:
    name = clean(shown.name, _NAME - 6) + ("" if shown.query is None else f"[{shown.query}]")

    def row(name: str, label: str, values: tuple[str, ...]) -> str:
        cells = "".join(clean(value, _NUMBER - 1).rjust(_NUMBER) for value in values)
        return f"  {fit(name, _NAME)}{label:<{_LABEL}}{cells}"

    if shown.agrees is None:
        return [row(name, "yours", shown.yours)]
    if shown.agrees or shown.oracle is None:
        return [row(name, "agrees", shown.yours)]
    last = row("", "reference", shown.oracle)
    if shown.query is None:
        last += f"   {shown.apart} queries differ" if shown.apart > 1 else "   1 query differs"
    return [row(name, "yours", shown.yours), last]


def _code(source: Iterable[SourceLine], width: int) -> Iterator[str]:
    for line in source:
        yield from wrap(clean(line.text, 200), width, f"  line {line.line:<5}", " " * 12)


def _end(record: TraceRecord, width: int) -> list[str]:
    lines = wrap(clean(record.conclusion, 600), width)
    if record.parting is not None:
        lines += wrap(clean(record.parting.text, 600), width, "  ")
        lines += _code(record.parting.lines, width)
    for note in record.notes:
        lines += wrap(clean(note, 600), width, "note: ")
    if record.case:
        lines += wrap(command(record), width, "repeat: ")
    return lines


def _style_of(line: str) -> str:
    """Return the style of a line, by its words: colour never adds information."""
    if "<- diverges here" in line or line.startswith("  ! "):
        return "bold red"
    return "bold" if line.startswith("tile") else ""


HELP = "show one program of a kernel, tile by tile"
_HERE = [id for id in TRACED if id in problem_ids()] or [TRACED[0]]
OPTIONS = {
    f"--only {'p06' if 'p06' in _HERE else _HERE[-1]}": f"the problem: {', '.join(_HERE)}",
    "--case CHECK[:N]": "a check, and which of its cases, from 1 (default: the first that is"
    " wrong)",
    "--program X,Y,Z": "the program's ids (default: the one with the worst wrong element)",
    **SEED,
    "--json FILE": "write what is shown as JSON",
    **SUBMISSION,
}


def run(options: argparse.Namespace) -> int:
    """Find a case, follow one program and show it; return 0, whatever it shows."""
    problem = load_problem(expect_traceable(problems_named(options.only)))
    wanted = Wanted.of(problem, options.case, options.program)
    seed, folder = seed_of(options.seed), expect_folder(options.submission)
    expect_place(options.json, "--json")
    probe("cpu")
    from grader.commands.trace import traced_case  # late, since it imports torch

    with Console(stderr=True).status("starting") as status:
        record = traced_case.run(problem, folder, wanted, seed, status.update)
    record = unlined(record) if is_sealed(folder) else record
    stdout.show(render, record)
    if options.json is not None:
        with writing(options.json, "--json"):
            write_whole(options.json, record.to_json())
    return 0
