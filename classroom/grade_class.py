"""`grader class grade`: collects, grades files without a result, and writes the gradebooks."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from rich.console import Console

from classroom import grading
from classroom.collect import LISTS, into, render
from classroom.folder import DATABASE, locked
from classroom.grades import read_standing
from classroom.grading import LIMIT_S, Settings
from classroom.lateness import Policy, read_policy
from classroom.outputs import write_gradebooks
from classroom.plan import plan, versions
from classroom.records import EngineFault
from classroom.store import Store
from classroom.view import View
from grader.base import stdout
from grader.base.options import Command
from grader.base.text import clean
from grader.judge import scoring
from grader.judge.set_check import check_set
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import Environment
from grader.spec.problem import ManifestError, load_problem, problems_named
from grader.timing.calibration import find as find_calibration

if TYPE_CHECKING:
    from classroom.engine import ParslEngine

    _Started = tuple[ParslEngine, Callable[[], bool]]

_RUNDIR = ".parsl"


def _run(options: argparse.Namespace) -> int:
    """Grade; return 0, or 3 if faults left files without a result, or 130 on Ctrl-C."""
    problems = problems_named(options.only)
    _check(options)
    policy = read_policy(options.course)
    with (
        contextlib.ExitStack() as stack,
        locked(options.course),
        Store(options.course / DATABASE) as store,
    ):
        collected, kept = into(store, options)
        if not store.hand_ins():
            raise ManifestError("SOURCE: got nothing, expected submissions: none are collected yet")
        check_set(problems)
        view, interrupted = _grade(options, store, problems, policy, stack)
        standing = read_standing(store, policy, sorted({*problems, *store.versions()}))
        written = write_gradebooks(options.course, standing)
    stdout.show(
        render,
        standing,
        kept=kept,
        left_out=collected.notes,
        graded=view.graded if view else 0,
        cached=view.cached if view else 0,
        written=written,
        interrupted=interrupted,
    )
    if interrupted:
        return scoring.EXIT_INTERRUPTED
    faults = any(grade.fault for grade in standing.grades.values())
    return scoring.EXIT_JUDGE_FAULT if faults else scoring.EXIT_FULL_MARKS


def _check(options: argparse.Namespace) -> None:
    if options.jobs is not None and options.jobs < 1:
        raise ManifestError(f"--jobs: got {options.jobs}, expected 1 or more")
    if options.jobs is not None and options.engine is not None:
        raise ManifestError("--jobs: got it with --engine, whose file says how many workers")
    if not 1 <= options.limit <= 1e6:
        raise ManifestError(f"--limit: got {options.limit:g}, expected 1 to 1000000 seconds")
    if options.official and options.quick:
        raise ManifestError("--quick: got it with --official, which grades everything")


def _grade(
    options: argparse.Namespace,
    store: Store,
    problems: tuple[str, ...],
    policy: Policy,
    stack: contextlib.ExitStack,
) -> tuple[View | None, bool]:
    """Grade; return the view, which has the counts, and whether Ctrl-C ended the run.

    From the start of an engine to the end of `stack`, Ctrl-C interrupts no code: it sets a flag.
    """
    how = {"official": options.official, "quick": options.quick}
    settings = Settings(device=options.device, limit_s=options.limit, **how)
    view: View | None = None
    with contextlib.ExitStack() as running:
        try:
            started = running.enter_context(_engine(options, stack)) if options.engine else None
            machine = _look(started, settings)
            calibration = find_calibration(options.calibration, machine)
            text = calibration.model_dump_json() if calibration else None
            settings = dataclasses.replace(settings, calibration=text)
            of_problems = versions(machine, problems, **how, calibration=text)
            todo = plan(store, problems, of_problems, policy, again=options.retry_faults)
            view = View(Console(stderr=True), todo)
            if todo.jobs:
                started = started or running.enter_context(_engine(options, stack))
            possible = {
                id: load_problem(id).possible_on(machine.device, quick=options.quick)
                for id in problems
            }
            store.set_versions(of_problems, possible)
            if started and todo.jobs:
                from classroom.running import Running

                engine, interrupted = started
                view.workers = engine.workers
                run = Running(
                    store, engine, todo, settings, machine, view, grading.grade, interrupted
                )
                with view:
                    run.run()
        except KeyboardInterrupt:
            return view, True
    return view, False


def _look(started: _Started | None, settings: Settings) -> Environment:
    """Return the environment of the machine that grades: with --engine it is not this one."""
    if started is None:
        found = grading.look(settings)
    else:
        from classroom.running import Patience

        engine, interrupted = started
        with Console(stderr=True).status("waiting for a worker"):
            patience = Patience(engine, interrupted)
            try:
                future = engine.submit(grading.look, settings)
                while not patience.wait([future], LIMIT_S):
                    pass
                found = future.result()
            except Exception as error:
                raise EngineFault(f"the engine runs nothing: {error}") from None
    if isinstance(found, str):
        raise EnvironmentFault(found)
    return found


@contextlib.contextmanager
def _engine(options: argparse.Namespace, stack: contextlib.ExitStack) -> Iterator[_Started]:
    """Start an engine, end it afterwards; give it and a function that says whether Ctrl-C came."""
    interrupted = stack.enter_context(_noted())
    engine = make_engine(options)
    keeps_logs = False
    try:
        yield engine, interrupted
    except EngineFault as fault:
        keeps_logs = True
        logs = options.course / _RUNDIR
        raise EngineFault(f"{clean(str(fault))}; its logs are in {logs}") from None
    finally:
        engine.close(keep_logs=keeps_logs)


def make_engine(options: argparse.Namespace) -> ParslEngine:
    """Start the engine that the options ask for.

    Raises:
        ImportError: Parsl is not installed.
        EnvironmentFault: Parsl does not start.
        CourseError: the configuration cannot be used.
    """
    from classroom import engine

    if options.engine:
        config = engine.read_config(options.engine)
    else:
        config = engine.local_config(options.jobs, options.device, os.environ)
    return engine.ParslEngine(config, options.course.absolute() / _RUNDIR)


@contextlib.contextmanager
def _noted() -> Iterator[Callable[[], bool]]:
    """Only record Ctrl-C and SIGTERM in the block; give a function that says whether one came."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


GRADE = Command(
    "collect and grade what has no result yet; run it again to go on",
    _run,
    {
        "[SOURCE]": "collect from here first",
        **LISTS,
        "--only p04,p05": "grade these problems only (default: all nine)",
        "--device {auto,cpu,cuda}=auto": "",
        "--official": "for credit: grade everything, in a jail",
        "--quick": "leave speed and memory out: not with --official",
        "--calibration FILE": "speed targets that `calibrate` wrote",
        "--engine FILE": "where to grade: a Parsl configuration, .py or .toml (default: this"
        " machine)",
        "--jobs N": "gradings side by side (default: by cores or GPUs)",
        f"--limit S={LIMIT_S:.0f}": "seconds per problem after which a grading is ended (default:"
        " %(default)s)",
        "--retry-faults": "try again what failed three times",
    },
)
