"""What `grader stability` prints: how points and speed-ups vary over several gradings."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from grader.base.text import clean, plural, points, text_console
from grader.commands.stability.spread import STABLE_POINTS, Spread, spreads
from grader.report.message import ID_LIMIT
from grader.spec.grade_record import GradeRecord

_POINTS = ("problem", "points", "min", "median", "max", "range")
_COLUMNS = (*_POINTS, "speed-up min", "median", "max", "runs")


def render(
    records: Sequence[GradeRecord], wanted: int, *, width: int = 80, color: bool = False
) -> str:
    """Return a row per problem, the time of a grading, and which problems are not stable."""
    console = text_console(width, color=color)
    rows = spreads(records)
    if rows:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in _COLUMNS:
            side = "left" if name == "problem" else "right"
            table.add_column(name, justify=side, no_wrap=True, header_style="")
        for row in rows:
            table.add_row(*_cells(row, len(records)), style="" if row.is_stable else "red")
        console.print(table)
        console.print()
    for line in _closing(rows, records, wanted):
        console.print(Text(line), soft_wrap=True)
    return "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())


def _cells(row: Spread, gradings: int) -> list[str]:
    cells = [clean(row.id, ID_LIMIT), points(row.available)]
    if row.points:
        low, high = min(row.points), max(row.points)
        cells += [points(low), points(statistics.median(row.points)), points(high)]
        cells.append(points(row.range))
    else:
        cells += ["-"] * 4
    if row.speedups:
        values = (min(row.speedups), statistics.median(row.speedups), max(row.speedups))
        cells += [f"{value:.3g}x" for value in values]
    else:
        cells += [""] * 3
    return [*cells, f"{len(row.points)}/{gradings}"]


def _closing(rows: Sequence[Spread], records: Sequence[GradeRecord], wanted: int) -> list[str]:
    done = len(records)
    if not records:
        return ["interrupted before one grading was done"]
    seconds = [record.duration_s for record in records]
    lines = [
        f"{plural(done, 'grading')} of {min(seconds):.0f} to {max(seconds):.0f} s,"
        f" median {statistics.median(seconds):.0f} s"
    ]
    if done < wanted:
        lines.insert(0, f"interrupted: {done} of {plural(wanted, 'grading')} were done")
    if done < 2:
        return lines
    unstable = [clean(row.id, ID_LIMIT) for row in rows if not row.is_stable]
    limit = f"{points(STABLE_POINTS)} point"
    if unstable:
        lines.append(f"points differ by more than {limit}: {', '.join(unstable)}")
    else:
        lines.append(f"points differ by no more than {limit} in any problem")
    return lines
