"""`python -m grader calibrate`: measures, writes the file, and says what it came to."""

from __future__ import annotations

import argparse
import functools
import os
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from grader.base.text import clean
from grader.commands.calibrate import measuring
from grader.commands.calibrate.view import render
from grader.judge import scoring
from grader.spec.environment import EnvironmentFault
from grader.spec.grade_record import Environment
from grader.spec.problem import ROOT
from grader.timing.calibration import (
    Calibration,
    CalibrationError,
    default_path,
    of_environment,
    write,
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `calibrate`."""
    parser.add_argument(
        "--submission",
        type=Path,
        default=Path(os.path.relpath(ROOT / "solutions")),
        metavar="DIR",
        help="folder with the answers that earn full marks (default: solutions)",
    )
    parser.add_argument(
        "--runs", type=int, default=5, metavar="N", help="how often to measure (default: 5)"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write it (default: calibration/<GPU>.json, which `grade` reads)",
    )


def run(
    options: argparse.Namespace,
    environment: Environment,
    console: Console,
    show: Callable[[Callable[..., str]], None],
) -> int:
    """Measure, write the calibration, `show` the table; return the exit code.

    0 when every problem that is timed on the device has targets, 1 when some have none, 4 when none
    have, 130 after Ctrl-C, when nothing is written. Progress goes to `console`.

    Raises:
        CalibrationError: an option, or an answer, cannot be used.
        EnvironmentFault: the file cannot be written.
    """
    if options.runs < measuring.LEAST_RUNS:
        raise CalibrationError(
            f"--runs: got {options.runs}, expected {measuring.LEAST_RUNS} or more"
        )
    output = options.output or default_path(environment)
    if output.is_dir():
        raise CalibrationError(f"--output: got the folder {output}, expected a file's name")
    if options.output and not output.absolute().parent.is_dir():
        raise CalibrationError(f"--output: no such folder: {output.absolute().parent}")
    files = measuring.read_answers(options.submission, environment.device)
    outcome = _measured(files, environment, options.runs, console)
    interrupted = len(outcome.runs) < outcome.wanted
    calibration: Calibration | None = None
    if outcome.problems and not interrupted:
        shown_as = str(options.submission)
        calibration = of_environment(environment, shown_as, options.runs, outcome.problems)
        try:
            write(output, calibration)
        except OSError as error:
            show(functools.partial(render, outcome, None))
            raise EnvironmentFault(f"--output: cannot write {output}: {error.strerror}") from None
    written = os.path.relpath(output) if calibration else None
    show(functools.partial(render, outcome, calibration, written_to=written))
    if interrupted:
        return scoring.EXIT_INTERRUPTED
    if not outcome.problems:
        return scoring.EXIT_ENVIRONMENT
    return scoring.EXIT_FULL_MARKS if outcome.is_whole else scoring.EXIT_POINTS_LOST


def _measured(
    files: tuple, environment: Environment, runs: int, console: Console
) -> measuring.Outcome:
    """Measure with a live line on a terminal, and a line per run elsewhere as well."""
    with console.status("starting") as status:

        def on_phase(number: int, problem: str, text: str) -> None:
            status.update(f"run {number} of {runs}: {problem}: {clean(text, 60)}")

        def on_run(number: int, done: measuring.Run) -> None:
            speedups = {id: getattr(e.figures, "speedup", None) for id, e in done.speed.items()}
            words = [f"{id} {value:.3g}x" if value else f"{id} -" for id, value in speedups.items()]
            text = f"run {number} of {runs}: {'  '.join(words)}  {done.seconds:.0f} s"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        return measuring.repeat(files, environment, runs, on_phase=on_phase, on_run=on_run)
