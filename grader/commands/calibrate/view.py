"""What `grader calibrate` prints, and what a report says of the targets it scored speed with."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from grader.base.text import clean, milliseconds, plural, text_console, without_blanks, wrap
from grader.commands.calibrate.measuring import CalibrationResult
from grader.report.message import ID_LIMIT
from grader.timing.calibration import Calibration

_MOST_NAMES = 3


def render(
    outcome: CalibrationResult,
    calibration: Calibration | None,
    *,
    written_to: str | None = None,
    width: int = 80,
    color: bool = False,
) -> str:
    """Return a row per problem with targets, why others have none, and of which machine it is."""
    console = text_console(width, color=color)
    if outcome.problems:
        console.print(_table(outcome))
    lines = []
    for id, reason in outcome.missing.items() if outcome.runs else ():
        lines += wrap(clean(reason), width, f"{clean(id, ID_LIMIT)} not calibrated: ", "    ")
    count, wanted = len(outcome.runs), outcome.wanted
    done = plural(count, "run") if count == wanted else f"{count} of {plural(wanted, 'run')}"
    if calibration:
        words = [clean(calibration.device_name, 60), done, calibration.date]
        for tool in ("driver", "torch", "triton"):
            if version := getattr(calibration, tool):
                words.append(f"{tool} {clean(version, 30)}")
        lines += wrap("   ".join(words), width)
    elif count < wanted:
        lines.append(f"interrupted after {done}: nothing is written")
    if written_to:
        lines.append(f"written to {written_to}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return without_blanks(console.file.getvalue())


def _table(outcome: CalibrationResult) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = ("calibrated", "speed-up", "lowest", "spread", "naive", "spread")
    for name in (*names, "floor", "full", "share"):
        side = "left" if name == "calibrated" else "right"
        table.add_column(name, justify=side, no_wrap=True, header_style="")
    for id, found in outcome.problems.items():
        table.add_row(
            id,
            f"{found.median:.3g}x",
            f"{min(found.speedups):.3g}x",
            f"{found.spread_percent:.2g} %",
            milliseconds(found.naive_median_ms),
            f"{found.naive_spread_percent:.2g} %",
            f"{found.floor:g}x",
            f"{found.full:g}x",
            f"{found.share:.2f}",
        )
    return table
