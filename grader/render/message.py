"""One failure as a student reads it: a headline with an id, where, evidence, note and help.

The same text stands in the report and in pytest's output.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence

from grader.model import CheckResult, Diagnosis, Message, ProblemResult, Verdict
from grader.render.text import clean, clean_lines, wrap

ID_LIMIT = 12
NAME_LIMIT = 40
HEADLINE_LIMIT = 200
# Checks without a message: they have nothing to report, or the table and the next step say it.
NOT_REPORTED = (Verdict.PASS, Verdict.SKIPPED, Verdict.NOT_MEASURED, Verdict.NOT_IMPLEMENTED)


@dataclasses.dataclass(frozen=True)
class Cause:
    """One cause and the checks that show it; `checks` is empty for a problem's own message."""

    id: str
    verdict: Verdict
    title: str
    message: Message
    diagnosis: Diagnosis | None = None
    checks: tuple[CheckResult, ...] = ()


def causes(problem: ProblemResult) -> list[Cause]:
    """Return the causes of a problem's failures: its own message, then its checks merged by cause.

    Checks have one cause when their diagnosis has the same id, or, undiagnosed, when the submission
    ended in the same way with the same headline (one exception in every check is one report).
    A check without a message of its own is covered by a problem's message of the same verdict.
    """
    found: list[Cause] = []
    if problem.message is not None and problem.verdict is not Verdict.NOT_IMPLEMENTED:
        identity = _error_id(problem.id, str(problem.verdict))
        found.append(Cause(identity, problem.verdict, problem.title, problem.message))
    merged: dict[tuple[str, ...], list[CheckResult]] = {}
    for check in problem.checks:
        told = problem.message is not None and check.verdict is problem.verdict
        if check.verdict not in NOT_REPORTED and not (told and check.message is None):
            merged.setdefault(_merge_key(check), []).append(check)
    for checks in merged.values():
        first = checks[0]
        if first.diagnosis is not None:
            identity, title = first.diagnosis.id, first.diagnosis.title
        else:
            identity, title = _error_id(problem.id, _kind(first.verdict, first.id)), first.title
        message = first.message or Message(headline=title)
        found.append(Cause(identity, first.verdict, title, message, first.diagnosis, tuple(checks)))
    return found


def _merge_key(check: CheckResult) -> tuple[str, ...]:
    fault = str(check.verdict is Verdict.INTERNAL)
    if check.diagnosis is not None:
        return (fault, "diagnosis", check.diagnosis.id)
    if check.message is not None and check.message.first is None:  # no wrong number: one event
        return (fault, "ending", check.verdict, check.message.headline)
    return (fault, "check", check.id)


def _error_id(problem_id: str, name: str) -> str:
    return re.sub(r"[^A-Z0-9]+", "-", clean(f"{problem_id}-{name}", 60).upper()).strip("-")


def _kind(verdict: Verdict, check_id: str) -> str:
    """A wrong result is named after its check, a call that did not end well after how it ended."""
    return check_id if verdict is Verdict.FAIL else str(verdict)


def message_lines(problem_id: str, cause: Cause, width: int) -> list[str]:
    message, diagnosis = cause.message, cause.diagnosis
    found = clean(message.headline, HEADLINE_LIMIT)
    headline = clean(diagnosis.title, HEADLINE_LIMIT) if diagnosis else found
    kind = "internal" if cause.verdict is Verdict.INTERNAL else "error"
    head = f"{kind}[{clean(cause.id, 60)}]: {headline or clean(cause.title, HEADLINE_LIMIT)}"
    rows = wrap(head, width, "", "    ")
    for label, value in (
        ("where", clean(message.where) or _where(problem_id, cause)),
        ("result", found if found != headline else ""),
        ("input", _input(message)),
        ("first", clean(message.first)),
        ("extent", clean(message.extent)),
        ("also", clean(", ".join(clean(check.id, NAME_LIMIT) for check in cause.checks[1:]))),
    ):
        if value:
            rows += wrap(value, width, f"  {label:<6}  ")
    rows += _output(message, width)
    if diagnosis is not None:
        rows += _remark("note: ", diagnosis.note, width) + _remark("help: ", diagnosis.help, width)
    if kind == "internal":
        rows += _remark("note: ", "this is a fault of the judge: it costs no points", width)
    return rows


def _where(problem_id: str, cause: Cause) -> str:
    """Return problem, step and test for a message that does not say where it arose."""
    if not cause.checks:
        return clean(problem_id, ID_LIMIT)
    check = cause.checks[0]
    step = f" step {check.step}" if check.step is not None else ""
    test = f"test_{clean(check.id, NAME_LIMIT)}".replace("-", "_")
    return f"{clean(problem_id, ID_LIMIT)}{step}, {test}"


def _input(message: Message) -> str:
    shown, repeat = clean(message.input), clean(message.repeat)
    if repeat and repeat not in shown:
        return f"{shown}   (repeat: {repeat})" if shown else f"(repeat: {repeat})"
    return shown


def _output(message: Message, width: int) -> list[str]:
    rows: list[str] = []
    for line in clean_lines(message.output) if message.output else ():
        label = "output" if not rows else "      "
        rows += wrap(line, width, f"  {label}  | ", "          |   ")
    return rows


def _remark(lead: str, text: str, width: int) -> Iterable[str]:
    shown = clean(text)
    return wrap(shown, width, lead) if shown else []


def failure_text(
    problem_id: str,
    check_id: str,
    verdict: Verdict,
    message: Message,
    candidates: Sequence[Diagnosis],
    width: int = 80,
) -> str:
    """Return the message of one failed case, for pytest; a cause is named only when it is known."""
    diagnosis = candidates[0] if len(candidates) == 1 else None
    identity = diagnosis.id if diagnosis else _error_id(problem_id, _kind(verdict, check_id))
    cause = Cause(identity, verdict, message.headline, message, diagnosis)
    return "\n".join(message_lines(problem_id, cause, width))
