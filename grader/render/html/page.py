"""The report to look at: a record and the sources it was made from, as one file for a browser.

Nothing is loaded from anywhere: style and script are in the file, and its Content-Security-Policy
allows these two by their hashes and nothing else. Without the script everything can be read; it
adds the copy buttons and tells of the cell under the pointer. Text comes first, and every chart and
map has its numbers as a table or as letters beside it.

All text is cleaned of what moves or hides text, and escaped, when it is put into the page, whether
a template thinks of it or not: see `_plain`.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import re
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from grader.history import Run
from grader.model import (
    COMPONENTS,
    GradeRecord,
    Message,
    ProblemResult,
    Verdict,
)
from grader.render.html import grids, measured, source
from grader.render.html.charts import Steps, steps
from grader.render.html.roofline import roofline
from grader.render.kernels import kernels_of
from grader.render.message import (
    HEADLINE_LIMIT,
    ID_LIMIT,
    NAME_LIMIT,
    WALK_AS_DUE,
    Cause,
    facts,
    head_line,
    remarks,
)
from grader.render.score import (
    FAULT,
    INTERRUPTED,
    component_cell,
    faults,
    fraction,
    losses,
    machine,
    next_step,
    reasons_of_gaps,
    run_words,
    sum_line,
    told_causes,
)
from grader.render.text import clean, clean_lines, plural, points
from grader.render.tiles import is_as_due

if TYPE_CHECKING:
    from jinja2 import Environment

_NONE: Mapping[str, bytes] = types.MappingProxyType({})
_MOST_RUNS = 20  # in the table of the history; the chart has all
_QUIET = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED)


@dataclasses.dataclass(frozen=True)
class CauseView:
    """One cause as the page tells it."""

    head: str
    internal: bool
    facts: list[tuple[str, str]]
    output: str
    remarks: list[tuple[str, str]]
    repeat: str
    walk: str
    maps: list[grids.Grid]


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
    map: grids.Grid | None
    source: source.SourceView | None
    file: str


@dataclasses.dataclass(frozen=True)
class RunView:
    """One run of the history."""

    number: int
    time: str
    graded: str
    points: str
    total: str


def render(
    record: GradeRecord, *, sources: Mapping[str, bytes] = _NONE, history: Sequence[Run] = ()
) -> str:
    """Return the page.

    Args:
        record: what is told.
        sources: the bytes that were graded, by path in the submission ("p04/causal_attention.py").
            Shown are those that have the hash of the record.
        history: earlier runs and this one, oldest first.
    """
    environment = _environment()
    style = _asset(environment, "style.css") + _pygments_style()
    script = _asset(environment, "script.js")
    runs, chart = _history(history)
    environment_lines = [", ".join(machine(record.environment)), *record.environment.notes]
    return environment.get_template("page.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        run="   ".join(run_words(record)),
        required=sum_line("required", record.totals),
        bonus=sum_line("bonus", record.bonus) if record.bonus.possible else "",
        setting=environment_lines,
        interrupted=INTERRUPTED if record.interrupted else "",
        next=next_step(record.problems) or "",
        parts=COMPONENTS,
        problems=[_problem(p, sources) for p in record.problems],
        gaps=[
            f"not measured: {reason} ({', '.join(names)})"
            for reason, names in reasons_of_gaps(record).items()
        ],
        anchors=[_anchor(p.id, n) for n, p in enumerate(record.problems)],
        fault=FAULT,
        has_fault=bool(faults(record)),
        markup=Markup.escape,
        block=_block,
        charts=measured.charts(record),
        roof=roofline(record),
        runs=runs,
        older=max(0, len(history) - _MOST_RUNS),
        run_chart=chart,
    )


@functools.cache
def _environment() -> Environment:
    # Imported here, for most commands make no page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("grader.render.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )


def _plain(value: Any) -> Any:
    """Clean every text that a template puts into the page; what is markup already stays."""
    return clean(value, 600) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


@functools.cache
def _pygments_style() -> str:
    """Return the rules of Pygments' classes, in the variables of the style sheet."""
    kinds = {"k": "plum-ink", "s": "green-ink", "c": "soft", "m": "blue-ink", "n": "ink"}
    kinds |= {"o": "ink", "p": "ink"}
    groups = {
        "k": "k kc kd kn kp kr kt ow",
        "s": "s s1 s2 sa sb sc sd se sh si sr ss sx dl",
        "c": "c c1 ch cm cp cs",
        "m": "m mb mf mh mi mo il",
    }
    rules = []
    for kind, names in groups.items():
        selector = ",".join(f".src .{name}" for name in names.split())
        rules.append(f"{selector}{{color:var(--{kinds[kind]})}}")
    rules.append(".src .nf,.src .nd,.src .nc{color:var(--orange-ink)}")
    return "\n".join(rules) + "\n"


def _hash(text: str) -> Markup:
    digest = hashlib.sha256(text.encode()).digest()
    return Markup(f"'sha256-{base64.b64encode(digest).decode()}'")


def _problem(problem: ProblemResult, sources: Mapping[str, bytes]) -> ProblemView:
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
        map=measured.work_map(problem),
        source=_source(problem, told, data) if file is not None and same else None,
        file=file or "",
    )


def _anchor(id: str, number: int) -> str:
    """Return the name of a problem's section, whatever an id holds."""
    return id if re.fullmatch(r"p\d\d", id) else f"problem-{number}"


def _block(text: str) -> Markup:
    """Return the lines of a text, each cleaned but for the blanks that it begins with."""
    rows = text.split("\n")
    kept = (row[: len(row) - len(row.lstrip(" "))] + clean(row, 400) for row in rows)
    return Markup("\n").join(kept)


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


def _check(check: Any) -> tuple[str, ...]:
    earned = fraction(check.points) if check.points.possible else ""
    cases = f"{check.cases_passed}/{check.cases_total}"
    return clean(check.id, NAME_LIMIT), check.title, str(check.verdict), cases, earned


def _cause(problem: ProblemResult, cause: Cause, *, errors: bool) -> CauseView:
    message = cause.message
    named, tiles = cause.diagnosis is not None, message.tiles
    maps = []
    walk = ""
    if tiles is not None and is_as_due(tiles) and not named:
        walk = WALK_AS_DUE
    elif tiles is not None and not is_as_due(tiles):
        maps.append(grids.tile_grid(tiles, message.line))
    if errors and message.errors is not None:
        maps.append(grids.error_grid(message.errors, _rows_of(problem, message)))
    known = facts(problem.id, cause)
    return CauseView(
        head=head_line(cause),
        internal=cause.verdict is Verdict.INTERNAL,
        facts=[(label, value) for label, value in known if label != "repeat"],
        output="\n".join(clean_lines(message.output)) if message.output else "",
        remarks=remarks(problem.id, cause),
        repeat=clean(message.repeat),
        walk=walk,
        maps=maps,
    )


def _rows_of(problem: ProblemResult, message: Message) -> str:
    assert message.errors is not None
    output = message.errors.output
    if problem.id == "p02":
        return "rows"
    if output.startswith("dsink"):
        return "heads"
    return "keys" if output in ("dk", "dv") else "queries"


def _source(problem: ProblemResult, told: Sequence[Cause], data: bytes) -> source.SourceView:
    """Return the file with its wrong lines; where no line is known, the step's are shown."""
    notes: dict[int, list[str]] = {}
    open_steps = []
    for cause in told:
        if cause.message.line:
            notes.setdefault(cause.message.line, []).append(head_line(cause)[:HEADLINE_LIMIT])
        elif cause.step is not None:
            open_steps.append(cause.step)
    for compiled in kernels_of(problem):
        refusal = compiled.kernel.refusal
        if refusal is not None and refusal.line:
            told_there = notes.setdefault(refusal.line, [])
            if not told_there:
                told_there.append(f"refused: {refusal.text}")
    return source.view(data, notes, open_steps)


def _history(history: Sequence[Run]) -> tuple[list[RunView], Steps | None]:
    """Return the last runs, the newest first, and the chart of the points after each run.

    A run of some problems leaves the points of the others as they were.
    """
    latest: dict[str, tuple[float, float]] = {}
    totals, views, most = [], [], 0.0
    for number, run in enumerate(history, start=1):
        latest |= run.points
        total = round(sum(earned for earned, _ in latest.values()), 6)
        most = max(most, sum(available for _, available in latest.values()))
        totals.append(total)
        here = sum(earned for earned, _ in run.points.values())
        available = sum(available for _, available in run.points.values())
        graded = "all problems" if len(run.points) > 8 else ", ".join(run.points)
        shown = f"{points(here)}/{points(available)}"
        views.append(RunView(number, run.time, graded, shown, points(total)))
    return views[::-1][:_MOST_RUNS], steps(totals, most)
