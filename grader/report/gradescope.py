"""The record as Gradescope's results.json: a test per problem, out of the points available here.

Source: Gradescope's autograder specifications, section "Output format". All formats are "text",
which Gradescope escapes.
"""

from __future__ import annotations

import json
import re

from grader.base.text import clean, finite, plural
from grader.report import score
from grader.report.message import ID_LIMIT, NAME_LIMIT, message_lines
from grader.spec.grade_record import COMPONENTS, GradeRecord, ProblemResult, Verdict

WIDTH = 100
_FAULT_NAME = "fault of the judge: grade again"


def render(record: GradeRecord) -> str:
    """Return the record as JSON; the scores of its tests add up to its score.

    A problem without any measurement here has no test, as Gradescope only knows passed and failed.
    A fault of the judge adds a test that only instructors see.
    """
    total = record.totals + record.bonus
    tests = [
        _test(number, problem)
        for number, problem in enumerate(record.problems, start=1)
        if score.is_counted(problem)
    ]
    if score.faults(record):
        tests.append(_fault(record))
    results = {
        "score": _number(total.earned),
        "execution_time": _number(record.duration_s),
        "output": "\n".join(_output(record)),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": tests,
    }
    return json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _test(number: int, problem: ProblemResult) -> dict[str, object]:
    digits = re.fullmatch(r"p0*([0-9]{1,3})", problem.id)
    bonus = " (bonus)" if problem.bonus else ""
    return {
        "name": f"{clean(problem.id, ID_LIMIT)} {clean(problem.title, 60)}{bonus}",
        "number": digits[1] if digits else str(number),
        "score": _number(problem.points.earned),
        "max_score": _number(problem.points.available),
        "status": "passed" if score.is_full(problem) else "failed",
        "output": "\n".join(_of_problem(problem)),
        "visibility": "visible",
    }


def _of_problem(problem: ProblemResult) -> list[str]:
    lines = [f"verdict {problem.verdict}"]
    for name in COMPONENTS:
        component = problem.components.get(name)
        cell = score.component_cell(component)
        if cell == "!":
            lines.append(f"{name} !  {score.FAULT}")
        elif cell == "-":
            lines.append(f"{name} -  {clean(component.reason) if component else ''}".rstrip())
        elif cell:
            lines.append(f"{name} {cell}")
    lines += [f"{name}: {reason}" for name, reason in score.losses(problem).items()]
    shown, rest = score.shown_causes(problem)
    for cause in shown:
        lines += ["", *message_lines(problem.id, cause, WIDTH)]
    if rest:
        names = ", ".join(clean(check, NAME_LIMIT) for check in rest)
        lines += ["", f"and {plural(len(rest), 'more check')}: {names}"]
    following = clean(problem.next_step)
    if following and not score.is_full(problem):
        lines += ["", f"next: {following}"]
    return lines


def _output(record: GradeRecord) -> list[str]:
    lines = score.sum_lines(record)
    if record.interrupted:
        lines.append(f"this grading did not come to its end; {score.INTERRUPTED}")
    lost = ", ".join(clean(id, ID_LIMIT) for id in score.faults(record))
    if lost:
        lines.append(f"{lost}: {score.FAULT}, but their points are missing here: grade again")
    lines += score.gaps(record)
    if record.mode != "official":
        lines.append("graded without a jail: the submission ran beside the judge, as its user")
    lines += ["", score.mode(record), f"seed {clean(record.seed, NAME_LIMIT)}"]
    return [
        *lines,
        ", ".join(score.machine(record.environment)),
        *map(clean, record.environment.notes),
    ]


def _fault(record: GradeRecord) -> dict[str, object]:
    """Return the test for instructors: which points a fault of the judge withheld, and why."""
    lines = []
    for problem in record.problems:
        id = clean(problem.id, ID_LIMIT)
        for name in COMPONENTS:
            component = problem.components.get(name)
            if component is None or component.verdict is Verdict.INTERNAL:
                reason = clean(component.reason) if component else "missing in the record"
                lines.append(f"{id} {name}: {reason}")
        for check in problem.checks:
            if check.verdict is Verdict.INTERNAL:
                headline = clean(check.message.headline if check.message else check.title)
                lines.append(f"{id} {clean(check.id, NAME_LIMIT)}: {headline}")
    return {
        "name": _FAULT_NAME,
        "number": "0",
        "score": 0,
        "max_score": 0,
        "status": "failed",
        "output": "\n".join(lines),
        "visibility": "hidden",
    }


def _number(value: float) -> float:
    """Return points or seconds rounded to three digits, and 0 in place of NaN and infinity."""
    return round(finite(value) or 0.0, 3)
