"""One problem as the page tells it: verdict, causes, maps, checks, figures and source."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

from grader.base.text import clean, clean_lines, plural
from grader.report.html import grids, measured, source, trace
from grader.report.kernels import kernels_of
from grader.report.message import (
    HEADLINE_LIMIT,
    ID_LIMIT,
    NAME_LIMIT,
    ReportedCause,
    facts,
    head_line,
    lines_behind,
    remarks,
    trace_of,
    walk_as_due,
)
from grader.report.score import component_cell, fraction, losses, told_causes
from grader.report.tiles import is_as_due
from grader.spec.grade_record import COMPONENTS, CheckResult, Message, ProblemResult, Verdict

_APART = ("repeat", "line", "trace")  # facts that have a place of their own on the page
_QUIET = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED)


@dataclasses.dataclass(frozen=True)
class CauseView:
    """One cause as the page tells it."""

    id: str
    head: str
    internal: bool
    facts: list[tuple[str, str]]
    output: str
    remarks: list[tuple[str, str]]
    repeat: str
    walk: str
    maps: list[grids.Grid]
    trace: trace.TraceView | None


@dataclasses.dataclass(frozen=True)
class ProblemView:
    """One problem as the page tells it."""

    id: str
    title: str
    bonus: bool
    verdict: str
    tone: str
    cells: list[tuple[str, str]]
    points: str
    share: float
    remarks: list[str]
    causes: list[CauseView]
    rest: str
    checks: list[tuple[str, ...]]
    checks_passed: str
    figures: list[measured.Table]
    kernels: measured.Table | None
    map: grids.Grid | None
    source: source.SourceView | None
    file: str


def problem_view(problem: ProblemResult, sources: Mapping[str, bytes]) -> ProblemView:
    """Return what the page tells of a problem; `sources` are bytes by path in the submission."""
    told, rest = told_causes(problem)
    id = clean(problem.id, ID_LIMIT)
    available = problem.points.available
    passed = sum(check.verdict is Verdict.PASS for check in problem.checks)
    file = next((path for path in sources if path.split("/")[0] == problem.id), None)
    data = sources[file] if file is not None else b""
    same = hashlib.sha256(data).hexdigest() == problem.source_sha256
    maps = 0
    views = []
    for cause in told:  # the first cause has its map of errors, the others repeat it
        view = _cause(problem, cause, errors=maps == 0)
        maps += sum(map_.title.startswith("Error") for map_ in view.maps)
        views.append(view)
    return ProblemView(
        id=id,
        title=problem.title,
        bonus=problem.bonus,
        verdict=str(problem.verdict),
        tone=_tone(problem),
        cells=[(name, component_cell(problem.components.get(name))) for name in COMPONENTS],
        points=fraction(problem.points),
        share=round(100 * problem.points.earned / available, 1) if available else 0.0,
        remarks=_remarks(problem),
        causes=views,
        rest=f"and {plural(len(rest), 'more check')}: {', '.join(rest)}" if rest else "",
        checks=[_check(check) for check in problem.checks],
        checks_passed=f"{passed} of {plural(len(problem.checks), 'check')} passed",
        figures=measured.tables(problem),
        kernels=measured.kernel_table(problem),
        map=measured.work_map(problem),
        source=_source(problem, told, data) if file is not None and same else None,
        file=file or "",
    )


def _tone(problem: ProblemResult) -> str:
    if problem.verdict in _QUIET:
        full = problem.points.earned >= problem.points.available
        return "good" if problem.verdict is Verdict.PASS and full else "part"
    return "part" if problem.verdict is Verdict.NOT_IMPLEMENTED else "bad"


def _remarks(problem: ProblemResult) -> list[str]:
    """Return in sentences what the table does not say: what is lost, missing or unseen."""
    said = []
    if problem.verdict is Verdict.NOT_IMPLEMENTED and problem.message is not None:
        said.append(problem.message.headline)
    said += [f"{name}: {reason}" for name, reason in losses(problem).items()]
    if problem.unseen:
        said.append(problem.unseen)
    return said


def _check(check: CheckResult) -> tuple[str, ...]:
    earned = fraction(check.points) if check.points.possible else ""
    cases = f"{check.cases_passed}/{check.cases_total}"
    return clean(check.id, NAME_LIMIT), check.title, str(check.verdict), cases, earned


def _cause(problem: ProblemResult, cause: ReportedCause, *, errors: bool) -> CauseView:
    message = cause.message
    named, tiles = cause.diagnosis is not None, message.tiles
    maps = []
    walk = ""
    if tiles is not None and is_as_due(tiles) and not named:
        walk = walk_as_due(tiles)
    elif tiles is not None and not is_as_due(tiles):
        maps.append(grids.tile_grid(tiles, message.line))
    if errors and message.errors is not None:
        maps.append(grids.error_grid(message.errors, _rows_of(problem, message)))
    known, followed = facts(problem.id, cause), trace_of(cause)
    return CauseView(
        id=cause.id,
        head=head_line(cause),
        internal=cause.verdict is Verdict.INTERNAL,
        facts=[(label, value) for label, value in known if label not in _APART],
        output="\n".join(clean_lines(message.output)) if message.output else "",
        remarks=remarks(problem.id, cause),
        repeat=clean(message.repeat),
        walk=walk,
        maps=maps,
        trace=trace.trace_view(followed, lines_behind(cause, followed)) if followed else None,
    )


def _rows_of(problem: ProblemResult, message: Message) -> str:
    assert message.errors is not None
    output = message.errors.output
    if problem.id == "p02":
        return "rows"
    if output.startswith("dsink"):
        return "heads"
    return "keys" if output in ("dk", "dv") else "queries"


def _source(
    problem: ProblemResult, told: Sequence[ReportedCause], data: bytes
) -> source.SourceView:
    """Return the file with its wrong lines; where no line is known, the step's are shown."""
    notes: dict[int, list[str]] = {}
    open_steps = []
    for cause in told:
        if cause.message.line:
            shows = (
                cause.diagnosis is not None and cause.step is None
            )  # the mistake may be elsewhere
            note = f"{'seen here: ' if shows else ''}{head_line(cause)}"
            notes.setdefault(cause.message.line, []).append(note[:HEADLINE_LIMIT])
        elif cause.step is not None:
            open_steps.append(cause.step)
    for compiled in kernels_of(problem):
        refusal = compiled.kernel.refusal
        if refusal is not None and refusal.line:
            told_there = notes.setdefault(refusal.line, [])
            if not told_there:
                told_there.append(f"refused: {refusal.text}")
    return source.view(data, notes, open_steps)
