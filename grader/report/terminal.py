"""The report on a terminal: the table, a message per cause, measurements, the next step.

The text is ASCII except for quotations, and colour only repeats what the words say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from grader.base.text import (
    byte_size,
    clean,
    finite,
    milliseconds,
    plain_table,
    plural,
    styled,
    times,
    wrap,
)
from grader.report import predicted, score
from grader.report.kernels import chip_lines, kernel_table, kernels_of, spill_lines
from grader.report.message import ID_LIMIT, NAME_LIMIT, message_lines
from grader.report.tiles import tile_lines
from grader.spec.grade_record import (
    COMPONENTS,
    SEVERITY,
    GradeRecord,
    MemoryFigures,
    Points,
    ProblemResult,
    SpeedFigures,
    Verdict,
    WorkFigures,
)

MIN_WIDTH = 72
TITLE_LIMIT = 60
MAX_REASONS = 4
DETAIL_INDENT = "    "
MEASURED = "measured", "work", "speed-up", "time", "naive", "spread", "extra memory", "naive"
VERDICT_WORDS = {
    Verdict.PASS: "passed",
    Verdict.FAIL: "failed",
    Verdict.ERROR: "error",
    Verdict.TIMEOUT: "timed out",
    Verdict.CRASH: "crashed",
    Verdict.OUT_OF_MEMORY: "out of memory",
    Verdict.NOT_IMPLEMENTED: "not implemented",
    Verdict.REJECTED: "rejected",
    Verdict.SKIPPED: "skipped",
    Verdict.NOT_MEASURED: "not measured",
    Verdict.INTERNAL: "internal",
}
# The order of verdicts in the last line.
COUNT_ORDER = tuple(verdict for verdict in reversed(SEVERITY) if verdict is not Verdict.PASS)
STYLES = {
    Verdict.PASS: "green",
    Verdict.NOT_IMPLEMENTED: "yellow",
    Verdict.SKIPPED: "dim",
    Verdict.NOT_MEASURED: "dim",
    Verdict.INTERNAL: "magenta",
}
FAILURE_STYLE = "red"
LEAD_STYLES = {
    "error[": "bold red",
    "internal[": "bold magenta",
    "note: ": "cyan",
    "help: ": "green",
    "next: ": "bold",
}


def render(
    record: GradeRecord,
    *,
    width: int = 80,
    color: bool = False,
    maps: bool = False,
    page: Path | None = None,
) -> str:
    """Return the report as text no wider than `width` cells, at least 72.

    It has escape codes only with `color`, and the tiles that a kernel visits only with `maps`. The
    last line names `page`, the report for a browser, if there is one.
    """
    width = max(width, MIN_WIDTH)
    blocks: list[list[RenderableType]] = [
        _lines(_heading(record, width)),
        _table(record, width),
        _lines(_legend(record, width)),
        *(_lines(rows) for rows in _messages(record, width)),
        _measurements(record, width),
        _kernels(record, width),
        *(_lines(rows) for rows in (_maps(record, width) if maps else [])),
        _lines([*_closing(record, width), *([f"report {page}"] if page else [])]),
    ]
    parts = [part for block in blocks if block for part in ("", *block)]
    return styled(parts[1:], width, color=color)


def _lines(rows: Iterable[str]) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for row in rows:
        line = Text(row)
        for lead, style in LEAD_STYLES.items():
            if row.startswith(lead):
                line.stylize(style, 0, row.find(":") + 1)
        lines.append(line)
    return lines


def _heading(record: GradeRecord, width: int) -> list[str]:
    environment, second = record.environment, score.machine(record.environment)
    lines = wrap("   ".join(score.run_words(record)), width) + wrap("   ".join(second), width)
    for note in environment.notes:
        lines += wrap(clean(note), width, "", "    ")
    return lines


# The table.


def _table(record: GradeRecord, width: int) -> list[RenderableType]:
    if not record.problems:
        return [Text("no problem was graded")]
    header = ["verdict", *COMPONENTS, "points"]
    cells = [_cells(problem) for problem in record.problems]
    widths = [max(len(cell) for cell in column) for column in zip(header, *cells, strict=True)]
    names = [f"{clean(p.id, ID_LIMIT)} {clean(p.title, TITLE_LIMIT)}" for p in record.problems]
    room = width - sum(widths)
    # A long title narrows the gaps; one that is still too long is wrapped.
    gap = 2 if max(map(cell_len, names)) <= room - 2 * len(widths) else 1
    name_width = room - gap * len(widths)
    parts: list[RenderableType] = []
    for bonus in (False, True):
        table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), show_header=not parts)
        for name, size in zip(("problem", *header), (name_width, *widths), strict=True):
            side = "left" if name in ("problem", "verdict") else "right"
            table.add_column(name, justify=side, width=size, no_wrap=True, header_style="")
        for problem, name, row in zip(record.problems, names, cells, strict=True):
            if problem.bonus is bonus:
                style = STYLES.get(problem.verdict, FAILURE_STYLE)
                verdict, *numbers = row
                whole = cell_len(name) <= name_width
                lines = [name] if whole else wrap(name, name_width, "", "    ")
                table.add_row(Text("\n".join(lines)), Text(verdict, style=style), *numbers)
        subtotal = record.bonus if bonus else record.totals
        if table.row_count or subtotal.possible:
            if table.row_count or not parts:
                parts.append(table)
            label = "bonus" if bonus else "required"
            parts += [Text("-" * width), _sum(label, subtotal, width)]
            if not bonus and any(problem.bonus for problem in record.problems):
                parts.append(Text(""))
    return parts


def _cells(problem: ProblemResult) -> list[str]:
    parts = [score.component_cell(problem.components.get(name)) for name in COMPONENTS]
    return [str(problem.verdict), *parts, score.fraction(problem.points)]


def _sum(label: str, part: Points, width: int) -> Text:
    line = score.sum_line(label, part)
    text = Text(line.rjust(width))
    text.stylize("bold", width - len(line), width)
    return text


def _legend(record: GradeRecord, width: int) -> list[str]:
    """Return the legend of "-" and "!", a line per reason, and faults a pass cannot exclude."""
    reasons = score.gaps(record)
    unseen: dict[str, list[str]] = {}
    for problem in record.problems:
        if problem.unseen:
            unseen.setdefault(clean(problem.unseen), []).append(clean(problem.id, ID_LIMIT))
    lines: list[str] = []
    for reason in reasons[:MAX_REASONS]:
        lines += wrap(reason, width, "-  ")
    if len(reasons) > MAX_REASONS:
        lines.append(f"-  and {len(reasons) - MAX_REASONS} more reasons, see JSON=file")
    if any("!" in _cells(problem) for problem in record.problems):
        lines.append(f"!  {score.FAULT}")
    for text, ids in unseen.items():
        lines += wrap(f"{', '.join(ids)}: {text}", width, "", "   ")
    return lines


# Measurements.


def _measurements(record: GradeRecord, width: int) -> list[RenderableType]:
    """Return a row of measurements per problem, then why points were lost."""
    rows = [row for problem in record.problems if any((row := _figures(problem))[1:])]
    parts: list[RenderableType] = []
    if rows:
        columns = [column for column in zip(MEASURED, *rows, strict=True) if any(column[1:])]
        header, *shown = zip(*columns, strict=True)
        parts.append(plain_table(header, shown, ("measured",), gap=2 if width >= 80 else 1))
    lost: list[str] = []
    for problem in record.problems:
        for name, reason in score.losses(problem).items():
            lost += wrap(reason, width, f"{clean(problem.id, ID_LIMIT)} {name}: ", DETAIL_INDENT)
    return parts + _lines(lost + target_lines(record, width))


def _figures(problem: ProblemResult) -> tuple[str, ...]:
    """Return id, work, speed-up, times, spread and memory as text; missing ones are blank.

    Work is the largest ratio, over all kinds, of work done to work needed.
    """
    work, speed, memory = (
        score.figures_of(problem, kind) or kind()
        for kind in (WorkFigures, SpeedFigures, MemoryFigures)
    )
    ratios = [amount.ratio for amount in work.amounts.values()]
    ratio, spread = finite(speed.speedup), finite(speed.spread_percent)
    return (
        clean(problem.id, ID_LIMIT),
        times(max(ratios, default=None), 2),
        times(ratio, 1),
        milliseconds(speed.median_ms) or "",
        milliseconds(speed.naive_ms) or "",
        "" if spread is None else f"{spread:.2g} %",
        byte_size(memory.extra_bytes[-1]) or "" if memory.extra_bytes else "",
        byte_size(memory.naive_extra_bytes[-1]) or "" if memory.naive_extra_bytes else "",
    )


def _kernels(record: GradeRecord, width: int) -> list[RenderableType]:
    """Return the kernels of a single problem, or the spills of several, and predictions."""
    asked = [
        part
        for problem in record.problems
        for line in chip_lines(problem)
        for part in wrap(line, width, f"{clean(problem.id, ID_LIMIT)} ", DETAIL_INDENT)
    ]
    lines = predicted.lines(record.problems)
    predictions = [row for line in lines for row in wrap(line, width, "", "  ")]
    if len(record.problems) != 1:
        return _lines(spill_lines(record) + asked + predictions)
    kernels = kernels_of(record.problems[0])
    return [*([kernel_table(kernels)] if kernels else []), *_lines(asked + predictions)]


def _maps(record: GradeRecord, width: int) -> list[list[str]]:
    """Return the tiles that the kernels visited where their work was counted."""
    found = []
    for problem in record.problems:
        work = problem.components.get("work")
        figures = work.figures if work else None
        if isinstance(figures, WorkFigures) and figures.tiles is not None:
            lines = tile_lines(figures.tiles)
            title = wrap(lines[0], width, f"{clean(problem.id, ID_LIMIT)} tiles, ")
            shape = wrap(clean(figures.shape), MIN_WIDTH, "        ")
            found.append([*title, *shape, *lines[1:]])
    return found


def _messages(record: GradeRecord, width: int) -> list[list[str]]:
    """Return the messages of all problems, each a list of lines no wider than `width` cells."""
    found = []
    for problem in record.problems:
        shown, rest = score.shown_causes(problem)
        found += [message_lines(problem.id, cause, width) for cause in shown]
        if rest:
            names = ", ".join(clean(check, NAME_LIMIT) for check in rest)
            counted = plural(len(rest), "more check")
            id = clean(problem.id, ID_LIMIT)
            line = f"{id}: and {counted}: {names}; see pytest problems/{id}"
            found.append(wrap(line, width, "", "    "))
    return found


# The end of the report.


def _closing(record: GradeRecord, width: int) -> list[str]:
    lines = [score.INTERRUPTED] * record.interrupted
    return [*lines, *score.next_lines(record.problems, width), _count(record.problems, width)]


def _count(problems: Sequence[ProblemResult], width: int) -> str:
    """Return the last line of the report: the number of problems by verdict, in one line."""
    counts = Counter(problem.verdict for problem in problems)
    shown = [Verdict.PASS, *(v for v in COUNT_ORDER if counts[v])]
    head, other = f"{plural(len(problems), 'problem')}: ", 0
    while True:
        words = [f"{counts[verdict]} {VERDICT_WORDS[verdict]}" for verdict in shown]
        line = head + ", ".join([*words, f"{other} other"] if other else words)
        if len(line) <= width or len(shown) == 1:
            return line
        other += counts[shown.pop()]


_MOST_NAMES = 3


def target_lines(record: GradeRecord, width: int) -> list[str]:
    """Return the sources of the speed targets, and notes on the timing."""
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
    next_of = {f"p{number:02d}": f"p{number + 1:02d}" for number in range(99)}
    spans: list[list[str]] = []
    for id in ids:
        if spans and next_of.get(spans[-1][-1]) == id:
            spans[-1].append(id)
        else:
            spans.append([id])
    return ", ".join(s[0] if len(s) == 1 else f"{s[0]}-{s[-1]}" for s in spans)
