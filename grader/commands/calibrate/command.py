"""`python -m grader calibrate`: measures, writes the file, and says what it came to."""

from __future__ import annotations

import argparse
import functools
import os

from rich.console import Console
from rich.table import Table
from rich.text import Text

from grader.base import stdout
from grader.base.text import clean, milliseconds, plural, text_console, without_blanks, wrap
from grader.commands.calibrate import measuring
from grader.commands.calibrate.measuring import CalibrationResult
from grader.commands.options import DEVICE, SOLUTIONS, expect_folder, expect_place, writing
from grader.judge import scoring
from grader.report.message import ID_LIMIT
from grader.spec.environment import EnvironmentFault, probe
from grader.spec.grade_record import Environment
from grader.timing.calibration import (
    Calibration,
    CalibrationError,
    default_path,
    of_environment,
    write,
)

HELP = "measure the model answers here and write this GPU's speed targets"


OPTIONS = {
    **SOLUTIONS,
    "--runs N=5": "how often to measure (default: 5)",
    **DEVICE,
    "--output FILE": "where to write it (default: calibration/<GPU>.json, which `grade` reads)",
}


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


_MOST_NAMES = 3


def render(
    outcome: CalibrationResult,
    calibration: Calibration | None,
    *,
    written_to: str | None = None,
    width: int = 80,
    color: bool = False,
) -> str:
    """Return a row per problem with targets, why others have none, and of which machine it is."""
    console = text_console(width, color=color)
    if outcome.problems:
        console.print(_table(outcome))
    lines = []
    for id, reason in outcome.missing.items() if outcome.runs else ():
        lines += wrap(clean(reason), width, f"{clean(id, ID_LIMIT)} not calibrated: ", "    ")
    count, wanted = len(outcome.runs), outcome.wanted
    done = plural(count, "run") if count == wanted else f"{count} of {plural(wanted, 'run')}"
    if calibration:
        words = [clean(calibration.device_name, 60), done, calibration.date]
        for tool in ("driver", "torch", "triton"):
            if version := getattr(calibration, tool):
                words.append(f"{tool} {clean(version, 30)}")
        lines += wrap("   ".join(words), width)
    elif count < wanted:
        lines.append(f"interrupted after {done}: nothing is written")
    if written_to:
        lines.append(f"written to {written_to}")
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    return without_blanks(console.file.getvalue())


def _table(outcome: CalibrationResult) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    names = ("calibrated", "speed-up", "lowest", "spread", "naive", "spread")
    for name in (*names, "floor", "full", "share"):
        side = "left" if name == "calibrated" else "right"
        table.add_column(name, justify=side, no_wrap=True, header_style="")
    for id, found in outcome.problems.items():
        table.add_row(
            id,
            f"{found.median:.3g}x",
            f"{min(found.speedups):.3g}x",
            f"{found.spread_percent:.2g} %",
            milliseconds(found.naive_median_ms),
            f"{found.naive_spread_percent:.2g} %",
            f"{found.floor:g}x",
            f"{found.full:g}x",
            f"{found.share:.2f}",
        )
    return table
