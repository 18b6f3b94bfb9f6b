"""`grader class override`, `extend` and `forget`: what a person decides about one student."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from classroom import outputs
from classroom.folder import known_student, locked, made, need, one_of, open_class
from classroom.records import CourseError, Extension, Override, now
from grader.base import stdout
from grader.base.options import Command
from grader.base.text import clean, plural, points, wrap
from grader.report.message import ID_LIMIT
from grader.spec.problem import load_problem, problem_ids

_NOT_DELETED = 1
_Kind = type[Override] | type[Extension]
_OPTIONS = {
    "student": ("ID", ""),
    "problem": ("p04", ""),
    "points": ("POINTS", "of the problem, in all"),
    "days": ("DAYS", "after the deadline of all; 0 takes it back"),
    "author": ("NAME", "who decided"),
    "reason": ("TEXT", "why; the student reads that of points"),
}


def _fields(kind: _Kind) -> list[str]:
    """Return what a person says of a decision, each an option; its time is that of the command."""
    return [name for name in kind.model_fields if name in _OPTIONS]


def _command(about: str, kind: _Kind) -> Command:
    options = {f"--{name} {_OPTIONS[name][0]}": _OPTIONS[name][1] for name in _fields(kind)}
    options |= {"--list": f"show all {kind.__name__.lower()}s there were"}
    return Command(about, functools.partial(_decide, kind), options)


def _decide(kind: _Kind, options: argparse.Namespace) -> int:
    """Keep a decision, or with --list show all of its kind; return 0.

    Raises:
        CourseError: an option is missing or does not fit.
    """
    with open_class(options.course) as store:
        if not options.list:
            need(options, _fields(kind))
            given = {name: getattr(options, name) for name in _fields(kind)}
            given = {k: v.strip() if isinstance(v, str) else v for k, v in given.items()}
            if kind is Override:
                given["problem"] = one_of(problem_ids(), options.problem, "--problem")
                most = load_problem(given["problem"]).total_points
                if not 0 <= options.points <= most:
                    raise CourseError(f"--points: got {options.points:g}, expected 0 to {most}")
            given["student"] = known_student(store, options.student)
            store.add(made(kind, **given, at=now()))
        found = store.overrides() if kind is Override else store.extensions()
    none = f"no {kind.__name__.lower()}s"
    shown = found if options.list else found[-1:]
    stdout.show(_show, [_row(one) for one in shown] or [none])
    return 0


def _row(decision: Override | Extension) -> str:
    if isinstance(decision, Override):
        what = f"{clean(decision.problem, ID_LIMIT)}  {points(decision.points)} points"
    else:
        what = f"{decision.days:g} day{'s' * (decision.days != 1)}"
    why = f"{clean(decision.author, 60)}: {clean(decision.reason)}"
    return f"{clean(decision.student, 60)}  {what}  {decision.at}  {why}"


def _show(rows: Iterable[str], *, width: int = 80, color: bool = False) -> str:
    """Return a paragraph per row."""
    lines = (line for row in rows for line in wrap(row, width, "", "    "))
    return "".join(f"{line.rstrip()}\n" for line in lines)


def _forget(options: argparse.Namespace) -> int:
    """Delete a student's rows and files; return 0, or without --yes delete nothing and return 1.

    Pages and gradebooks about the whole class are deleted too, where they may hold the student:
    `report` and `publish` write them anew.

    Raises:
        CourseError: there is no class or no such student.
        EnvironmentFault: a run is at work in the folder.
        OSError: a file cannot be deleted.
    """
    need(options, ("student",))
    course: Path = options.course
    with open_class(course) as store, locked(course):
        student = known_student(store, options.student)
        hand_in = store.hand_ins().get(student)
        gradebooks = (course / outputs.CANVAS, course / outputs.MOODLE)
        paths = [*outputs.report_files(course, student), *outputs.about_all(course), *gradebooks]
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
    """Say what was deleted of a student, and what was not; `rows` is None before --yes."""
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


OVERRIDE = _command("give a student other points than the judge did, with a reason", Override)
EXTEND = _command("move the deadline of one student", Extension)
FORGET = Command(
    "delete what is stored about a student, for good",
    _forget,
    {"--student ID": "", "--yes": "delete; without it, say what would be"},
)
