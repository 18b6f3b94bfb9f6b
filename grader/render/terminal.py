"""The report on a terminal: the table, what was measured, one message a cause, the next step.

The text is ASCII apart from what it quotes, and the words say everything: colour only repeats them.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.text import Text

from grader.model import (
    COMPONENTS,
    SEVERITY,
    ComponentResult,
    GradeRecord,
    Points,
    ProblemResult,
    Verdict,
)
from grader.render.message import ID_LIMIT, NAME_LIMIT, causes, message_lines
from grader.render.text import (
    byte_size,
    clean,
    fit,
    last_of,
    milliseconds,
    plural,
    points,
    wrap,
)
from grader.scoring import finite

MIN_WIDTH = 72
MAX_REASONS = 4
MAX_CAUSES = 3
DETAIL_INDENT = "    "
# Components whose loss the table, its legend or a message of the problem explains.
EXPLAINED = (
    Verdict.SKIPPED,
    Verdict.NOT_MEASURED,
    Verdict.REJECTED,
    Verdict.NOT_IMPLEMENTED,
)
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
# From common to rare, for the last line.
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

Line = Text | str


def render(record: GradeRecord, *, width: int = 80, color: bool = False) -> str:
    """Return the report as text no wider than `width` cells, which is at least 72.

    There are escape codes in it only with `color`.
    """
    width = max(width, MIN_WIDTH)
    blocks = [
        _heading(record, width),
        _table(record, width),
        _legend(record, width),
        _measurements(record, width),
        *_messages(record, width),
        _closing(record, width),
    ]
    lines: list[Text] = []
    for block in blocks:
        if block and lines:
            lines.append(Text())
        lines.extend(_styled(line) for line in block)
    if not color:
        return "".join(line.plain.rstrip() + "\n" for line in lines)
    return _with_escape_codes(lines, width)


def _styled(line: Line) -> Text:
    if isinstance(line, Text):
        return line
    text = Text(line)
    for lead, style in LEAD_STYLES.items():
        if line.startswith(lead):
            text.stylize(style, 0, line.find(":") + 1)
    return text


def _with_escape_codes(lines: Iterable[Text], width: int) -> str:
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard",
        legacy_windows=False,
        no_color=False,
        width=width,
        highlight=False,
        _environ={},
    )
    for line in lines:
        line.rstrip()
        console.print(line, soft_wrap=True)
    return console.file.getvalue()


def _heading(record: GradeRecord, width: int) -> list[Line]:
    mode = clean(record.mode, 20)
    credit = ": not for credit" if record.mode != "official" else ""
    first = [f"mode {mode}{credit}", f"seed {clean(record.seed, NAME_LIMIT)}"]
    first.append(f"submission {clean(record.submission, 60)}")
    environment = record.environment
    device = clean(environment.get("device") or "unknown", NAME_LIMIT)
    name = clean(environment.get("device_name"), 60)
    second = [f"device {device}" + (f" ({name})" if name and name != device else "")]
    for tool in ("torch", "triton", "python"):
        version = clean(environment.get(tool), 30)
        second.append(f"{tool} {version}" if version else f"{tool} not found")
    return wrap("   ".join(first), width) + wrap("   ".join(second), width)


# The table.


def _table(record: GradeRecord, width: int) -> list[Line]:
    if not record.problems:
        return ["no problem was graded"]
    header = ["verdict", *COMPONENTS, "points"]
    cells = [_cells(problem) for problem in record.problems]
    widths = [max(len(cell) for cell in column) for column in zip(header, *cells, strict=True)]
    name_width = width - sum(widths) - 2 * len(widths)
    lines: list[Line] = [_row(fit("problem", name_width), header, widths)]
    for bonus in (False, True):
        group = [
            (problem, row)
            for problem, row in zip(record.problems, cells, strict=True)
            if problem.bonus is bonus
        ]
        for problem, row in group:
            name = fit(f"{clean(problem.id, ID_LIMIT)} {clean(problem.title)}", name_width)
            text = _row(name, row, widths)
            style = STYLES.get(problem.verdict, FAILURE_STYLE)
            text.stylize(style, len(name) + 2, len(name) + 2 + len(row[0]))
            lines.append(text)
        subtotal = record.bonus if bonus else record.totals
        if group or subtotal.possible:
            label = "bonus" if bonus else "required"
            lines.append("-" * width)
            lines.append(_sum(label, subtotal, width))
            if not bonus and any(problem.bonus for problem in record.problems):
                lines.append("")
    return lines


def _row(name: str, cells: list[str], widths: list[int]) -> Text:
    verdict, *numbers = cells
    columns = [name, verdict.ljust(widths[0])]
    columns += [cell.rjust(size) for cell, size in zip(numbers, widths[1:], strict=True)]
    return Text("  ".join(columns))


def _cells(problem: ProblemResult) -> list[str]:
    parts = [_component_cell(problem.components.get(name)) for name in COMPONENTS]
    return [str(problem.verdict), *parts, _fraction(problem.points)]


def _component_cell(component: ComponentResult | None) -> str:
    """Return earned/available, "-" not measured, "!" lost to the judge, blank if nothing is due."""
    if component is None:
        return "!"
    if component.verdict is Verdict.INTERNAL and not component.points.available:
        return "!"
    if not component.points.possible:
        return ""
    return _fraction(component.points)


def _fraction(part: Points) -> str:
    if not part.available and part.possible:
        return "-"
    return f"{points(part.earned)}/{points(part.available)}"


def _sum(label: str, part: Points, width: int) -> Text:
    earned, available = points(part.earned), points(part.available)
    line = f"{label} {earned} / {available}"
    if part.available != part.possible:
        line += f" available here ({points(part.possible)} in all)"
    text = Text(line.rjust(width))
    text.stylize("bold", width - len(line), width)
    return text


def _legend(record: GradeRecord, width: int) -> list[Line]:
    """Explain "-" and "!": one line a reason, naming the components it applies to."""
    reasons: dict[str, list[str]] = {}
    faults = False
    for problem in record.problems:
        for name in COMPONENTS:
            component = problem.components.get(name)
            cell = _component_cell(component)
            faults = faults or cell == "!"
            if cell == "-":
                reason = clean(component.reason or "no reason was recorded")
                names = reasons.setdefault(reason.removeprefix("not measured: "), [])
                if name not in names:
                    names.append(name)
    lines: list[Line] = []
    for reason, names in list(reasons.items())[:MAX_REASONS]:
        lines += wrap(f"not measured: {reason} ({', '.join(names)})", width, "-  ")
    if len(reasons) > MAX_REASONS:
        lines.append(f"-  and {len(reasons) - MAX_REASONS} more reasons, see --json")
    if faults:
        lines.append("!  fault of the judge: costs no points")
    return lines


# What was measured.


def _measurements(record: GradeRecord, width: int) -> list[Line]:
    """Return one row a problem with the figures of speed and memory, then why points were lost."""
    header = ("measured", "speed-up", "median", "naive", "spread", "extra memory", "naive")
    rows = [row for problem in record.problems if any((row := _figures(problem))[1:])]
    lines: list[Line] = []
    if rows:
        sizes = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
        for name, *cells in (header, *rows):
            columns = [cell.rjust(size) for cell, size in zip(cells, sizes[1:], strict=True)]
            lines.append("  ".join([fit(name, sizes[0]), *columns]))
    for problem in record.problems:
        for name in ("work", "speed", "memory"):
            component = problem.components.get(name)
            if component is not None and component.verdict not in EXPLAINED and component.reason:
                lead = f"{clean(problem.id, ID_LIMIT)} {name}: "
                lines += wrap(_loss(component), width, lead, DETAIL_INDENT)
    return lines


def _figures(problem: ProblemResult) -> tuple[str, ...]:
    """Return id, speed-up, times, spread and memory as text; a figure that is missing is blank."""
    speed, memory = (_shown_figures(problem.components.get(name)) for name in ("speed", "memory"))
    ratio, spread = finite(speed.get("speedup")), finite(speed.get("spread_percent"))
    return (
        clean(problem.id, ID_LIMIT),
        "" if ratio is None else f"{ratio:.1f}x" if abs(ratio) < 1e6 else f"{ratio:.1e}x",
        milliseconds(speed.get("median_ms")) or "",
        milliseconds(speed.get("naive_ms")) or "",
        "" if spread is None else f"{spread:.2g} %",
        byte_size(last_of(memory.get("extra_bytes"))) or "",
        byte_size(last_of(memory.get("naive_extra_bytes"))) or "",
    )


def _shown_figures(component: ComponentResult | None) -> Mapping[str, Any]:
    """Return the figures of a component that counts: a wrong kernel has no speed to show."""
    if component is None or component.verdict in EXPLAINED:
        return {}
    return component.figures


def _loss(component: ComponentResult) -> str:
    allowed = byte_size(last_of(component.figures.get("allowed_bytes")))
    limit = f" ({allowed})" if allowed and component.verdict is Verdict.FAIL else ""
    return clean(component.reason) + limit


def _messages(record: GradeRecord, width: int) -> list[list[str]]:
    """Return the messages of all problems, each a list of lines no wider than `width` cells."""
    found = []
    for problem in record.problems:
        all_causes = causes(problem)
        found += [message_lines(problem.id, cause, width) for cause in all_causes[:MAX_CAUSES]]
        rest = [check for cause in all_causes[MAX_CAUSES:] for check in cause.checks]
        if rest:
            names = ", ".join(clean(check.id, NAME_LIMIT) for check in rest)
            counted = plural(len(rest), "more check")
            line = f"{clean(problem.id, ID_LIMIT)}: and {counted}: {names}; see --json"
            found.append(wrap(line, width, "", "    "))
    return found


# The end of the report.


def _closing(record: GradeRecord, width: int) -> list[Line]:
    lines: list[Line] = []
    if record.interrupted:
        lines.append("interrupted: problems that are not shown were not graded")
    following = _next_step(record.problems)
    if following:
        lines += wrap(following, width, "next: ")
    return [*lines, _count(record.problems, width)]


def _count(problems: Sequence[ProblemResult], width: int) -> str:
    """Return the last line of the report, always one line: how many problems ended in which way."""
    counts = Counter(problem.verdict for problem in problems)
    shown = [Verdict.PASS, *(v for v in COUNT_ORDER if counts[v])]
    head, other = f"{plural(len(problems), 'problem')}: ", 0
    while True:
        words = [f"{counts[verdict]} {VERDICT_WORDS[verdict]}" for verdict in shown]
        line = head + ", ".join([*words, f"{other} other"] if other else words)
        if len(line) <= width or len(shown) == 1:
            return line
        other += counts[shown.pop()]


def _next_step(problems: Iterable[ProblemResult]) -> str | None:
    """Return the next step of the first problem that the student can still gain points on."""
    for problem in problems:
        done = problem.verdict in (Verdict.PASS, Verdict.NOT_MEASURED)
        if done and problem.points.earned >= problem.points.available:
            continue
        return clean(problem.next_step) or f"make grade P={clean(problem.id, ID_LIMIT)}"
    return None
