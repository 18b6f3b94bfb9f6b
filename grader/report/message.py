"""Renders a failure for students: a headline with an id, the place, evidence, note and help.

The report and pytest's output show the same text.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from grader.base.text import clean, clean_lines, wrap
from grader.report.state import command, first_wrong, state_facts
from grader.report.tiles import is_as_due, tile_lines
from grader.spec.findings import CauseFound, Finding
from grader.spec.grade_record import (
    CheckResult,
    Diagnosis,
    Message,
    ProblemResult,
    TileMap,
    Verdict,
)
from grader.spec.trace_record import SourceLine, TraceRecord

ID_LIMIT = 12
NAME_LIMIT = 40
HEADLINE_LIMIT = 200
NOT_WRONG = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED)
# Checks without a message: nothing is wrong, or the table and the next step say it.
NOT_REPORTED = (*NOT_WRONG, Verdict.NOT_IMPLEMENTED)


@dataclasses.dataclass(frozen=True)
class ReportedCause:
    """One cause and the checks that show it; `checks` is empty for a problem's own message.

    `not_run` are checks with a case that was not run because of this or another failure. `hint`
    is a help for a cause without a name.
    """

    id: str
    verdict: Verdict
    title: str
    message: Message
    step: int | None = None
    diagnosis: Diagnosis | None = None
    checks: tuple[CheckResult, ...] = ()
    not_run: tuple[CheckResult, ...] = ()
    hint: str | None = None

    @property
    def label(self) -> str:
        """The beginning of the message: "error P04-DIAGONAL", or "internal" and an id."""
        kind = "internal" if self.verdict is Verdict.INTERNAL else "error"
        return f"{kind} {clean(self.id, 60)}"


def causes(problem: ProblemResult) -> list[ReportedCause]:
    """Return the causes of a problem's failures: its own message, then its checks merged by cause.

    Checks share a cause when their diagnosis has the same id or, without one, when the submission
    ended in the same way at the same line (one exception in every check is one report). Wrong
    numbers in the plain case explain those in every other check, whose cases are variants of it.
    """
    found: list[ReportedCause] = []
    if problem.message is not None and problem.verdict is not Verdict.NOT_IMPLEMENTED:
        identity = _error_id(problem.id, str(problem.verdict))
        message = problem.message
        found.append(ReportedCause(identity, problem.verdict, problem.title, message, message.step))
    merged: dict[tuple[str, ...], list[CheckResult]] = {}
    not_run: list[CheckResult] = []
    for check in problem.checks:
        if check.message is not None and check.message.not_run:
            not_run.append(check)
            continue
        is_shown = problem.message is not None and check.verdict is problem.verdict
        if check.verdict not in NOT_REPORTED and not (is_shown and check.message is None):
            merged.setdefault(_merge_key(check, problem), []).append(check)
    for checks in merged.values():
        found.append(cause_of(problem, checks))
    if not_run and found:
        found[0] = dataclasses.replace(found[0], not_run=tuple(not_run))
    return found


def cause_of(problem: ProblemResult, checks: Sequence[CheckResult]) -> ReportedCause:
    """Return the cause that `checks` show, in the words of the first of them."""
    first = checks[0]
    if first.diagnosis is not None:
        identity, title = first.diagnosis.id, first.diagnosis.title
    else:
        identity, title = _error_id(problem.id, _kind(first.verdict, first.id)), first.title
    return ReportedCause(
        identity,
        first.verdict,
        title,
        first.message or Message(headline=title),
        first.step,
        first.diagnosis,
        tuple(checks),
        hint=_what_is_right(problem, first),
    )


def headline_of(cause: ReportedCause) -> str:
    """Return the headline of a message: the title of the cause if it is named.

    For unnamed wrong numbers, the first wrong variable of a traced program says more than they do.
    """
    headline = cause.diagnosis.title if cause.diagnosis else cause.message.headline
    trace = trace_of(cause)
    if cause.diagnosis is None and cause.message.first is not None and trace is not None:
        headline = first_wrong(trace) or headline
    return clean(headline, HEADLINE_LIMIT) or clean(cause.title, HEADLINE_LIMIT)


def _what_is_right(problem: ProblemResult, check: CheckResult) -> str | None:
    """Return a hint from a check that passes, where out or lse alone is wrong."""
    passed = {c.id for c in problem.checks if c.verdict is Verdict.PASS}
    headline = check.message.headline if check.message else ""
    if check.id == "plain" and headline == "out is wrong" and "lse" in passed:
        return (
            "lse is right, and with it the scores, the maximum and the sum: look at the weights"
            " times v, at what rescales acc, and at the division"
        )
    if check.id == "lse" and headline == "lse is wrong" and "plain" in passed:
        return (
            "out is right: look at how lse is made of maximum and sum, in which units, where it is"
            " stored, and for a factor that acc and the sum share"
        )
    return None


def _merge_key(check: CheckResult, problem: ProblemResult) -> tuple[str, ...]:
    fault = str(check.verdict is Verdict.INTERNAL)
    if check.diagnosis is not None:
        return (fault, "diagnosis", check.diagnosis.id)
    if check.message is not None and check.message.first is None:  # no wrong number: one event
        return (fault, "ending", check.verdict, str(check.message.line), event(check.message))
    plain = next((c for c in problem.checks if c.id == "plain"), None)
    if plain is not None and _is_wrong_number(plain) and plain.message is not None:
        return (fault, "plain", plain.message.headline)
    if check.message is not None and check.message.headline == "lse is wrong":
        return (fault, "lse")
    return (fault, "check", check.id)


def event(message: Message) -> str:
    """Return the headline with numbers masked: one exception names other sizes in each case."""
    return re.sub(r"\d+", "N", message.headline)


def _is_wrong_number(check: CheckResult) -> bool:
    wrong = check.message is not None and check.message.first is not None
    return check.diagnosis is None and wrong and check.verdict is Verdict.FAIL


def _error_id(problem_id: str, name: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "-", clean(f"{problem_id}-{name}", 60).upper()).strip("-")


def _kind(verdict: Verdict, check_id: str) -> str:
    """Return the name of a failure: of a wrong result its check, of any other call its ending."""
    return check_id if verdict is Verdict.FAIL else str(verdict)


def message_lines(problem_id: str, cause: ReportedCause, width: int) -> list[str]:
    """Return one cause as lines no wider than `width` cells."""
    rows = wrap(head_line(cause), width, "", "    ")
    for label, value in facts(problem_id, cause):
        rows += wrap(value, width, f"  {label:<6}  ")
    rows += _tiles(cause.message, width, named=cause.diagnosis is not None)
    rows += _output(cause.message, width)
    for label, value in remarks(problem_id, cause):
        rows += wrap(value, width, f"{label}: ")
    return rows


def head_line(cause: ReportedCause) -> str:
    """Return the first line of a message: "error[P04-DIAGONAL]: own key hidden"."""
    kind = "internal" if cause.verdict is Verdict.INTERNAL else "error"
    return f"{kind}[{clean(cause.id, 60)}]: {headline_of(cause)}"


def facts(problem_id: str, cause: ReportedCause) -> list[tuple[str, str]]:
    """Return the facts about a cause: place, case, wrong elements, and how to repeat it."""
    message, trace = cause.message, trace_of(cause)
    found = clean(message.headline, HEADLINE_LIMIT)
    rows = (
        ("where", _where(problem_id, cause)),
        ("result", found if found != headline_of(cause) else ""),
        ("input", clean(message.input)),
        ("first", clean(message.first)),
        ("worst", clean(message.worst)),
        ("extent", clean(message.extent)),
        ("small", clean(message.small)),
        ("also", clean(", ".join(clean(check.id, NAME_LIMIT) for check in cause.checks[1:]))),
        ("rest", _not_run(cause)),
        *(state_facts(trace, lines_behind(cause, trace)) if trace is not None else ()),
        ("repeat", clean(message.repeat)),
        ("trace", command(trace) if trace is not None else ""),
    )
    return [(label, value) for label, value in rows if value]


def trace_of(cause: ReportedCause) -> TraceRecord | None:
    """Return the trace of one program in a case of this cause, if there is one."""
    messages = (cause.message, *(check.message for check in cause.checks if check.message))
    return next((message.trace for message in messages if message.trace is not None), None)


def lines_behind(cause: ReportedCause, trace: TraceRecord) -> tuple[SourceLine, ...]:
    """Return the lines that assign wrong values; none where the line of the mistake is known."""
    known = cause.diagnosis is not None and cause.message.line is not None
    return trace.parting.lines if trace.parting is not None and not known else ()


def remarks(problem_id: str, cause: ReportedCause) -> list[tuple[str, str]]:
    """Return notes on a cause, and what to do about it."""
    message, diagnosis = cause.message, cause.diagnosis
    internal = cause.verdict is Verdict.INTERNAL
    said = []
    if diagnosis is not None:
        said = [("note", diagnosis.note), ("help", diagnosis.help)]
    elif message.help:
        said = [("help", message.help)]
    elif not internal and message.test:
        alone = f"pytest problems/{problem_id} -x -k {message.test.removeprefix('test_')}"
        said = [("help", cause.hint or f"run this check alone: {alone}")]
    if internal:
        said.append(("note", "this is a fault of the judge: it costs no points"))
    return [(label, shown) for label, text in said if (shown := clean(text))]


def _where(problem_id: str, cause: ReportedCause) -> str:
    """Return step, test, file and line, as far as they are known."""
    message = cause.message
    step = f" step {cause.step}" if cause.step is not None else ""
    test = message.test
    if test is None and cause.checks:
        test = f"test_{cause.checks[0].id}"
    file = clean(message.file, 60) if message.file else ""
    line = f" line {message.line}" if message.line else ""
    if message.step_lines is not None:
        first, last = message.step_lines
        line = f" lines {first}-{last}" if first < last else f" line {first}"
    if message.fed_by:
        lines = ", ".join(map(str, message.fed_by))
        line += f", which depends on line{'s' if len(message.fed_by) > 1 else ''} {lines}"
    parts = [f"{clean(problem_id, ID_LIMIT)}{step}", clean(test or "", 60), f"{file}{line}"]
    return ", ".join(part for part in parts if part)


def _not_run(cause: ReportedCause) -> str:
    """Return why checks were not run, and their names."""
    if not cause.not_run:
        return ""
    names = ", ".join(clean(check.id, NAME_LIMIT) for check in cause.not_run)
    message = cause.not_run[0].message
    return f"{clean(message.headline if message else 'not run')}: {names}"


def _output(message: Message, width: int) -> list[str]:
    rows: list[str] = []
    whole = True
    for line in clean_lines(message.output) if message.output else ():
        if not whole and not line.strip(" ^~"):
            continue  # carets below a wrapped line would point nowhere
        label = "output" if not rows else "      "
        shown = wrap(line, width, f"  {label}  | ", "          |   ")
        rows, whole = rows + shown, len(shown) == 1
    return rows


def walk_as_due(tiles: TileMap) -> str:
    """Return a sentence that the right pairs were counted, and where to search instead."""
    one = "pair of a key and a query" if tiles.product in ("dk", "dv") else "key"
    return (
        f"every visible {one} was counted once, and no other: look at the arithmetic, and at"
        " where the result is stored"
    )


def _tiles(message: Message, width: int, *, named: bool) -> list[str]:
    tiles = message.tiles
    if tiles is None or (named and is_as_due(tiles)):
        return []
    if is_as_due(tiles):
        return wrap(walk_as_due(tiles), width, "  pairs   ")
    lines = tile_lines(tiles)
    return [*wrap(lines[0], width, "  tiles   "), *(f"        {line}" for line in lines[1:])]


def failure_text(
    problem_id: str,
    check_id: str,
    finding: Finding,
    found: CauseFound | None,
    step: int | None,
    width: int = 80,
) -> str:
    """Return the message of one failed case for pytest; `found` is its cause, if it is known."""
    message = finding.message or Message(headline=str(finding.verdict))
    message = found.located(message) if found else message
    diagnosis = found.diagnosis if found else None
    identity = diagnosis.id if diagnosis else None
    identity = identity or _error_id(problem_id, _kind(finding.verdict, check_id))
    if message.step is not None:
        step = message.step
    cause = ReportedCause(identity, finding.verdict, message.headline, message, step, diagnosis)
    return "\n".join(message_lines(problem_id, cause, width))
