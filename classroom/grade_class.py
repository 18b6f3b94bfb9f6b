"""`grader class grade`: collects, grades what has no result yet, and writes the gradebooks."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from classroom import gradebook, grading
from classroom.collecting import add_lists, into
from classroom.folder import DATABASE, Command
from classroom.grades import grades
from classroom.grading import LIMIT_S, Settings
from classroom.late import read_policy
from classroom.lock import locked
from classroom.plan import Plan, plan
from classroom.store import Store
from classroom.summary import render, summed_up
from classroom.versions import Versions
from classroom.view import View
from grader.base import stdout
from grader.base.text import clean
from grader.judge import scoring
from grader.judge.set_check import check_set
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import Environment
from grader.spec.problem import ManifestError, problems_named
from grader.timing.calibration import find as find_calibration

if TYPE_CHECKING:
    from classroom.engine import Engine

_RUNDIR = ".parsl"


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", type=Path, nargs="?", metavar="SOURCE", help="collect from here first"
    )
    add_lists(parser)
    parser.add_argument(
        "--only", metavar="p04,p05", help="grade these problems only (default: all nine)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--official", action="store_true", help="for credit: grade everything, in a jail"
    )
    parser.add_argument(
        "--quick", action="store_true", help="leave speed and memory out: not with --official"
    )
    parser.add_argument(
        "--calibration", type=Path, metavar="FILE", help="speed targets that `calibrate` wrote"
    )
    parser.add_argument(
        "--engine",
        type=Path,
        metavar="FILE",
        help="where to grade: a Parsl configuration, .py or .toml (default: this machine)",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="gradings side by side (default: by cores or GPUs)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=LIMIT_S,
        metavar="S",
        help=f"seconds per problem after which a grading is ended (default: {LIMIT_S:.0f})",
    )
    parser.add_argument(
        "--retry-faults", action="store_true", help="try again what failed three times"
    )


def _run(options: argparse.Namespace) -> int:
    """Grade; return 0, 3 where files are left that faults kept from being graded, 130 on Ctrl-C.

    Raises:
        ManifestError: an option, the roster, the submissions, the engine's file or the set of
            problems is wrong.
        EnvironmentFault: nothing can be graded here, or the database cannot be written.
    """
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
        view, interrupted = _Grading(options, store, problems, stack).run()
        shown = sorted({*problems, *store.versions()})  # an --only takes no column away
        found = grades(store, shown, store.versions(), policy)
        summary = summed_up(
            store,
            found,
            kept=kept,
            left_out=collected.notes,
            graded=view.graded if view else 0,
            cached=view.cached if view else 0,
            written=gradebook.write(options.course, store, found),
            interrupted=interrupted,
        )
    stdout.show(functools.partial(render, summary))
    if interrupted:
        return scoring.EXIT_INTERRUPTED
    return scoring.EXIT_JUDGE_FAULT if summary.faults else scoring.EXIT_FULL_MARKS


def _check(options: argparse.Namespace) -> None:
    if options.jobs is not None and options.jobs < 1:
        raise ManifestError(f"--jobs: got {options.jobs}, expected 1 or more")
    if options.jobs is not None and options.engine is not None:
        raise ManifestError("--jobs: got it with --engine, whose file says how many workers")
    if not 1 <= options.limit <= 1e6:
        raise ManifestError(f"--limit: got {options.limit:g}, expected 1 to 1000000 seconds")
    if options.official and options.quick:
        raise ManifestError("--quick: got it with --official, which grades everything")


class _Grading:
    """Grades; from the start of an engine to the end of `stack`, Ctrl-C cuts nothing short."""

    def __init__(
        self,
        options: argparse.Namespace,
        store: Store,
        problems: tuple[str, ...],
        stack: contextlib.ExitStack,
    ) -> None:
        self._stack = stack
        self._interrupted: Callable[[], bool] = lambda: False
        self._options = options
        self._store = store
        self._problems = problems
        self._settings = Settings(
            device=options.device,
            official=options.official,
            quick=options.quick,
            limit_s=options.limit,
        )

    def run(self) -> tuple[View | None, bool]:
        """Grade; return the view, which has counted, and whether Ctrl-C has ended it."""
        view: View | None = None
        with contextlib.ExitStack() as stack:
            try:
                engine = stack.enter_context(self._engine()) if self._options.engine else None
                machine = self._look(engine)
                todo, versions = self._plan(machine)
                view = View(Console(stderr=True), todo)
                if todo.jobs:
                    engine = engine or stack.enter_context(self._engine())
                self._store.set_versions(versions)
                if engine and todo.jobs:
                    self._grade(engine, todo, machine, view)
            except KeyboardInterrupt:
                return view, True
        return view, False

    def _grade(self, engine: Engine, todo: Plan, machine: Environment, view: View) -> None:
        from classroom.running import Running

        view.workers = engine.workers
        given = self._store, engine, todo, self._settings, machine, view, grading.grade
        with view:
            Running(*given, self._interrupted).run()

    def _look(self, engine: Engine | None) -> Environment:
        """Ask the machine that will grade what it is: with --engine that is another one."""
        if engine is None:
            found = grading.look(self._settings)
        else:
            with Console(stderr=True).status("waiting for a worker"):
                from classroom.engine import EngineFault
                from classroom.running import Patience

                patience = Patience(engine, self._interrupted)
                try:
                    future = engine.submit(grading.look, self._settings)
                    while not patience.wait([future], LIMIT_S):
                        pass
                    found = future.result()
                except Exception as error:
                    raise EngineFault(f"the engine runs nothing: {error}") from None
        if isinstance(found, str):
            raise EnvironmentFault(found)
        return found

    def _plan(self, machine: Environment) -> tuple[Plan, dict[str, str]]:
        calibration = find_calibration(self._options.calibration, machine)
        text = calibration.model_dump_json() if calibration else None
        self._settings = Settings(**vars(self._settings) | {"calibration": text})
        settings = self._settings
        versions = Versions(
            machine, official=settings.official, quick=settings.quick, calibration=text
        )
        of_problems = {problem: versions.of(problem) for problem in self._problems}
        again = self._options.retry_faults
        return plan(self._store, self._problems, of_problems, again=again), of_problems

    @contextlib.contextmanager
    def _engine(self) -> Iterator[Engine]:
        self._interrupted = self._stack.enter_context(_noted())
        engine = make_engine(self._options)
        keeps_logs = False
        try:
            yield engine
        except EnvironmentFault as fault:
            from classroom.engine import EngineFault

            keeps_logs = isinstance(fault, EngineFault)
            if not keeps_logs:
                raise
            logs = self._options.course / _RUNDIR
            raise EngineFault(f"{clean(str(fault))}; its logs are in {logs}") from None
        finally:
            engine.close(keep_logs=keeps_logs)


def make_engine(options: argparse.Namespace) -> Engine:
    """Start the engine that the options ask for.

    Raises:
        ImportError: Parsl is not installed.
        EnvironmentFault: Parsl does not start.
        CourseError: its configuration cannot be used.
    """
    from classroom import engine

    if options.engine:
        config = engine.read_config(options.engine)
    else:
        config = engine.local_config(options.jobs, options.device, os.environ)
    return engine.ParslEngine(config, options.course.absolute() / _RUNDIR)


@contextlib.contextmanager
def _noted() -> Iterator[Callable[[], bool]]:
    """Note Ctrl-C and SIGTERM for a while; give what says whether one came."""
    came: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


GRADE = Command(
    "collect and grade what has no result yet; run it again to go on", _run, _add_options
)
