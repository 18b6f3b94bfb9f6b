"""What `grader calibrate` prints, and what a report says of the targets it scored speed with."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from grader.calibration.file import Calibration
from grader.calibration.measuring import Outcome
from grader.model import GradeRecord, SpeedFigures
from grader.render.message import ID_LIMIT
from grader.render.text import clean, milliseconds, plural, text_console, wrap

_MOST_NAMES = 3


def render(
    outcome: Outcome,
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
    return "".join(line.rstrip() + "\n" for line in console.file.getvalue().splitlines())


def _table(outcome: Outcome) -> Table:
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


def target_lines(record: GradeRecord, width: int) -> list[str]:
    """Return where the targets are from that speed was scored with, and what the canary said."""
    sources: dict[str, list[str]] = {}
    notes = []
    for problem in record.problems:
        speed = problem.components.get("speed")
        figures = speed.figures if speed else None
        if not isinstance(figures, SpeedFigures):
            continue
        if figures.targets:
            id = clean(problem.id, ID_LIMIT)
            sources.setdefault(clean(figures.targets, 60), []).append(id)
        if figures.note:
            notes.append(f"{clean(problem.id, ID_LIMIT)}: {clean(figures.note)}")
    lines = []
    if sources:
        parts = [f"{source} ({_spans(ids)})" for source, ids in sources.items()]
        lines += wrap("; ".join(parts), width, "speed targets: ", "    ")
    for note in notes[:_MOST_NAMES]:
        lines += wrap(note, width, "note: ", "    ")
    if len(notes) > _MOST_NAMES:
        rest = plural(len(notes) - _MOST_NAMES, "more problem")
        lines.append(f"note: and of {rest}, see JSON=file")
    return lines


def _spans(ids: Sequence[str]) -> str:
    """Return p02, p03, p04, p06 as "p02-p04, p06"."""
    spans: list[list[str]] = []
    for id in ids:
        follows = spans and id == f"p{int(spans[-1][-1][1:]) + 1:02d}" if _numbered(id) else False
        if follows:
            spans[-1].append(id)
        else:
            spans.append([id])
    words = [s[0] if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans]
    return ", ".join(words)


def _numbered(id: str) -> bool:
    return len(id) == 3 and id[0] == "p" and id[1:].isascii() and id[1:].isdigit()
