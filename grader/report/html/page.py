"""The report for a browser: one file with a record and the sources that were graded.

The page loads no other file: style and script are in it, and its Content-Security-Policy allows
only these two, by their hashes. Without the script all text can be read; the script adds the copy
buttons, describes the cell under the pointer, and shows the tiles of a program one by one. Every
chart and map has its numbers as a table or as letters beside it.

All text is cleaned of characters that move or hide text, and escaped, whatever the template does:
see `_plain`.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from grader.base.text import clean, clean_lines, plural, points
from grader.report import score
from grader.report.cause_pages import ExplainError, look_up, sections
from grader.report.history import PastRun
from grader.report.html import grids, measured, source
from grader.report.html.charts import roofline, steps
from grader.report.html.film import film, no_film
from grader.report.html.predicted import predicted
from grader.report.kernels import chip_lines, kernels_of
from grader.report.message import (
    HEADLINE_LIMIT,
    ID_LIMIT,
    NAME_LIMIT,
    NOT_WRONG,
    ReportedCause,
    facts,
    head_line,
    lines_behind,
    remarks,
    trace_of,
    walk_as_due,
)
from grader.report.score import figures_of, losses, shown_causes
from grader.report.state import command, left_out
from grader.report.tiles import is_as_due
from grader.spec.grade_record import (
    COMPONENTS,
    GradeRecord,
    Message,
    ProblemResult,
    Verdict,
    WorkFigures,
)

if TYPE_CHECKING:
    from jinja2 import Environment

_MOST_RUNS = 20  # in the table of the history; the chart has all
_OF_A_CAUSE = ("What happened", "Why", "How to fix it")  # sections of `explain`'s page


def render(
    record: GradeRecord, *, sources: Mapping[str, bytes] = {}, history: Sequence[PastRun] = ()
) -> str:
    """Return the page.

    Args:
        record: the grade record to show.
        sources: the bytes that were graded, by path in the submission ("p04/causal_attention.py").
            The page shows those whose hash is in the record.
        history: earlier runs and this one, oldest first.
    """
    environment = _environment()
    style = _asset(environment, "style.css") + _pygments_style()
    script = _asset(environment, "script.js")
    runs, chart = _history(history)
    headline, *more = score.sum_lines(record)
    problems = [problem_view(p, sources) for p in record.problems]
    environment_lines = [", ".join(score.machine(record.environment)), *record.environment.notes]
    return environment.get_template("page.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        run="   ".join(score.run_words(record)),
        headline=headline,
        more=more,
        setting=environment_lines,
        interrupted=score.INTERRUPTED if record.interrupted else "",
        next=score.next_step(record.problems) or "",
        parts=COMPONENTS,
        problems=problems,
        about=_about(cause["id"] for problem in problems for cause in problem["causes"]),
        gaps=score.gaps(record),
        anchors=[_anchor(p.id, n) for n, p in enumerate(record.problems)],
        fault=score.FAULT,
        has_fault=bool(score.faults(record)),
        charts=measured.charts(record),
        roof=roofline(record),
        runs=runs,
        older=max(0, len(history) - _MOST_RUNS),
        run_chart=chart,
    )


@functools.cache
def _environment() -> Environment:
    # A late import: most commands make no page.
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("grader.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )
    environment.filters |= {
        "clean": clean,
        "fraction": score.fraction,
        "cell": score.component_cell,
    }
    environment.globals |= {
        "markup": Markup.escape,
        "block": _block,
        "plural": plural,
        "left_out": left_out,
        "command": command,
        "Verdict": Verdict,
        "ID_LIMIT": ID_LIMIT,
        "NAME_LIMIT": NAME_LIMIT,
    }
    return environment


def _plain(value: Any) -> Any:
    """Clean a text that a template puts into the page; leave markup as it is."""
    return clean(value, 600) if isinstance(value, str) and not isinstance(value, Markup) else value


def _asset(environment: Environment, name: str) -> str:
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


@functools.cache
def _pygments_style() -> str:
    """Return CSS rules for Pygments' classes, with the colour variables of the style sheet."""
    classes = {
        "plum-ink": "k kc kd kn kp kr kt ow",
        "green-ink": "s s1 s2 sa sb sc sd se sh si sr ss sx dl",
        "soft": "c c1 ch cm cp cs",
        "blue-ink": "m mb mf mh mi mo il",
        "orange-ink": "nf nd nc",
    }
    selectors = {
        ink: ",".join(f".src .{name}" for name in names.split()) for ink, names in classes.items()
    }
    return "".join(f"{chosen}{{color:var(--{ink})}}\n" for ink, chosen in selectors.items())


def _hash(text: str) -> Markup:
    digest = hashlib.sha256(text.encode()).digest()
    return Markup(f"'sha256-{base64.b64encode(digest).decode()}'")


def _anchor(id: str, number: int) -> str:
    """Return the anchor of a problem's section; an unusual id is replaced by its number."""
    return id if re.fullmatch(r"p\d\d", id) else f"problem-{number}"


def _block(text: str) -> Markup:
    """Return a text with each line cleaned except for its indentation."""
    rows = text.split("\n")
    kept = (row[: len(row) - len(row.lstrip(" "))] + clean(row, 400) for row in rows)
    return Markup("\n").join(kept)


def _about(ids: Iterable[str]) -> dict[str, SimpleNamespace]:
    """Return the explanations of causes, by id; ids without one are left out, others may share one.

    A paragraph is a pair: whether it is code, and its pieces, of which every second is a code span.
    """
    by_id: dict[str, SimpleNamespace] = {}
    found = {}
    for id in ids:
        try:
            entry = look_up(id).entry
        except ExplainError:
            continue
        if entry is not None:
            parts = [p for name, part in sections(entry) if name in _OF_A_CAUSE for p in part]
            new = SimpleNamespace(
                anchor=f"about-{len(by_id)}",
                title=f"{entry.id}: {entry.text.title}",
                paragraphs=list(map(_paragraph, parts)),
            )
            found[id] = by_id.setdefault(entry.id, new)
    return found


def _paragraph(text: str) -> tuple[bool, list[str]]:
    if text.startswith("    "):
        return True, [re.sub("^    ", "", text, flags=re.MULTILINE)]
    return False, [Markup.escape(piece) for piece in text.split("`")]  # with their blanks


def _history(history: Sequence[PastRun]) -> tuple[list[tuple[str, ...]], SimpleNamespace | None]:
    """Return rows of the last runs, newest first, and the chart of the points after each run.

    A run of some problems does not change the points of the others.
    """
    latest: dict[str, tuple[float, float]] = {}
    totals, views, most = [], [], 0.0
    for number, run in enumerate(history, start=1):
        latest |= run.points
        totals.append(round(sum(earned for earned, _ in latest.values()), 6))
        most = max(most, sum(available for _, available in latest.values()))
        here = sum(earned for earned, _ in run.points.values())
        available = sum(possible for _, possible in run.points.values())
        graded = "all problems" if len(run.points) > 8 else ", ".join(run.points)
        shown = f"{points(here)}/{points(available)}"
        views.append((str(number), run.time, graded, shown, points(totals[-1])))
    return views[::-1][:_MOST_RUNS], steps(totals, most)


_APART = ("repeat", "line", "trace")  # facts shown elsewhere on the page


def problem_view(problem: ProblemResult, sources: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the view of a problem for the template; `sources` are bytes by submission path."""
    reported, rest = shown_causes(problem)
    available = problem.points.available
    file = next((path for path in sources if path.split("/")[0] == problem.id), "")
    data = sources.get(file, b"")
    same = file and hashlib.sha256(data).hexdigest() == problem.source_sha256
    causes: list[dict[str, Any]] = []
    for cause in reported:  # only the first cause with a map of errors shows it
        shown = (map_ for earlier in causes for map_ in earlier["maps"])
        first = not any(map_.title.startswith("Error") for map_ in shown)
        causes.append(_cause(problem, cause, data if same else b"", errors=first))
    work = figures_of(problem, WorkFigures) or WorkFigures()
    has_film = any(cause["film"] for cause in causes)
    right = work.trace if not has_film else None
    return {
        "record": problem,
        "tone": _tone(problem),
        "share": round(100 * problem.points.earned / available, 1) if available else 0.0,
        "remarks": _remarks(problem),
        "causes": causes,
        "rest": f"and {plural(len(rest), 'more check')}: {', '.join(rest)}" if rest else "",
        "figures": measured.tables(problem),
        "kernels": measured.kernel_table(problem),
        "predicted": predicted(problem),
        "map": grids.tile_grid(work.tiles) if work.tiles is not None and work.tiles.rows else None,
        "film": film(right, (work.tiles,), data if same else b"") if right else None,
        "no_film": no_film(problem) if not has_film and right is None else "",
        "source": _source(problem, reported, data) if same else None,
        "file": file,
    }


def _tone(problem: ProblemResult) -> str:
    if problem.verdict in NOT_WRONG:
        full = problem.points.earned >= problem.points.available
        return "good" if problem.verdict is Verdict.PASS and full else "part"
    return "part" if problem.verdict is Verdict.NOT_IMPLEMENTED else "bad"


def _remarks(problem: ProblemResult) -> list[str]:
    """Return sentences on lost points, missing code, unseen faults and other chips."""
    said = []
    if problem.verdict is Verdict.NOT_IMPLEMENTED and problem.message is not None:
        said.append(problem.message.headline)
    said += [f"{name}: {reason}" for name, reason in losses(problem).items()]
    return said + [problem.unseen] * bool(problem.unseen) + chip_lines(problem)


def _cause(
    problem: ProblemResult, cause: ReportedCause, data: bytes, *, errors: bool
) -> dict[str, Any]:
    message, trace = cause.message, trace_of(cause)
    tiles = message.tiles
    of_checks = (tiles, *(check.message.tiles for check in cause.checks if check.message))
    as_due = tiles is not None and is_as_due(tiles)
    known = facts(problem.id, cause)
    shown = [(label, value) for label, value in known if label not in _APART]
    if as_due and cause.diagnosis is None:
        shown.append(("pairs", walk_as_due(tiles)))
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
        "film": trace and film(trace, of_checks, data, lines_behind(cause, trace), message.line),
    }


def _rows_of(problem: ProblemResult, message: Message) -> str:
    assert message.errors is not None
    output = message.errors.output
    if problem.id == "p02":
        return "rows"
    if output.startswith("dsink"):
        return "heads"
    return "keys" if output in ("dk", "dv") else "queries"


def _source(problem: ProblemResult, found: Sequence[ReportedCause], data: bytes) -> SimpleNamespace:
    """Return the view of the file with notes on wrong lines; without a line the step is shown."""
    notes: dict[int, list[str]] = {}
    open_steps = []
    for cause in found:
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
