"""The record as the result of a test runner of GitHub Classroom, which its reporter adds up.

Source: the results of classroom-resources/autograding-command-grader (src/main.js), and what
autograding-grading-reporter reads of them: notify-classroom.js sends Classroom the sum of the
tests' scores out of `max_score`, console-results.js prints names and messages into the log.
https://github.com/classroom-resources/autograding-grading-reporter
"""

from __future__ import annotations

import json
import re

from grader.base.text import clean
from grader.report.message import ID_LIMIT, headline_of
from grader.report.score import (
    FAULT,
    INTERRUPTED,
    faults,
    is_counted,
    is_full,
    losses,
    mode,
    told_causes,
)
from grader.report.wholes import wholes
from grader.spec.grade_record import GradeRecord, ProblemResult

# What GitHub takes for a command when it stands in a log: at the start of a line, or anywhere.
_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#\[)", re.MULTILINE)


def render(record: GradeRecord) -> str:
    """Return the record as JSON, a test per problem, points as whole numbers."""
    problems = [problem for problem in record.problems if is_counted(problem)]
    points = wholes([problem.points for problem in problems])
    tests = [
        _test(record, problem, score) for problem, (score, _) in zip(problems, points, strict=True)
    ]
    statuses = {test["status"] for test in tests}
    status = "error" if "error" in statuses or record.interrupted else "fail"
    result = {
        "version": 1,
        "status": "pass" if statuses <= {"pass"} and not record.interrupted else status,
        "max_score": sum(available for _, available in points),
        "tests": tests,
    }
    return json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _test(record: GradeRecord, problem: ProblemResult, score: int) -> dict[str, object]:
    status = "pass" if is_full(problem) else "fail"
    if problem.id in faults(record):
        status = "error"
    bonus = " (bonus)" if problem.bonus else ""
    return {
        "name": _inert(f"{clean(problem.id, ID_LIMIT)} {clean(problem.title, 60)}{bonus}"),
        "status": status,
        "score": score,
        "message": "" if status == "pass" else _inert("\n".join(_lines(record, problem))),
        "test_code": "",
        "filename": "",
        "line_no": 0,
        "duration": round(max(problem.duration_s, 0.0) * 1000),
    }


def _lines(record: GradeRecord, problem: ProblemResult) -> list[str]:
    lines = [f"verdict {problem.verdict}, {mode(record)}"]
    if problem.id in faults(record):
        lines.append(FAULT)
    if record.interrupted:
        lines.append(INTERRUPTED)
    lines += [f"{name}: {reason}" for name, reason in losses(problem).items()]
    told, rest = told_causes(problem)
    lines += [f"{cause.label}: {headline_of(cause)}" for cause in told]
    if rest:
        lines.append(f"and {len(rest)} more")
    following = clean(problem.next_step)
    return [*lines, f"next: {following}"] if following else lines


def _inert(text: str) -> str:
    """Return `text` so that no line of it is a command where the reporter prints it."""
    return _COMMAND.sub(lambda found: (found[1] or "") + found[0].strip() + " ", text)
