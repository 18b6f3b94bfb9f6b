"""The record as commands of GitHub's Actions, which annotate wrong lines of a submission.

Source: "Workflow commands for GitHub Actions", and escapeData and escapeProperty in
packages/core/src/command.ts of actions/toolkit.
"""

from __future__ import annotations

import os
from pathlib import PurePosixPath

from grader.base.text import clean
from grader.report.message import (
    HEADLINE_LIMIT,
    ID_LIMIT,
    ReportedCause,
    causes,
    headline_of,
    message_lines,
)
from grader.report.score import losses
from grader.spec.grade_record import GradeRecord, ProblemResult, Verdict

WIDTH = 80
_DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_PROPERTY = _DATA | {":": "%3A", ",": "%2C"}


def render(record: GradeRecord, folder: str) -> str:
    """Return a line per error and per component that lost points; "" where there is none.

    `folder` is that of the submission, relative to the working directory, as the paths of
    annotations must be. GitHub shows the first ten errors and ten warnings of a step.
    """
    errors, warnings = [], []
    for problem in record.problems:
        errors += [_of_cause(problem, cause, folder) for cause in causes(problem)]
        if problem.verdict is Verdict.NOT_IMPLEMENTED and problem.message is not None:
            message = problem.message
            place = _place(problem, message.file, message.line, folder)
            warnings.append(_command("warning", place, "not implemented", message.headline))
        for name, reason in losses(problem).items():
            title = f"{clean(problem.id, ID_LIMIT)} {name}"
            warnings.append(_command("warning", {}, title, reason))
    return "".join(f"{line}\n" for line in errors + warnings)


def without_commands(report: str, token: str) -> str:
    """Return `report` between marks that keep GitHub from reading commands in it.

    A line that quotes a submission may begin with "::" or hold "##[". `token` must be unguessable.
    """
    return f"::stop-commands::{token}\n{report}::{token}::\n"


def _of_cause(problem: ProblemResult, cause: ReportedCause, folder: str) -> str:
    title = f"{clean(problem.id, ID_LIMIT)}: {headline_of(cause)}"
    lines = message_lines(problem.id, cause, WIDTH)
    line = cause.message.line or next(iter(cause.message.step_lines or ()), None)
    place = _place(problem, cause.message.file, line, folder)
    return _command("error", place, title, "\n".join(lines))


def _place(
    problem: ProblemResult, file: str | None, line: int | None, folder: str
) -> dict[str, str]:
    """Return file and line; the record's file may or may not include the problem's folder."""
    name = PurePosixPath(clean(file)).name if file else ""
    if not name:
        return {}
    path = os.path.normpath(os.path.join(folder, clean(problem.id, ID_LIMIT), name))
    return {"file": path} | ({"line": str(line)} if line else {})


def _command(level: str, place: dict[str, str], title: str, text: str) -> str:
    """Return one command, with characters that end a property, a command or a line escaped."""
    properties = place | {"title": clean(title, HEADLINE_LIMIT)}
    shown = ",".join(f"{key}={_escape(value, _PROPERTY)}" for key, value in properties.items())
    lines = [" " * (len(row) - len(row.lstrip(" "))) + clean(row) for row in text.split("\n")]
    message = _escape("\n".join(lines), _DATA)
    return f"::{level} {shown}::{message}"


def _escape(text: str, table: dict[str, str]) -> str:
    return "".join(table.get(char, char) for char in text)
