"""Commands that decide about one student: `override`, `extend`, `comment`, `answer`, `forget`.

All but the last add rows to one table, with student, author and reason. Only `forget` deletes rows.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from classroom import outputs
from classroom.folder import known_student, locked, made, need, one_of, open_class
from classroom.grades import read_standing
from classroom.lateness import read_policy
from classroom.records import CourseError, Decision, now
from classroom.store import Store
from grader.base import stdout
from grader.base.options import Command
from grader.base.text import clean, plural, points, wrap
from grader.report.message import ID_LIMIT
from grader.spec.problem import problem_ids

_NOT_DELETED = 1
_OPTIONS = {
    "student": ("ID", ""),
    "problem": ("p04", ""),
    "points": ("POINTS", "of the problem, in all"),
    "days": ("DAYS", "after the deadline of all; 0 takes it back"),
    "author": ("NAME", "who says it"),
    "reason": ("TEXT", "why; the student reads it"),
}
_TEXTS = {"comment": "what the student reads", "answer": "what the student reads"}
_PLURALS = {"extend": "extensions"}


def _command(about: str, kind: str, needed: Sequence[str], *optional: str) -> Command:
    """Return the command that stores one kind of decision; its options are the record's fields."""
    helps = {name: text for name, (_, text) in _OPTIONS.items()}
    helps["reason"] = _TEXTS.get(kind, helps["reason"])
    helps |= dict.fromkeys(optional, "this one alone (default: all)")
    fields = [name for name in _OPTIONS if name in (*needed, *optional)]
    options = {f"--{name} {_OPTIONS[name][0]}": helps[name] for name in fields}
    options["--list"] = f"show all {_PLURALS.get(kind, f'{kind}s')} there were"
    return Command(about, functools.partial(_decide, kind, needed, fields), options)


def _decide(
    kind: str, needed: Sequence[str], fields: Sequence[str], options: argparse.Namespace
) -> int:
    """Store a decision, or with --list show all of its kind; return 0."""
    with open_class(options.course) as store:
        if not options.list:
            need(options, needed)
            given = {name: getattr(options, name) for name in fields}
            given = {k: v.strip() if isinstance(v, str) else v for k, v in given.items()}
            if given.get("problem"):
                given["problem"] = one_of(problem_ids(), options.problem, "--problem")
            given["student"] = known_student(store, options.student)
            _expect_fit(store, options, kind, given)
            given = {name: value for name, value in given.items() if value is not None}
            store.add(made(Decision, kind=kind, **given, at=now()))
        found = store.decisions(kind)
    shown = found if options.list else found[-1:]
    none = f"no {_PLURALS.get(kind, f'{kind}s')}"
    stdout.show(_show, [_row(one) for one in shown] or [none])
    return 0


def _expect_fit(
    store: Store, options: argparse.Namespace, kind: str, given: dict[str, object]
) -> None:
    """Check that points are within the problem's range, and that an answer has a request."""
    student, problem = given["student"], given.get("problem")
    if kind == "override":
        policy = read_policy(options.course)
        standing = read_standing(store, policy, sorted({problem, *store.versions()}))
        most = max(g.possible for (_, p), g in standing.grades.items() if p == problem)
        if not 0 <= options.points <= most:
            raise CourseError(f"--points: got {options.points:g}, expected 0 to {points(most)}")
    asked = [(d.student, d.problem) for d in store.decisions("request")]
    if kind == "answer" and (student, problem) not in asked:
        of = sorted(p for who, p in asked if who == student)
        raise CourseError(
            f"--problem: got {problem}, expected one for which {student} has a request:"
            f" {', '.join(dict.fromkeys(of)) or 'there is none'}"
        )


def open_requests(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the requests without an answer, the oldest first."""
    waiting: dict[tuple[str, str], list[Decision]] = {}
    for one in decisions:
        if one.kind == "request":
            waiting.setdefault((one.student, one.problem), []).append(one)
        elif one.kind == "answer":
            waiting.pop((one.student, one.problem), None)
    return [one for those in waiting.values() for one in those]


def _requests(options: argparse.Namespace) -> int:
    """Show requests for a regrade without an answer, with --all every one; return 0."""
    with open_class(options.course) as store:
        found = store.decisions("request", "answer")
    shown = found if options.all else open_requests(found)
    stdout.show(_show, [_row(one) for one in shown] or ["no requests"])
    return 0


def _row(decision: Decision) -> str:
    what = [clean(decision.student, 60), clean(decision.problem, ID_LIMIT)]
    if decision.points is not None:
        what.append(f"{points(decision.points)} points")
    if decision.days is not None:
        what.append(f"{decision.days:g} day{'s' * (decision.days != 1)}")
    is_request = decision.kind == "request"
    who = "asks" if is_request else clean(decision.author, 60)
    lead = "answer, " * (decision.kind == "answer")
    why = f"{lead}{who}: {clean(decision.reason)}"
    return "  ".join([*filter(None, what), decision.at, why])


def _show(rows: Iterable[str], *, width: int = 80, color: bool = False) -> str:
    """Return a paragraph per row."""
    lines = (line for row in rows for line in wrap(row, width, "", "    "))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _forget(options: argparse.Namespace) -> int:
    """Delete a student's rows and files; return 0, or without --yes delete nothing and return 1.

    Pages and gradebooks of the whole class, which may show the student, are deleted too: `report`
    and `publish` write them again.
    """
    need(options, ("student",))
    course: Path = options.course
    with open_class(course) as store, locked(course):
        student = known_student(store, options.student)
        hand_in = store.hand_ins().get(student)
        paths = [*outputs.report_files(course, student), *outputs.about_all(course)]
        found = [path for path in paths if path.is_file()]
        # Files first: while the database knows the student, the command can be run again.
        for path in found if options.yes else ():
            path.unlink(missing_ok=True)
        rows = store.forget(student) if options.yes else None
    files = [str(path.relative_to(course)) for path in found]
    source = hand_in.source if hand_in else None
    stdout.show(_show, _forgotten(student, rows, files, source))
    return 0 if options.yes else _NOT_DELETED


def _forgotten(
    student: str, rows: int | None, files: Sequence[str], source: str | None
) -> list[str]:
    """Return lines on what was deleted of a student and what not; `rows` is None before --yes."""
    id = clean(student, 60)
    if rows is None:
        lines = [f"{id}: nothing is deleted yet; --yes deletes, for good:"]
        lines += ["  all that the database has of this student"]
    else:
        lines = [f"{id}: deleted, for good:", f"  {plural(rows, 'row')} of the database"]
    lines += [f"  {clean(file, 200)}" for file in files]
    kept = ["gradebooks and reports that were sent or uploaded, and copies of this folder"]
    if source:
        kept.insert(0, f"what was collected: {clean(source, 200)}")
    return [*lines, "not deleted:", *(f"  {text}" for text in kept)]


_OF_PROBLEM = ("student", "problem", "author", "reason")
OVERRIDE = _command(
    "give a student other points than the judge did, with a reason",
    "override",
    ("points", *_OF_PROBLEM),
)
EXTEND = _command(
    "move the deadline of one student", "extend", ("student", "days", "author", "reason"), "problem"
)
COMMENT = _command("write a comment into a student's report", "comment", _OF_PROBLEM)
ANSWER = _command("answer a student's request for another look", "answer", _OF_PROBLEM)
REQUESTS = Command(
    "list what students asked to have looked at again",
    _requests,
    {"--all": "those that were answered too, with the answers"},
)
FORGET = Command(
    "delete what is stored about a student, for good",
    _forget,
    {"--student ID": "", "--yes": "delete; without it, say what would be"},
)
