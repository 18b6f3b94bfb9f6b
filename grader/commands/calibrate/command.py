"""`python -m grader calibrate`: measures, writes the file, and says what it came to."""

from __future__ import annotations

import argparse
import functools
import os
from pathlib import Path

from rich.console import Console

from grader.base import stdout
from grader.base.text import clean
from grader.commands.calibrate import measuring
from grader.commands.calibrate.view import render
from grader.commands.options import (
    add_device,
    add_submission,
    expect_folder,
    expect_place,
    writing,
)
from grader.judge import scoring
from grader.spec.environment import EnvironmentFault, probe
from grader.spec.grade_record import Environment
from grader.spec.problem import ROOT
from grader.timing.calibration import (
    Calibration,
    CalibrationError,
    default_path,
    of_environment,
    write,
)

HELP = "measure the model answers here and write this GPU's speed targets"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `calibrate`."""
    add_submission(parser, ROOT / "solutions", "solutions, which earn full marks")
    parser.add_argument(
        "--runs", type=int, default=5, metavar="N", help="how often to measure (default: 5)"
    )
    add_device(parser)
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="where to write it (default: calibration/<GPU>.json, which `grade` reads)",
    )


def run(options: argparse.Namespace) -> int:
    """Measure, write the calibration, show the table; return the exit code.

    0 when every problem that is timed on the device has targets, 1 when some have none, 4 when none
    have, 130 after Ctrl-C, when nothing is written.

    Raises:
        UsageError: an option cannot be used.
        CalibrationError: an answer cannot be used.
        EnvironmentFault: the file cannot be written.
    """
    folder, runs = expect_folder(options.submission), options.runs
    environment = probe(options.device)
    if runs < measuring.LEAST_RUNS:
        raise CalibrationError(f"--runs: got {runs}, expected {measuring.LEAST_RUNS} or more")
    expect_place(options.output, "--output")
    output = options.output or default_path(environment)
    files = measuring.read_answers(folder, environment.device)
    outcome = _measured(files, environment, runs, Console(stderr=True))
    interrupted = len(outcome.runs) < outcome.wanted
    calibration: Calibration | None = None
    if outcome.problems and not interrupted:
        calibration = of_environment(environment, str(folder), runs, outcome.problems)
        try:
            with writing(output, "--output"):
                write(output, calibration)
        except EnvironmentFault:
            stdout.show(functools.partial(render, outcome, None))
            raise
    written = os.path.relpath(output) if calibration else None
    stdout.show(functools.partial(render, outcome, calibration, written_to=written))
    if interrupted:
        return scoring.EXIT_INTERRUPTED
    if not outcome.problems:
        return scoring.EXIT_ENVIRONMENT
    return scoring.EXIT_FULL_MARKS if outcome.is_whole else scoring.EXIT_POINTS_LOST


def _measured(
    files: tuple, environment: Environment, runs: int, console: Console
) -> measuring.CalibrationResult:
    """Measure with a live line on a terminal, and a line per run elsewhere as well."""
    with console.status("starting") as status:

        def on_phase(number: int, problem: str, text: str) -> None:
            status.update(f"run {number} of {runs}: {problem}: {clean(text, 60)}")

        def on_run(number: int, done: measuring.TimedRun) -> None:
            speedups = {id: getattr(e.figures, "speedup", None) for id, e in done.speed.items()}
            words = [f"{id} {value:.3g}x" if value else f"{id} -" for id, value in speedups.items()]
            text = f"run {number} of {runs}: {'  '.join(words)}  {done.seconds:.0f} s"
            console.print(text, markup=False, highlight=False, soft_wrap=True)

        return measuring.repeat(files, environment, runs, on_phase=on_phase, on_run=on_run)
