"""What one student reads of a class: a page and a text, made of that student's results alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from classroom.grades import Grade, Status
from classroom.pages import page
from classroom.records import FileResult, Student
from grader.base.text import clean, points, wrap
from grader.judge import scoring
from grader.report import terminal
from grader.report.message import ID_LIMIT, message_lines
from grader.report.score import FAULT, component_cell, losses, machine, told_causes
from grader.spec.grade_record import COMPONENTS, GradeRecord, ProblemResult, Verdict
from grader.spec.problem import load_problem

_WIDTH = 80
_WORDS = {
    Status.GRADED: "",
    Status.OVERRIDDEN: "points given by a person",
    Status.REFUSED: "refused",
    Status.NOT_HANDED_IN: "not handed in",
    Status.FAULT: "not decided: a fault that is not yours",
    Status.PENDING: "not graded yet",
}


@dataclasses.dataclass(frozen=True)
class Graded:
    """One problem of a student; `result` is None where there is none."""

    grade: Grade
    result: FileResult | None

    @property
    def remark(self) -> str:
        """Why the points are what they are, where the judge's result does not say it."""
        words = _WORDS[self.grade.status]
        reason = "" if self.grade.status is Status.FAULT else self.grade.reason
        return ": ".join(part for part in (words, reason) if part)

    @property
    def title(self) -> str:
        """The problem's title."""
        return load_problem(self.grade.problem).title

    @property
    def bonus(self) -> bool:
        """Whether the problem is no part of what is required."""
        return load_problem(self.grade.problem).bonus


def render_text(student: Student, problems: Sequence[Graded]) -> str:
    """Return the points, then the reports as `grade` prints them at 80 columns.

    There is one report for each run in which something of this student was graded.
    """
    lines = [f"{clean(student.name, 60) or clean(student.id, 60)}", ""]
    for problem in problems:
        grade = problem.grade
        number = "-" if grade.points is None else points(grade.points)
        lead = f"{clean(grade.problem, ID_LIMIT)}  {number:>5} of {points(grade.possible):<5}"
        lines += [line.rstrip() for line in wrap(clean(problem.remark), _WIDTH, f"{lead}  ")]
    reports = [terminal.render(record, width=_WIDTH) for record in _records(problems)]
    return "\n".join(["\n".join(lines) + "\n", *reports])


def _records(problems: Sequence[Graded]) -> list[GradeRecord]:
    """Return a grade record for each run that results are of."""
    runs: dict[tuple[str, str, str], list[FileResult]] = {}
    for result in (problem.result for problem in problems if problem.result):
        place = result.mode, result.seed, result.environment.model_dump_json()
        runs.setdefault(place, []).append(result)
    return [_record(results) for results in runs.values()]


def _record(results: Sequence[FileResult]) -> GradeRecord:
    first, found = results[0], tuple(result.result for result in results)
    totals, bonus = scoring.total(found)
    return GradeRecord(
        mode=first.mode,
        environment=first.environment,
        seed=first.seed,
        submission="as handed in",
        problems=found,
        totals=totals,
        bonus=bonus,
        duration_s=sum(result.duration_s for result in found),
    )


def render_page(student: Student, problems: Sequence[Graded]) -> str:
    """Return the page of one student as HTML."""
    sections = [_section(problem, problem.result) for problem in problems if problem.result]
    sums = [
        (name, _sum([p.grade for p in problems if p.bonus is bonus]))
        for name, bonus in (("Required", False), ("Bonus", True))
        if any(p.bonus is bonus for p in problems)
    ]
    return page(
        "student.html",
        student=student,
        problems=problems,
        sums=sums,
        sections=sections,
        components=COMPONENTS,
        fault=FAULT,
    )


def _sum(grades: Sequence[Grade]) -> str:
    decided = [grade.points for grade in grades if grade.points is not None]
    text = f"{points(round(sum(decided), 1))} of {points(sum(g.possible for g in grades))}"
    return text if len(decided) == len(grades) else f"{text}, not all decided"


def _section(problem: Graded, stored: FileResult) -> dict[str, object]:
    result = stored.result
    told, rest = told_causes(result)
    return {
        "id": result.id,
        "title": problem.title,
        "verdict": terminal.VERDICT_WORDS[result.verdict],
        "checks": _checks(result),
        "cells": [component_cell(result.components.get(name)) for name in COMPONENTS],
        "losses": losses(result),
        "causes": [message_lines(result.id, cause, _WIDTH) for cause in told],
        "rest": rest,
        "unseen": result.unseen,
        "next": result.next_step,
        "setting": [*machine(stored.environment), f"seed {stored.seed}", stored.graded_at],
    }


def _checks(result: ProblemResult) -> str:
    passed = sum(check.verdict is Verdict.PASS for check in result.checks)
    return f"{passed} of {len(result.checks)} checks pass" if result.checks else ""
