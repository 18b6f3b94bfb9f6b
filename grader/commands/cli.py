"""The command line: `python -m grader` with its commands. What it shows goes through `stdout`."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from classroom import command as class_command
from grader.api import Grader
from grader.base import stdout
from grader.base.atomic_write import write_whole
from grader.base.user_state import state_path
from grader.commands.arguments import (
    UsageError,
    expect_folder,
    expect_place,
    one_or_all,
    seed_of,
    wanted_files,
)
from grader.commands.calibrate import command as calibrate
from grader.commands.doctor import command as doctor_command
from grader.commands.doctor.machine import Machine
from grader.commands.explain import view as explain_page
from grader.commands.hint import command as hint_command
from grader.commands.hint import shown as shown_hints
from grader.commands.hint import view as hint_page
from grader.commands.hint.tested import tested
from grader.commands.lint import view as lint
from grader.commands.options import in_words_of_make, parser_of
from grader.commands.package import command as package
from grader.commands.quiz import command as quiz_command
from grader.commands.race import command as race_command
from grader.commands.race import view as race_table
from grader.commands.release import command as release
from grader.commands.release import view as release_report
from grader.commands.stability import command as stability
from grader.commands.submit import command as submit
from grader.commands.submit import view as submit_report
from grader.commands.trace import command as trace_command
from grader.commands.trace import view as trace_page
from grader.commands.watch import command as watch_command
from grader.isolate import capacity
from grader.judge import scoring
from grader.judge.progress import Progress
from grader.judge.request import Request
from grader.judge.surroundings import expect_memory, jobs, surroundings
from grader.report import annotations, cause_pages, exports, report_page, terminal
from grader.source.submission import read_source
from grader.spec.environment import EnvironmentFault, JudgeFault, probe
from grader.spec.grade_record import GradeRecord
from grader.spec.problem import (
    GIVEN,
    ROOT,
    ManifestError,
    load_problem,
    problem_ids,
    problems_named,
)

EXIT_USAGE = 2
EXIT_ENVIRONMENT = 4


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (0 full marks, 1 points lost, 2, 3, 4: see --help)."""
    runs = {
        "grade": _grade,
        "stability": _stability,
        "calibrate": _calibrate,
        "package": _package,
        "lint": _lint,
        "quiz": _quiz,
        "submit": _submit,
        "release": _release,
        "class": _class,
        "hint": _hint,
        "trace": _trace,
        "race": _race,
        "watch": _watch,
        "explain": _explain,
        "doctor": _doctor,
    }
    options = parser_of(runs).parse_args(arguments)
    try:
        return options.run(options)
    except (UsageError, ManifestError) as error:
        print(f"grader: {in_words_of_make(str(error), options.command)}", file=sys.stderr)
        return EXIT_USAGE
    except EnvironmentFault as error:
        print(f"grader: {in_words_of_make(str(error), options.command)}", file=sys.stderr)
        return EXIT_ENVIRONMENT
    except JudgeFault as error:
        print(f"grader: fault of the judge: {error}", file=sys.stderr)
        return scoring.EXIT_JUDGE_FAULT
    except KeyboardInterrupt:
        print("grader: interrupted before anything was graded", file=sys.stderr)
        return scoring.EXIT_INTERRUPTED


def _grade(options: argparse.Namespace) -> int:
    request_only = problems_named(options.only)
    seed = seed_of(options.seed)
    expect_folder(options.submission, "--submission")
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs: got {options.jobs}, expected 1 or more")
    files = wanted_files(options)
    most = sum(load_problem(id).total_points for id in problem_ids())
    if options.fail_under is not None and not 0 <= options.fail_under <= most:
        raise UsageError(f"--fail-under: got {options.fail_under}, expected 0 to {most} points")
    if options.official and options.no_policy:
        raise UsageError("--no-policy: got it with --official, expected one of them")
    jailed = options.official or options.jail
    if options.official and (options.quick or options.exitfirst):
        name = "--quick" if options.quick else "--exitfirst"
        raise UsageError(f"{name}: got it with --official, which grades everything")
    _heed_interrupts()
    environment, calibration = surroundings(options, jailed=jailed)
    given = options.submission / GIVEN.name
    if given.exists() and given.resolve() != GIVEN:
        note = f"{given.name}/ in the submission is not used: the judge has its own copy"
        environment = environment.model_copy(update={"notes": (*environment.notes, note)})
    if options.no_policy:
        note = "--no-policy: the source policy was left out"
        environment = environment.model_copy(update={"notes": (*environment.notes, note)})
    request = Request(
        submission=options.submission.absolute(),
        shown_as=str(options.submission),
        problems=request_only,
        environment=environment,
        seed=seed,
        jobs=options.jobs or jobs(environment),
        cores=max(1, int(capacity.cores())),
        quick=options.quick,
        exit_first=options.exitfirst,
        policy=not options.no_policy,
        jailed=jailed,
        official=options.official,
        calibration=calibration,
    )
    with Progress(Console(stderr=True)) as progress:
        progress.start(request.num_cases())
        grader = Grader(request, progress, lambda record: _keep(files, record, grader.sources))
        try:
            record = grader.run()
        except BaseException:
            _hand_over(files, grader.record(), grader.sources, options)
            raise
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not lose the report
    _hand_over(files, record, grader.sources, options)
    return scoring.exit_code(record, options.fail_under, options.exit_zero)


def _stability(options: argparse.Namespace) -> int:
    """Grade N times; return 0 if no problem's points differ by more than one, else 1."""
    if options.count < 2:
        raise UsageError(f"N: got {options.count}, expected 2 or more gradings")
    only = problems_named(options.only)
    expect_folder(options.submission, "--submission")
    expect_place(options.json, "--json")
    _heed_interrupts()
    environment, calibration = surroundings(options, jailed=options.official)
    request = Request(
        submission=options.submission.absolute(),
        shown_as=str(options.submission),
        problems=only,
        environment=environment,
        seed="",
        jobs=jobs(environment),
        cores=max(1, int(capacity.cores())),
        jailed=options.official,
        official=options.official,
        calibration=calibration,
    )
    return stability.run(request, options, request.num_cases(), Console(stderr=True), stdout.show)


def _calibrate(options: argparse.Namespace) -> int:
    """Measure the model answers and write targets; return 0 if all problems have some, else 1."""
    expect_folder(options.submission, "--submission")
    _heed_interrupts()
    return calibrate.run(options, probe(options.device), Console(stderr=True), stdout.show)


def _package(options: argparse.Namespace) -> int:
    """Write the files of a course platform."""
    return package.run(options, stdout.write)


def _class(options: argparse.Namespace) -> int:
    """Run a command for a class; return its exit code."""
    _heed_interrupts()
    return class_command.run(options, stdout.show)


def _lint(options: argparse.Namespace) -> int:
    """Look through a submission's files; return 0 if nothing keeps any from being graded, or 1."""
    expect_folder(options.submission, "DIR")
    problems = [
        problem
        for problem in map(load_problem, problems_named(options.only))
        if os.path.lexists(options.submission / problem.id / problem.file)
    ]
    if not problems:
        raise UsageError(f"DIR: got {options.submission}, expected a folder with pNN/<file>.py")
    sources = [read_source(problem, options.submission) for problem in problems]
    stdout.show(functools.partial(lint.render, sources))
    return scoring.EXIT_POINTS_LOST if any(map(lint.is_refused, sources)) else 0


def _submit(options: argparse.Namespace) -> int:
    """Pack the answers into one archive; return 0 if all are accepted, else 1."""
    return submit.run(options, stdout.show, submit_report.render)


def _release(options: argparse.Namespace) -> int:
    """Make the students' repository, or bring it up to date; return 0."""
    wanted = options.problems
    problems = None if wanted is None else problems_named(wanted, "--problems")
    return release.run(options, problems, stdout.show, release_report.render)


def _quiz(options: argparse.Namespace) -> int:
    """Ask on standard input and output; Ctrl-C ends with 130, q and the end of input with 0."""
    if sys.stdout is None:
        raise UsageError("quiz: got no standard output, expected a terminal, a pipe or a file")
    _heed_interrupts()
    try:
        whole = quiz_command.run(
            options.topic,
            options.level,
            restart=options.restart,
            stdin=sys.stdin,
            stdout=sys.stdout,
            environment=os.environ,
            width=max(min(Console().width, 80), 40) if sys.stdout.isatty() else 80,
            color=stdout.wants_color(),
        )
    except OSError:
        stdout.silence()
        return scoring.EXIT_FULL_MARKS
    return scoring.EXIT_FULL_MARKS if whole else scoring.EXIT_INTERRUPTED


def _hint(options: argparse.Namespace) -> int:
    """Show the next hint of the first step that is not solved; return 0."""
    ids = one_or_all(options.only)
    expect_folder(options.submission, "--submission")
    _heed_interrupts()
    shown = shown_hints.Shown(state_path(os.environ, shown_hints.FILE))
    hint = hint_command.run(
        ids,
        options.submission,
        shown,
        functools.partial(tested, options.submission),
        restart=options.restart,
    )
    stdout.show(functools.partial(hint_page.render, hint, shown.notices))
    return scoring.EXIT_FULL_MARKS


def _trace(options: argparse.Namespace) -> int:
    """Show one program of a kernel tile by tile; return 0, whatever it shows."""
    problem = load_problem(trace_command.expect_traceable(problems_named(options.only)))
    wanted = trace_command.Wanted.of(problem, options.case, options.program)
    seed = seed_of(options.seed)
    expect_folder(options.submission, "--submission")
    expect_place(options.json, "--json")
    _heed_interrupts()
    probe("cpu")
    from grader.commands.trace import (
        traced_case,  # with torch, which no other command has in this process
    )

    with Console(stderr=True).status("starting") as status:
        record = traced_case.run(problem, options.submission, wanted, seed, status.update)
    stdout.show(functools.partial(trace_page.render, record))
    if options.json is not None:
        try:
            write_whole(options.json, record.to_json())
        except OSError as error:
            why = f"--json: cannot write {options.json}: {error.strerror}"
            raise EnvironmentFault(why) from None
    return scoring.EXIT_FULL_MARKS


def _race(options: argparse.Namespace) -> int:
    """Time one answer beside others; return 0, or 1 where it could not be timed."""
    if options.only is None:
        raise UsageError("--only: got nothing, expected one problem: make race P=p04")
    (id,) = one_or_all(options.only)
    expect_folder(options.submission, "--submission")
    _heed_interrupts()
    given = load_problem(id), options.submission, probe("auto")
    return race_command.run(*given, Console(stderr=True), stdout.show, race_table.render)


def _watch(options: argparse.Namespace) -> int:
    """Grade one problem again at each save; q ends with 0, Ctrl-C with 130."""
    ids = one_or_all(options.only)
    expect_folder(options.submission, "--submission")
    if not stdout.is_open():
        raise UsageError("watch: got no standard output, expected a terminal, a pipe or a file")
    _heed_interrupts()
    signal.signal(signal.SIGHUP, _interrupt)
    environment = probe(options.device)
    expect_memory(jailed=False)
    problem = watch_command.first_open(ids, options.submission)
    request = Request(
        submission=options.submission.absolute(),
        shown_as=str(options.submission),
        problems=(problem.id,),
        environment=environment,
        seed="",
        jobs=1,
        cores=max(1, int(capacity.cores())),
        quick=True,
    )
    try:
        watch_command.run(options, problem, request, os.environ, lambda: seed_of(None))
    except KeyboardInterrupt:
        return scoring.EXIT_INTERRUPTED
    return scoring.EXIT_FULL_MARKS


def _explain(options: argparse.Namespace) -> int:
    """Show the page of a cause, or list them all; return 0."""
    problems = None if options.only is None else problems_named(options.only)
    page = cause_pages.look_up(options.id or None, problems, runs=report_page.HISTORY)
    stdout.show(functools.partial(explain_page.render, page))
    return scoring.EXIT_FULL_MARKS


def _doctor(options: argparse.Namespace) -> int:
    """Look at this machine; return 0, or 4 where something must be mended."""
    encoding = (sys.stdout.encoding if stdout.is_open() else None) or "ascii"
    write = stdout.write if stdout.is_open() else lambda text: None
    return doctor_command.run(Machine(ROOT, encoding=encoding), write, color=stdout.wants_color())


def _keep(files: Mapping[str, Path], record: GradeRecord, sources: Mapping[str, bytes]) -> None:
    """Write the files of an unfinished run, for the case that nobody comes to its end."""
    with contextlib.suppress(Exception):  # what fails now fails at the end too, and is said then
        exports.write_all(files, record, os.environ, sources)


def _hand_over(
    files: Mapping[str, Path],
    record: GradeRecord,
    sources: Mapping[str, bytes],
    options: argparse.Namespace,
) -> None:
    """Write the files, then print the report: a standard output that is gone loses neither."""
    written = None
    try:
        if options.report:
            written, notes = report_page.write(record, sources)
            for note in notes:
                print(f"grader: {note}", file=sys.stderr)
        exports.write_all(files, record, os.environ, sources)
    finally:
        _print_report(record, options, written)


def _heed_interrupts() -> None:
    """Let Ctrl-C and SIGTERM end the command in good order.

    A background job of a shell may start with Ctrl-C ignored, and hand that on to its children.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _print_report(
    record: GradeRecord, options: argparse.Namespace, written: Path | None = None
) -> None:
    """Print the report, where there is a standard output, and the annotations that are wanted."""

    def whole(**looks: Any) -> str:
        text = terminal.render(record, maps=options.map, page=written, **looks)
        if not options.annotations:
            return text
        folder = os.path.relpath(options.submission)
        quiet = annotations.without_commands(text, os.urandom(16).hex())
        return quiet + annotations.render(record, folder)

    stdout.show(whole)
