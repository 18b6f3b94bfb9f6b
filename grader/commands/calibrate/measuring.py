"""Measures a submission's speed several times, through the door that grading uses."""

from __future__ import annotations

import dataclasses
import functools
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from grader.isolate.processes import Children, Ending
from grader.source.submission import read_source
from grader.spec.findings import (
    MEASURE_S,
    Evidence,
    Measured,
    MeasureRequest,
    Phase,
    SourceFile,
    read_event,
)
from grader.spec.grade_record import Environment, SpeedFigures, Verdict
from grader.spec.problem import Problem, load_problem, problem_ids
from grader.timing.calibration import CalibratedProblem, CalibrationError, calibrated

LEAST_RUNS = 3  # fewer say nothing about a spread


@dataclasses.dataclass(frozen=True)
class TimedRun:
    """One run: the speed of each problem by id, and how many seconds it took."""

    speed: dict[str, Evidence]
    seconds: float


@dataclasses.dataclass(frozen=True)
class CalibrationResult:
    """What several runs came to: targets by problem id, and why a problem has none."""

    runs: tuple[TimedRun, ...]
    problems: dict[str, CalibratedProblem]
    missing: dict[str, str]
    wanted: int

    @property
    def is_whole(self) -> bool:
        """Whether all runs were made, and every problem has targets."""
        return len(self.runs) == self.wanted and not self.missing


def read_answers(submission: Path, device: str) -> tuple[SourceFile, ...]:
    """Return the files of all problems whose speed is measured on `device`.

    Raises:
        CalibrationError: one cannot be used, or there is nothing to measure.
    """
    files = []
    for problem in _timed_on(device):
        source = read_source(problem, submission)
        if source.verdict is not None:
            told = source.message.headline if source.message else str(source.verdict)
            raise CalibrationError(
                f"--submission: {problem.id}/{problem.file}: got {told}; expected the model answer"
            )
        files.append(SourceFile.of(problem.id, source.data))
    if not files:
        raise CalibrationError(f"--device: no problem has a shape that is timed on {device!r}")
    return tuple(files)


def _timed_on(device: str) -> list[Problem]:
    return [p for p in map(load_problem, problem_ids()) if p.benchmarks_on(device)]


def repeat(
    files: Sequence[SourceFile],
    environment: Environment,
    runs: int,
    *,
    on_phase: Callable[[int, str, str], None],
    on_run: Callable[[int, TimedRun], None],
) -> CalibrationResult:
    """Measure `files` so many times, each time in a process of its own; Ctrl-C keeps whole runs.

    Args:
        files: the answers.
        environment: the device, which no grading measures on meanwhile.
        runs: how many times.
        on_phase: is told the run's number, the problem and what is measured.
        on_run: is told the number of a run and what it came to.
    """
    done: list[TimedRun] = []
    children = Children()
    children.open_server()
    try:
        for number in range(1, runs + 1):
            run = _measured(children, files, environment, functools.partial(on_phase, number))
            done.append(run)
            on_run(number, run)
    except KeyboardInterrupt:
        children.stop()
    finally:
        children.close()
    return summed_up([file.problem for file in files], environment.device, done, runs)


def _measured(
    children: Children,
    files: Sequence[SourceFile],
    environment: Environment,
    on_phase: Callable[[str, str], None],
) -> TimedRun:
    start, ending, found = time.monotonic(), Ending(), dict[str, Evidence]()
    request = MeasureRequest(
        sources=tuple(files),
        device=environment.device,
        device_uuid=environment.device_uuid,
        token=secrets.token_hex(),
    )
    asked = request.model_dump_json()
    for line in children.events("grader.judge.measure", [], asked, MEASURE_S, ending):
        event = read_event(line, request.token)
        if isinstance(event, Phase):
            on_phase(event.problem, event.text)
        elif isinstance(event, Measured):
            found[event.problem] = event.speed
    for file in files:
        if file.problem not in found:
            reason = f"the measuring process ended early: {ending.last_line}"
            found[file.problem] = Evidence(verdict=Verdict.INTERNAL, reason=reason)
    return TimedRun(found, time.monotonic() - start)


def summed_up(
    ids: Sequence[str], device: str, runs: Sequence[TimedRun], wanted: int
) -> CalibrationResult:
    """Return the targets that `runs` imply, and for each problem without any the reason."""
    problems, missing = {}, {}
    for id in ids:
        found = [run.speed[id] for run in runs]
        figures = [
            e.figures for e in found if not e.verdict and isinstance(e.figures, SpeedFigures)
        ]
        figures = [f for f in figures if f.speedup and f.naive_ms]
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
