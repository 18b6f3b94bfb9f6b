"""`grader class report`: pages about the class and about each student.

A page is one file of HTML, without scripts and external links, made from templates/. All text is
cleaned and escaped, so that students cannot insert markup; besides, the pages forbid browsers to
run scripts and to make requests.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from classroom import outputs
from classroom.figures import summarize
from classroom.folder import open_class
from classroom.grades import Grade, Standing, Status, read_standing
from classroom.lateness import read_policy
from classroom.publish import changes_since
from classroom.records import MAX_REASON, CourseError, Decision, FileResult, Student
from classroom.store import Store
from grader.base import stdout
from grader.base.atomic_write import write_whole, write_whole_bytes
from grader.base.options import Command
from grader.base.text import clean, clean_lines, plural, points, wrap
from grader.judge import scoring
from grader.report import terminal
from grader.report.message import ID_LIMIT, message_lines
from grader.report.score import FAULT, component_cell, losses, machine, measured, shown_causes
from grader.spec.grade_record import COMPONENTS, GradeRecord, Verdict
from grader.spec.problem import load_problem

_LINE_LIMIT = 160


def page(template: str, **values: Any) -> str:
    """Return a template rendered with `values`."""
    return _environment().get_template(template).render(values)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("classroom"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_cleaned,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "points": points,
        "lines": _lines,
        "long": lambda text: escape(clean(text, _REASON_LIMIT)),
        "width": _width,
    }
    environment.globals |= {"plural": plural}
    return environment


def _cleaned(value: Any) -> Any:
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _lines(rows: Sequence[str]) -> Markup:
    """Return rows for a <pre>."""
    return Markup("\n").join(_verbatim(row) for row in rows)


def _verbatim(row: str) -> Markup:
    """Return one line for a <pre>, with its indentation."""
    return escape("".join(clean_lines(row, 1, _LINE_LIMIT)))


def _width(count: float, of: float) -> str:
    """Return a share in percent, for the length of a bar."""
    return f"{100 * count / of:.1f}" if of else "0"


_WIDTH = 80
_REASON_LIMIT = MAX_REASON + 100
_SAID = ("comment", "request", "answer")  # others show in points and deadlines
_REMARKS = {status: str(status) for status in Status} | {
    Status.GRADED: "",
    Status.OVERRIDDEN: "points given by a person",
    Status.FAULT: "not decided: a fault that is not yours",
}


@dataclasses.dataclass(frozen=True)
class Graded:
    """One problem in a student's report; `result` is None where there is none.

    `published` has the times and points published so far, `said` comments, requests and answers.
    """

    grade: Grade
    result: FileResult | None
    deadline: str | None = None
    extension: Decision | None = None
    published: Sequence[tuple[str, float]] = ()
    said: Sequence[Decision] = ()

    @property
    def history(self) -> list[str]:
        """Lines on the hand-in, its deadline, publications, comments, requests and answers."""
        part, lines = self.grade.part, []
        if part is not None:
            when = _moment(part.submitted_at) if part.submitted_at else "at a time not known"
            more = f"receipt {part.code}" if part.code else ""
            more += f", version {part.version}" if part.code and part.version else ""
            lines.append("; ".join(filter(None, (f"handed in {when}", more))))
        if self.deadline:
            later, longer = self.extension, ""
            if later is not None:
                longer = f", extended by {later.days:g} day{'s' * (later.days != 1)}"
                longer += f" ({later.author}: {later.reason})"
            lines.append(f"deadline {_moment(self.deadline)}{longer}")
        behind = [*(number for _, number in self.published), self.grade.points][1:]
        for (at, number), next_one in zip(self.published, behind, strict=True):
            if number != next_one and next_one is not None:
                lines.append(f"published {_moment(at)}: {points(number)} points")
        for one in self.said:
            who = "you asked" if one.kind == "request" else f"{one.kind} by {one.author}"
            lines.append(f"{who}, {_moment(one.at)}: {one.reason}")
        return lines

    @property
    def remark(self) -> str:
        """The reason for the points, where the judge's result does not show it."""
        words = _REMARKS[self.grade.status]
        reason = "" if self.grade.status is Status.FAULT else self.grade.reason
        return ": ".join(part for part in (words, reason) if part)

    @property
    def title(self) -> str:
        """The problem's title."""
        return load_problem(self.grade.problem).title

    @property
    def bonus(self) -> bool:
        """Whether the problem is not required."""
        return load_problem(self.grade.problem).bonus


def _moment(time: str) -> str:
    """Return a record's time in the form 2026-11-23 08:00 UTC."""
    return f"{time[:10]} {time[11:16]} UTC"


def student_text(student: Student, problems: Sequence[Graded], days: str = "") -> str:
    """Return the points, then the reports as `grade` prints them at 80 columns.

    There is one report for each run in which a file of this student was graded.
    """
    lines = [f"{clean(student.name, 60) or clean(student.id, 60)}", "", *[days] * bool(days)]
    for problem in problems:
        grade = problem.grade
        number = "-" if grade.points is None else points(grade.points)
        lead = f"{clean(grade.problem, ID_LIMIT)}  {number:>5} of {points(grade.possible):<5}"
        lines += [line.rstrip() for line in wrap(clean(problem.remark), _WIDTH, f"{lead}  ")]
        for text in problem.history:
            lines += wrap(clean(text, _REASON_LIMIT), _WIDTH, "       ", "         ")
    reports = [terminal.render(record, width=_WIDTH) for record in _records(problems)]
    return "\n".join(["\n".join(lines) + "\n", *reports])


def _records(problems: Sequence[Graded]) -> list[GradeRecord]:
    """Return a grade record for each run that the results come from."""
    runs: dict[str, list[FileResult]] = {}
    for result in (problem.result for problem in problems if problem.result):
        run = result.model_dump_json(include={"mode", "seed", "environment"})
        runs.setdefault(run, []).append(result)
    records = []
    for first, *others in runs.values():
        found = tuple(stored.result for stored in (first, *others))
        totals, bonus = scoring.total(found)
        records.append(
            GradeRecord(
                mode=first.mode,
                environment=first.environment,
                seed=first.seed,
                submission="as handed in",
                problems=found,
                totals=totals,
                bonus=bonus,
                duration_s=sum(result.duration_s for result in found),
            )
        )
    return records


def student_page(student: Student, problems: Sequence[Graded], days: str = "") -> str:
    """Return the page of one student as HTML; `days` says how many late days are used."""
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
        days=days,
        sums=sums,
        sections=sections,
        components=COMPONENTS,
        fault=FAULT,
    )


def _sum(grades: Sequence[Grade]) -> str:
    decided = [grade.points for grade in grades if grade.points is not None]
    in_all = sum(load_problem(g.problem).total_points for g in grades)
    of = measured(sum(g.possible for g in grades), in_all)
    text = f"{points(round(sum(decided), 1))} of {of}"
    return text if len(decided) == len(grades) else f"{text}, not all decided"


def _section(problem: Graded, stored: FileResult) -> dict[str, object]:
    result = stored.result
    shown, rest = shown_causes(result)
    passed = sum(check.verdict is Verdict.PASS for check in result.checks)
    return {
        "id": result.id,
        "title": problem.title,
        "verdict": terminal.VERDICT_WORDS[result.verdict],
        "checks": f"{passed} of {len(result.checks)} checks pass" * bool(result.checks),
        "cells": [component_cell(result.components.get(name)) for name in COMPONENTS],
        "losses": losses(result),
        "causes": [message_lines(result.id, cause, _WIDTH) for cause in shown],
        "rest": rest,
        "unseen": result.unseen,
        "next": result.next_step,
        "setting": [*machine(stored.environment), f"seed {stored.seed}", stored.graded_at],
    }


_MOST = 8  # rows of a table: they fit on a screen
_WORDS = {status: str(status) for status in Status} | {Status.FAULT: "held up by a fault"}


def _report(options: argparse.Namespace) -> int:
    """Write the reports, show what was written; return 0."""
    if options.leaderboard:
        raise CourseError(
            "--leaderboard: version 0.27 writes no leaderboard any more; leave the option out"
        )
    course: Path = options.course
    with open_class(course) as store:
        standing = read_standing(store, read_policy(course))
        compared = _write_files(store, standing, options.files) if options.files else 0
        last, published, said = store.last_publication(), store.published(), store.decisions()
        differing = len(changes_since(last, standing).changes) if last else None
    write_whole(course / outputs.CLASS_PAGE, class_page(summarize(standing)))
    count = _students(course, standing, published, [one for one in said if one.kind in _SAID])
    written = [
        f"{outputs.CLASS_PAGE}: what came out of the class, without names",
        f"{outputs.REPORTS}/: reports of {count} students, a page and a text each",
    ]
    if options.files:
        written.append(f"{options.files}: {plural(compared, 'file')} as handed in")
    stdout.show(_render, course, written, differing)
    return 0


def _students(
    course: Path,
    standing: Standing,
    published: Mapping[tuple[str, str], Sequence[tuple[str, float]]],
    said: Sequence[Decision],
) -> int:
    """Write the reports of all students, delete those of others; return the number of students."""
    outputs.make_reports_folder(course)
    by_place: dict[tuple[str, str], list[Decision]] = {}
    for one in said:
        by_place.setdefault((one.student, one.problem), []).append(one)
    policy = standing.policy
    for student in standing.students:
        graded = []
        for place in ((student.id, problem) for problem in standing.problems):
            later = standing.extensions.get(place)
            graded.append(
                Graded(
                    standing.grades[place],
                    standing.result(*place),
                    policy.deadline_of(place[1], later.days if later else 0.0),
                    later,
                    published.get(place, ()),
                    by_place.get(place, ()),
                )
            )
        used = f"late days: {standing.late_days[student.id]} of {policy.late_days} used"
        given = student, graded, used if policy.late_days else ""
        html, text = outputs.report_files(course, student.id)
        write_whole(html, student_page(*given))
        write_whole(text, student_text(*given))
    for path in outputs.stale_reports(course, (s.id for s in standing.students)):
        path.unlink(missing_ok=True)
    return len(standing.students)


def _write_files(store: Store, standing: Standing, folder: Path) -> int:
    """Write the last files of each student into pNN/ of `folder`; return their number."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise CourseError(f"--files: got {folder}, expected a folder that is new or empty")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = [
        (folder / problem / f"{outputs.file_stem(student)}.py", sha256)
        for student, hand_in in standing.hand_ins.items()
        for problem, sha256 in hand_in.files.items()
        if problem in standing.problems
    ]
    for path, sha256 in wanted:
        path.parent.mkdir(exist_ok=True)
        write_whole_bytes(path, store.data(sha256))
    return len(wanted)


def class_page(summary: SimpleNamespace) -> str:
    """Return the page about a class as HTML, without names."""
    return page("class.html", summary=summary, most=_MOST, refused=Status.REFUSED, statuses=_WORDS)


def _render(
    course: Path,
    written: Sequence[str],
    differing: int | None,
    *,
    width: int = 80,
    color: bool = False,
) -> str:
    """Return which files were written, and a note if the grades differ from the published ones.

    `differing` grades are not those of the last publication; None if there was no publication.
    """
    rows = [f"written to {clean(course, 200)}:", *(f"  {clean(text)}" for text in written)]
    if differing is None:
        rows.append("note: these grades are not published; grader class publish does it")
    elif differing:
        are = "is not as it was" if differing == 1 else "are not as they were"
        rows.append(f"note: {plural(differing, 'grade')} {are} published; see grader class diff")
    return "".join(f"{line}\n" for row in rows for line in wrap(row, width, "", "    "))


REPORT = Command(
    "write class.html and a report per student",
    _report,
    {
        "--files DIR": "write the files too, as DIR/pNN/ID.py, for a tool that compares them",
        "--leaderboard CSV": argparse.SUPPRESS,
    },
)
