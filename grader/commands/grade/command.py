"""`python -m grader grade`: grades one submission, writes the files and prints the report."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from grader.api import Grader
from grader.base import stdout
from grader.commands.options import (
    DEVICE,
    SEED,
    SUBMISSION,
    UsageError,
    chips_of,
    expect_folder,
    expect_place,
    request_for,
    seed_of,
)
from grader.commands.progress import Progress
from grader.judge import scoring
from grader.judge.request import Request
from grader.judge.surroundings import jobs, surroundings
from grader.report import annotations, classroom50, exports, terminal
from grader.spec.grade_record import GradeRecord
from grader.spec.problem import GIVEN, load_problem, problem_ids, problems_named

HELP = "grade one submission and print the score report"
OPTIONS = {
    **SUBMISSION,
    "--only p04,p05": "grade these problems only (default: all)",
    **DEVICE,
    "--official": "for credit: grade everything, in a jail",
    "--calibration FILE": "speed targets that `calibrate` wrote (default: those of this GPU, if"
    " there are any)",
    **SEED,
    **{f"--{name} FILE": about for name, about in exports.HELP.items()},
    "--report": f"write {exports.PAGE} here, with the points of earlier runs; what keeps it from"
    " being written is said and costs nothing",
    "--annotations": "print GitHub's annotations after the report",
    "--jail": "run the submission where it can reach nothing else",
    "--fail-under POINTS": "exit 0 from so many required points on, else 1",
    "--exit-zero": "exit 0 even when points were lost",
    "--chips 8.6,gfx942": "compile for these too, or for all",
    "--quick": "leave speed and memory out",
    "--map": "show the tiles that the kernels visit",
    "-x, --exitfirst": "end a problem at its first failure",
    "--jobs N": "problems tested side by side (default: by cores)",
    "--no-policy": "leave the source policy out: not for credit",
}


def run(options: argparse.Namespace) -> int:
    """Grade, write the files and print the report; return the exit code of `scoring`."""
    request, files = _checked(options)
    with Progress(Console(stderr=True)) as progress:
        progress.start(request.num_cases())
        grader = Grader(request, progress, lambda record: _keep(files, record, grader.sources))
        try:
            record = grader.run()
        except BaseException:
            _hand_over(options, files, grader.record(), grader.sources)
            raise
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not lose the report
    _hand_over(options, files, record, grader.sources)
    return scoring.exit_code(record, options.fail_under, options.exit_zero)


def _checked(options: argparse.Namespace) -> tuple[Request, Mapping[str, Path]]:
    """Check the options; return what to grade, and the files to write by format."""
    problems, seed = problems_named(options.only), seed_of(options.seed)
    folder = expect_folder(options.submission)
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs: got {options.jobs}, expected 1 or more")
    files = _files(options)
    most = sum(load_problem(id).total_points for id in problem_ids())
    if options.fail_under is not None and not 0 <= options.fail_under <= most:
        raise UsageError(f"--fail-under: got {options.fail_under}, expected 0 to {most} points")
    if options.official and options.no_policy:
        raise UsageError("--no-policy: got it with --official, expected one of them")
    for name in ("quick", "exitfirst"):
        if options.official and getattr(options, name):
            raise UsageError(f"--{name}: got it with --official, which grades everything")
    jailed = options.official or options.jail
    environment, calibration = surroundings(options.device, options.calibration, jailed=jailed)
    notes, given = [*environment.notes], folder / GIVEN.name
    if given.exists() and given.resolve() != GIVEN:
        notes.append(f"{given.name}/ in the submission is not used: the judge has its own copy")
    if options.no_policy:
        notes.append("--no-policy: the source policy was left out")
    request = request_for(
        folder,
        problems,
        environment.model_copy(update={"notes": tuple(notes)}),
        seed=seed,
        jobs=options.jobs or jobs(environment),
        quick=options.quick,
        exit_first=options.exitfirst,
        policy=not options.no_policy,
        jailed=jailed,
        official=options.official,
        calibration=calibration,
        chips=chips_of(options.chips, environment.device),
    )
    return request, files


def _files(options: argparse.Namespace) -> dict[str, Path]:
    """Return the files to write by format; refuse bad paths now, before the grading."""
    files = {name: path for name in exports.HELP if (path := getattr(options, name)) is not None}
    taken = {os.path.realpath(exports.PAGE): "report"} if options.report else {}
    for name, path in files.items():
        expect_place(path, f"--{name}")
        other = taken.setdefault(os.path.realpath(path), name)
        if other != name:
            raise UsageError(f"--{name}: got {path}, the file of --{other}; expected another")
    unset = classroom50.missing(os.environ) if "classroom50" in files else []
    if unset:
        raise UsageError(
            f"--classroom50: got no {', '.join(unset)} in the environment, expected what Classroom"
            " 50's runner sets"
        )
    return files


def _keep(files: Mapping[str, Path], record: GradeRecord, sources: Mapping[str, bytes]) -> None:
    """Write the files of an unfinished run, in case the process is killed before the end."""
    with contextlib.suppress(Exception):  # the last write fails too, and reports it
        exports.write_all(files, record, os.environ, sources)


def _hand_over(
    options: argparse.Namespace,
    files: Mapping[str, Path],
    record: GradeRecord,
    sources: Mapping[str, bytes],
) -> None:
    """Write the files, then print the report, and after it the annotations if they are wanted.

    The report is printed even where a file cannot be written.
    """
    written = None

    def whole(**looks: Any) -> str:
        text = terminal.render(record, maps=options.map, page=written, **looks)
        if not options.annotations:
            return text
        quiet = annotations.without_commands(text, os.urandom(16).hex())
        return quiet + annotations.render(record, os.path.relpath(options.submission))

    try:
        if options.report:
            written, notes = exports.write_page(record, sources)
            for note in notes:
                print(f"grader: {note}", file=sys.stderr)
        exports.write_all(files, record, os.environ, sources)
    finally:
        stdout.show(whole)
