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
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from grader.base.text import clean, plural, points
from grader.report.cause_pages import ExplainError, look_up, sections
from grader.report.history import PastRun
from grader.report.html import measured
from grader.report.html.charts import Steps, steps
from grader.report.html.problem import problem_view
from grader.report.html.roofline import roofline
from grader.report.message import ID_LIMIT, NAME_LIMIT
from grader.report.score import (
    FAULT,
    INTERRUPTED,
    component_cell,
    faults,
    fraction,
    gaps,
    machine,
    next_step,
    run_words,
    sum_lines,
)
from grader.report.state import command, left_out
from grader.spec.grade_record import COMPONENTS, GradeRecord, Verdict

if TYPE_CHECKING:
    from jinja2 import Environment

_NONE: Mapping[str, bytes] = types.MappingProxyType({})
_MOST_RUNS = 20  # in the table of the history; the chart has all
_OF_A_CAUSE = ("What happened", "Why", "How to fix it")  # sections of what `explain` shows


@dataclasses.dataclass(frozen=True)
class About:
    """The text of one cause: its paragraphs, each whether it is code, in pieces of which every
    second one is a name of the code."""

    anchor: str
    title: str
    paragraphs: list[tuple[bool, list[str]]]


def render(
    record: GradeRecord, *, sources: Mapping[str, bytes] = _NONE, history: Sequence[PastRun] = ()
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
    headline, *more = sum_lines(record)
    problems = [problem_view(p, sources) for p in record.problems]
    environment_lines = [", ".join(machine(record.environment)), *record.environment.notes]
    return environment.get_template("page.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        run="   ".join(run_words(record)),
        headline=headline,
        more=more,
        setting=environment_lines,
        interrupted=INTERRUPTED if record.interrupted else "",
        next=next_step(record.problems) or "",
        parts=COMPONENTS,
        problems=problems,
        about=_about(cause["id"] for problem in problems for cause in problem["causes"]),
        gaps=gaps(record),
        anchors=[_anchor(p.id, n) for n, p in enumerate(record.problems)],
        fault=FAULT,
        has_fault=bool(faults(record)),
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

    environment = Environment(
        loader=PackageLoader("grader.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_plain,
    )
    environment.filters |= {"clean": clean, "fraction": fraction, "cell": component_cell}
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


def _anchor(id: str, number: int) -> str:
    """Return the name of a problem's section, whatever an id holds."""
    return id if re.fullmatch(r"p\d\d", id) else f"problem-{number}"


def _block(text: str) -> Markup:
    """Return the lines of a text, each cleaned but for the blanks that it begins with."""
    rows = text.split("\n")
    kept = (row[: len(row) - len(row.lstrip(" "))] + clean(row, 400) for row in rows)
    return Markup("\n").join(kept)


def _about(ids: Iterable[str]) -> dict[str, About]:
    """Return the texts of those causes that have one, by id; causes may share a text."""
    by_id: dict[str, About] = {}
    found = {}
    for id in ids:
        try:
            entry = look_up(id).entry
        except ExplainError:
            continue
        if entry is not None:
            parts = [p for name, part in sections(entry) if name in _OF_A_CAUSE for p in part]
            title = f"{entry.id}: {entry.text.title}"
            new = About(f"about-{len(by_id)}", title, list(map(_paragraph, parts)))
            found[id] = by_id.setdefault(entry.id, new)
    return found


def _paragraph(text: str) -> tuple[bool, list[str]]:
    is_code = text.startswith("    ")
    rows = [row.removeprefix("    ") for row in text.split("\n")]
    if is_code:
        return is_code, ["\n".join(rows)]
    return is_code, [Markup.escape(piece) for piece in text.split("`")]  # with their blanks


def _history(history: Sequence[PastRun]) -> tuple[list[tuple[str, ...]], Steps | None]:
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
        views.append((str(number), run.time, graded, shown, points(total)))
    return views[::-1][:_MOST_RUNS], steps(totals, most)
