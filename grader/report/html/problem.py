"""What the page shows of one problem beside its record: causes, maps, figures and source."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from grader.base.text import clean_lines, plural
from grader.report.html import grids, measured, source
from grader.report.kernels import chip_lines, kernels_of
from grader.report.message import (
    HEADLINE_LIMIT,
    ReportedCause,
    facts,
    head_line,
    lines_behind,
    remarks,
    trace_of,
    walk_as_due,
)
from grader.report.score import losses, told_causes
from grader.report.tiles import is_as_due
from grader.spec.grade_record import Message, ProblemResult, Verdict

_APART = ("repeat", "line", "trace")  # facts that have a place of their own on the page
_QUIET = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED)


def problem_view(problem: ProblemResult, sources: Mapping[str, bytes]) -> dict[str, Any]:
    """Return what the template shows; `sources` are bytes by path in the submission."""
    told, rest = told_causes(problem)
    available = problem.points.available
    file = next((path for path in sources if path.split("/")[0] == problem.id), "")
    data = sources.get(file, b"")
    same = file and hashlib.sha256(data).hexdigest() == problem.source_sha256
    causes: list[dict[str, Any]] = []
    for cause in told:  # the first cause has its map of errors, the others repeat it
        shown = (map_ for earlier in causes for map_ in earlier["maps"])
        first = not any(map_.title.startswith("Error") for map_ in shown)
        causes.append(_cause(problem, cause, errors=first))
    return {
        "record": problem,
        "tone": _tone(problem),
        "share": round(100 * problem.points.earned / available, 1) if available else 0.0,
        "remarks": _remarks(problem),
        "causes": causes,
        "rest": f"and {plural(len(rest), 'more check')}: {', '.join(rest)}" if rest else "",
        "figures": measured.tables(problem),
        "kernels": measured.kernel_table(problem),
        "map": measured.work_map(problem),
        "source": _source(problem, told, data) if same else None,
        "file": file,
    }


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
    return said + [problem.unseen] * bool(problem.unseen) + chip_lines(problem)


def _cause(problem: ProblemResult, cause: ReportedCause, *, errors: bool) -> dict[str, Any]:
    message, trace = cause.message, trace_of(cause)
    tiles = message.tiles
    as_due = tiles is not None and is_as_due(tiles)
    known = facts(problem.id, cause)
    shown = [(label, value) for label, value in known if label not in _APART]
    if as_due and cause.diagnosis is None:
        shown.append(("walk", walk_as_due(tiles)))
    maps = [] if tiles is None or as_due else [grids.tile_grid(tiles, message.line)]
    if errors and message.errors is not None:
        maps.append(grids.error_grid(message.errors, _rows_of(problem, message)))
    return {
        "id": cause.id,
        "head": head_line(cause),
        "internal": cause.verdict is Verdict.INTERNAL,
        "facts": remarks(problem.id, cause) + shown,
        "output": "\n".join(clean_lines(message.output)) if message.output else "",
        "repeat": dict(known).get("repeat", ""),
        "maps": maps,
        "trace": trace,
        "lines": lines_behind(cause, trace) if trace else (),
    }


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
        if cause.message.line:  # without a step, the mistake may be elsewhere
            lead = "seen here: " if cause.diagnosis is not None and cause.step is None else ""
            note = f"{lead}{head_line(cause)}"
            notes.setdefault(cause.message.line, []).append(note[:HEADLINE_LIMIT])
        elif cause.step is not None:
            open_steps.append(cause.step)
    for compiled in kernels_of(problem):
        refusal = compiled.kernel.refusal
        if refusal is not None and refusal.line:
            notes.setdefault(refusal.line, [f"refused: {refusal.text}"])
    return source.view(data, notes, open_steps)
