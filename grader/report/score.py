"""Points, reasons and the setting of a run in words, shared by all views of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from grader.base.text import byte_size, clean, points, wrap
from grader.report.message import ID_LIMIT, NAME_LIMIT, ReportedCause, causes
from grader.spec.grade_record import (
    COMPONENTS,
    ComponentResult,
    Environment,
    GradeRecord,
    MemoryFigures,
    Points,
    ProblemResult,
    SpeedFigures,
    Verdict,
    WorkFigures,
)
from grader.spec.problem import load_problem, problem_ids

_Figures = TypeVar("_Figures", SpeedFigures, MemoryFigures, WorkFigures)
MAX_CAUSES = 3
FAULT = "fault of the judge: costs no points"
INTERRUPTED = "interrupted: what was not run has the verdict skipped"
# Verdicts of components whose loss the table, its legend or a message explains.
EXPLAINED = (
    Verdict.SKIPPED,
    Verdict.NOT_MEASURED,
    Verdict.REJECTED,
    Verdict.NOT_IMPLEMENTED,
)


def component_cell(component: ComponentResult | None) -> str:
    """Return earned/available, "-" not measured, "!" lost to the judge, blank if nothing is due."""
    if component is None:
        return "!"
    if component.verdict is Verdict.INTERNAL and not component.points.available:
        return "!"
    if not component.points.possible:
        return ""
    return fraction(component.points)


def fraction(part: Points) -> str:
    """Return earned/available, or "-" where nothing is available."""
    if not part.available and part.possible:
        return "-"
    return f"{points(part.earned)}/{points(part.available)}"


def sum_line(label: str, part: Points) -> str:
    """Return a total: "required 62.5 of 70 points measured here (100 in all)"."""
    return f"{label} {points(part.earned)} of {measured(part.available, part.possible)}"


def measured(available: float, possible: float) -> str:
    """Return the points that could be earned: "100 points", or fewer "measured here"."""
    words = f"{points(available)} points"
    return words if available == possible else f"{words} measured here ({points(possible)} in all)"


def sum_lines(record: GradeRecord) -> list[str]:
    """Return the totals, without that of required points if only bonus problems were graded."""
    parts = {"required": record.totals, "bonus": record.bonus}
    lines = [sum_line(label, part) for label, part in parts.items() if part.possible]
    return lines or [sum_line("required", record.totals)]


def gaps(record: GradeRecord) -> list[str]:
    """Return why components are not measured: each reason with their names."""
    reasons: dict[str, list[str]] = {}
    for problem in record.problems:
        for name in COMPONENTS:
            component = problem.components.get(name)
            if component is not None and component_cell(component) == "-":
                reason = clean(component.reason or "no reason was recorded")
                reasons.setdefault(reason.removeprefix("not measured: "), []).append(name)
    return [
        f"not measured: {reason} ({', '.join(dict.fromkeys(names))})"
        for reason, names in reasons.items()
    ]


def figures_of(problem: ProblemResult, kind: type[_Figures]) -> _Figures | None:
    """Return the figures of a kind, None if there are none or their component does not count.

    The speed of a wrong kernel, for one, is not shown.
    """
    counted = (c.figures for c in problem.components.values() if c.verdict not in EXPLAINED)
    return next((figures for figures in counted if isinstance(figures, kind)), None)


def losses(problem: ProblemResult) -> dict[str, str]:
    """Return why work, speed and memory lost points, unless a message says so."""
    found = {}
    for name in ("work", "speed", "memory"):
        component = problem.components.get(name)
        if component is not None and component.verdict not in EXPLAINED and component.reason:
            found[name] = _loss(component)
    return found


def _loss(component: ComponentResult) -> str:
    share = f"{points(component.points.earned)} of {points(component.points.available)}: "
    limit = ""
    if isinstance(component.figures, MemoryFigures) and component.verdict is Verdict.FAIL:
        pairs = zip(component.figures.extra_bytes, component.figures.allowed_bytes, strict=False)
        got, allowed = next(((e, a) for e, a in pairs if e > a), (None, None))
        if got is not None:
            limit = f" (got {byte_size(got)}, allowed {byte_size(allowed)})"
    return (share if component.points.available else "") + clean(component.reason) + limit


def shown_causes(problem: ProblemResult) -> tuple[list[ReportedCause], list[str]]:
    """Return the causes that a report shows in full, and the ids of the checks of the others."""
    found = causes(problem)
    return found[:MAX_CAUSES], [c.id for cause in found[MAX_CAUSES:] for c in cause.checks]


def faults(record: GradeRecord) -> list[str]:
    """Return the ids of the problems with a fault of the judge."""
    return [problem.id for problem in record.problems if _has_fault(problem)]


def _has_fault(problem: ProblemResult) -> bool:
    parts = [problem.components.get(name) for name in COMPONENTS]
    verdicts = [problem.verdict, *(part.verdict for part in (*parts, *problem.checks) if part)]
    return Verdict.INTERNAL in verdicts or None in parts


def is_counted(problem: ProblemResult) -> bool:
    """Whether any part of a problem could be measured here, so that it passed or failed.

    Formats that know no third state leave such a problem out.
    """
    return bool(problem.points.available) or problem.verdict is not Verdict.NOT_MEASURED


def is_full(problem: ProblemResult) -> bool:
    """Whether all points were earned that were available here."""
    return problem.verdict is Verdict.PASS and problem.points.earned >= problem.points.available


def mode(record: GradeRecord) -> str:
    """Return the mode and what it means: "mode local: not for credit"."""
    return f"mode {record.mode}" + (": not for credit" if record.mode != "official" else "")


def run_words(record: GradeRecord) -> list[str]:
    """Return the first words of a report: mode, seed and submission."""
    seed, submission = clean(record.seed, NAME_LIMIT), clean(record.submission, 60)
    return [mode(record), f"seed {seed}", f"submission {submission}"]


def next_step(problems: Sequence[ProblemResult]) -> str | None:
    """Return the next step in the first problem that can still gain points.

    Without one, return the problem after the last of these, None if that is the last of all.
    """
    for problem in problems:
        done = problem.verdict in (Verdict.PASS, Verdict.NOT_MEASURED)
        if done and problem.points.earned >= problem.points.available:
            continue
        return clean(problem.next_step) or f"make grade P={clean(problem.id, ID_LIMIT)}"
    return _problem_after(problems[-1].id) if problems else None


def next_lines(problems: Sequence[ProblemResult], width: int) -> list[str]:
    """Return the next step as lines of `width` cells; its command begins a line if it wraps."""
    following = next_step(problems)
    if not following:
        return []
    action, semicolon, command = following.rpartition("; ")
    lines = wrap(following, width, "next: ")
    if not semicolon or len(lines) == 1:
        return lines
    return [*wrap(f"{action};", width, "next: "), *wrap(command, width, "      ")]


def _problem_after(id: str) -> str | None:
    later = [other for other in problem_ids() if other > id]
    if not later or id not in problem_ids():
        return None
    return f"{later[0]}, {load_problem(later[0]).title}: problems/{later[0]}/README.md"


def machine(environment: Environment) -> list[str]:
    """Return the device and the versions of a run, each in a few words."""
    name = clean(environment.device_name, 60)
    words = ["device " + environment.device + (f" ({name})" if environment.device != name else "")]
    for tool in ("torch", "triton", "python"):
        version = clean(getattr(environment, tool), 30)
        words.append(f"{tool} {version}" if version else f"{tool} not found")
    return words
