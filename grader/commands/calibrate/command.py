"""`python -m grader calibrate`: times the model answers several times, writes speed targets."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from grader.base import stdout
from grader.base.text import clean, milliseconds, plain_table, plural, styled, wrap
from grader.commands.measuring import measured
from grader.commands.options import DEVICE, SOLUTIONS, expect_folder, expect_place, writing
from grader.isolate.processes import Children
from grader.judge import scoring
from grader.report.message import ID_LIMIT
from grader.source.submission import read_source
from grader.spec.environment import probe
from grader.spec.findings import Evidence, Measured, Phase, SourceFile
from grader.spec.grade_record import Environment, SpeedFigures, Verdict
from grader.spec.problem import load_problem, problem_ids
from grader.timing.calibration import (
    CalibratedProblem,
    Calibration,
    CalibrationError,
    calibrated,
    default_path,
    of_environment,
    write,
)

LEAST_RUNS = 3  # with fewer a spread has no meaning


@dataclasses.dataclass(frozen=True)
class TimedRun:
    """One timing of all problems: speed by problem id, and how many seconds the run took."""

    speed: dict[str, Evidence]
    seconds: float

    @property
    def words(self) -> str:
        """The speed-ups and the duration, as one line."""
        speedups = {id: getattr(e.figures, "speedup", None) for id, e in self.speed.items()}
        words = [f"{id} {value:.3g}x" if value else f"{id} -" for id, value in speedups.items()]
        return f"{'  '.join(words)}  {self.seconds:.0f} s"


@dataclasses.dataclass(frozen=True)
class CalibrationResult:
    """The outcome of several runs: targets by problem id, or the reason why a problem has none."""

    runs: tuple[TimedRun, ...]
    problems: dict[str, CalibratedProblem]
    missing: dict[str, str]
    wanted: int

    @property
    def is_whole(self) -> bool:
        """Whether all runs were made, and every problem has targets."""
        return len(self.runs) == self.wanted and not self.missing


def read_answers(submission: Path, device: str) -> tuple[SourceFile, ...]:
    """Return the answers to all problems whose speed is measured on `device`.

    Raises:
        CalibrationError: an answer cannot be used, or no problem is timed on `device`.
    """
    files = []
    for problem in (p for p in map(load_problem, problem_ids()) if p.benchmarks_on(device)):
        source = read_source(problem, submission)
        if source.verdict is not None:
            what = f"{problem.file}: got {source.message.headline}; expected the model answer"
            raise CalibrationError(f"--submission: {problem.id}/{what}")
        files.append(SourceFile.of(problem.id, source.data))
    if not files:
        raise CalibrationError(f"--device: no problem has a shape that is timed on {device!r}")
    return tuple(files)


def repeat(
    files: Sequence[SourceFile], environment: Environment, runs: int, console: Console
) -> CalibrationResult:
    """Time `files` in `runs` runs, a process each; on Ctrl-C return the runs that are complete.

    `console` gets a line per run, and on a terminal also a live status.
    """
    done: list[TimedRun] = []
    children = Children()
    children.open_server()
    try:
        with console.status("starting") as status:
            for number in range(1, runs + 1):
                head = f"run {number} of {runs}: "

                def on_phase(phase: Phase, head: str = head) -> None:
                    status.update(f"{head}{phase.problem}: {clean(phase.text, 60)}")

                start, module = time.monotonic(), "grader.judge.measure"
                events, lost = measured(children, module, files, environment, on_phase)
                found = {e.problem: e.speed for e in events if isinstance(e, Measured)}
                missing = Evidence(verdict=Verdict.INTERNAL, reason=lost)
                speed = {file.problem: found.get(file.problem, missing) for file in files}
                done.append(TimedRun(speed, time.monotonic() - start))
                console.print(head + done[-1].words, markup=False, highlight=False, soft_wrap=True)
    except KeyboardInterrupt:
        children.stop()
    finally:
        children.close()
    return summed_up([file.problem for file in files], environment.device, done, runs)


def summed_up(
    ids: Sequence[str], device: str, runs: Sequence[TimedRun], wanted: int
) -> CalibrationResult:
    """Return the targets that `runs` imply, and the reason for each problem without any."""
    problems, missing = {}, {}
    for id in ids:
        found = [run.speed[id] for run in runs]
        figures = [e.figures for e in found if not e.verdict]
        figures = [f for f in figures if isinstance(f, SpeedFigures) and f.speedup and f.naive_ms]
        if len(figures) >= LEAST_RUNS:
            try:
                problems[id] = calibrated(load_problem(id), device, figures)
            except ValueError as error:
                missing[id] = str(error)
            continue
        reasons = [e.reason or str(e.verdict) for e in found if e.verdict]
        counted = f"measured in {len(figures)} of {len(runs)} runs, expected {LEAST_RUNS} or more"
        missing[id] = "; ".join([counted, *reasons[:1]])
    return CalibrationResult(tuple(runs), problems, missing, wanted)


HELP = "measure the model answers here and write this GPU's speed targets"
OPTIONS = {
    **SOLUTIONS,
    "--runs N=5": "how often to measure (default: 5)",
    **DEVICE,
    "--output FILE": "where to write it (default: calibration/<GPU>.json, which `grade` reads)",
}


def run(options: argparse.Namespace) -> int:
    """Measure, write the calibration, show the table; return the exit code.

    0 when every problem timed on the device has targets, 1 when only some have, 4 when none has,
    and 130 after Ctrl-C, which writes no file.
    """
    folder, runs = expect_folder(options.submission), options.runs
    environment = probe(options.device)
    if runs < LEAST_RUNS:
        raise CalibrationError(f"--runs: got {runs}, expected {LEAST_RUNS} or more")
    expect_place(options.output, "--output")
    output = options.output or default_path(environment)
    files = read_answers(folder, environment.device)
    outcome = repeat(files, environment, runs, Console(stderr=True))
    interrupted = len(outcome.runs) < outcome.wanted
    calibration: Calibration | None = None
    try:
        if outcome.problems and not interrupted:
            made = of_environment(environment, str(folder), runs, outcome.problems)
            with writing(output, "--output"):
                write(output, made)
            calibration = made
    finally:
        written = os.path.relpath(output) if calibration else None
        stdout.show(render, outcome, calibration, written_to=written)
    if interrupted:
        return scoring.EXIT_INTERRUPTED
    if not outcome.problems:
        return scoring.EXIT_ENVIRONMENT
    return scoring.EXIT_FULL_MARKS if outcome.is_whole else scoring.EXIT_POINTS_LOST


def render(
    outcome: CalibrationResult,
    calibration: Calibration | None,
    *,
    written_to: str | None = None,
    width: int = 80,
    color: bool = False,
) -> str:
    """Return the targets of each problem, why others have none, and a line about the machine."""
    lines: list[str] = []
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
    return styled([*([_table(outcome)] if outcome.problems else []), *lines], width, color=color)


def _table(outcome: CalibrationResult) -> Table:
    names = ("calibrated", "speed-up", "lowest", "spread", "naive", "spread")
    rows = (
        (
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
        for id, found in outcome.problems.items()
    )
    return plain_table((*names, "floor", "full", "share"), rows, ("calibrated",))
