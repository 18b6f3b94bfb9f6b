"""`python -m grader race`: times an answer beside naive PyTorch, SDPA and the model answer."""

from __future__ import annotations

import argparse
import dataclasses
import math

from rich.console import Console

from grader.base import stdout
from grader.base.text import clean, fit, wrap
from grader.commands.measuring import measured
from grader.commands.options import SUBMISSION, UsageError, expect_folder, one_or_all
from grader.isolate.processes import Children
from grader.judge import scoring
from grader.source.submission import read_source
from grader.spec.environment import EnvironmentFault, JudgeFault, probe
from grader.spec.findings import Lane, Phase, Raced, SourceFile
from grader.spec.grade_record import Environment, GradeRecord, SpeedFigures
from grader.spec.problem import ROOT, ManifestError, examples, load_problem
from grader.spec.roofline import Roof, roof
from grader.timing.calibration import CalibrationError
from grader.timing.calibration import find as find_calibration

_NAME, _BAR = 34, 17
_NOISY_PERCENT = 10.0


@dataclasses.dataclass(frozen=True)
class Race:
    """The times of a race, the recorded time of the model answer, and this GPU's roofline."""

    environment: Environment
    raced: Raced
    recorded: Recorded | None
    roof: Roof | None


def render(race: Race, *, width: int = 80, color: bool = False) -> str:
    """Return a row per contender: milliseconds, speed-up over naive, and share of the roofline."""
    raced, roof = race.raced, race.roof
    lanes = [lane for lane in (raced.naive, raced.library, raced.yours) if lane is not None]
    rows = [(lane.name, lane.ms) for lane in lanes if lane.ms]
    if race.recorded:
        rows.append((f"model answer, recorded {race.recorded.day}", race.recorded.ms))
    if roof:
        rows.append(("roofline", roof.ms))
    rows.sort(key=lambda row: row[1])
    naive_ms = raced.naive.ms if raced.naive else None
    environment = race.environment
    lines = wrap(f"race {raced.problem}: {clean(raced.shape)}", width, "", "  ")
    versions = f"torch {clean(environment.torch)}, Triton {clean(environment.triton)}"
    lines += [*wrap(f"{clean(environment.device_name, 60)}, {versions}", width), ""]
    lines.append(f"{'':{_NAME}}{'ms':>9}{'x naive':>9}{'of roof':>9}")
    for name, ms in rows:
        speedup = f"{naive_ms / ms:.3g}" if naive_ms else "-"
        share = f"{100 * roof.ms / ms:.3g} %" if roof else "-"
        bar = "#" * _bar(ms, rows[0][1], rows[-1][1])
        row = f"{fit(clean(name), _NAME)}{ms:>9.3g}{speedup:>9}{share:>9}  {bar}".rstrip()
        lines.append(f"\x1b[1m{row}\x1b[0m" if color and name == raced.yours.name else row)
    lines += ["", *_notes(race, lanes, width)]
    return "\n".join(lines) + "\n"


def _bar(ms: float, fastest: float, slowest: float) -> int:
    """Return the columns of a bar, longer for a faster contender, on a logarithmic scale."""
    if slowest <= fastest:
        return _BAR
    return 1 + round((_BAR - 1) * math.log(slowest / ms) / math.log(slowest / fastest))


def _notes(race: Race, lanes: list[Lane], width: int) -> list[str]:
    raced, lines = race.raced, []
    for lane in lanes:
        if lane.reason:
            lines += wrap(f"{lane.name}: not timed: {clean(lane.reason)}", width, "", "  ")
        elif (lane.spread_percent or 0.0) > _NOISY_PERCENT:
            reason = f"{lane.name}: the rounds differ by {lane.spread_percent:.0f} %: run it again"
            lines += wrap(reason, width, "", "  ")
    for text in raced.left_out:
        lines += wrap(f"left out: {clean(text, 200)}", width, "", "  ")
    if "window_size" in raced.shape and raced.library:
        lines += wrap("SDPA gets the window as a mask, and computes all pairs", width)
    if race.recorded is None:
        lines += wrap("model answer: no time is recorded for this GPU and shape", width)
    lines += wrap(_roof_line(race.roof), width, "", "  ")
    lines += wrap(
        f"bars are logarithmic, longer is faster; nothing here is graded: make grade"
        f" P={raced.problem}",
        width,
    )
    return lines


def _roof_line(roof: Roof | None) -> str:
    if roof is None:
        return "roofline: the rates of this GPU are not known"
    bytes_ms = 1000 * roof.bytes / roof.bandwidth
    moved = f"{roof.bytes / 1e6:.3g} MB at {roof.bandwidth / 1e9:.4g} GB/s take {bytes_ms:.3g} ms"
    if not roof.operations:
        return f"roofline: {moved}"
    dots_ms = 1000 * roof.operations / roof.rate
    dots = f"{roof.operations / 1e9:.3g} GFLOP of dots at {roof.rate / 1e12:.4g} TFLOP/s"
    return f"roofline: {dots} take {dots_ms:.3g} ms, {moved}; the longer counts"


RECORDS = ROOT / "docs" / "records"


@dataclasses.dataclass(frozen=True)
class Recorded:
    """The model answer's milliseconds per call, and the day of the measurement."""

    ms: float
    day: str


def recorded(environment: Environment, problem_id: str, shape: str) -> Recorded | None:
    """Return the time at this shape from the machine's calibration, else from the newest record."""
    try:
        calibration = find_calibration(None, environment)
    except CalibrationError:
        calibration = None
    known = calibration.problems.get(problem_id) if calibration else None
    if calibration and known and known.shape == shape:
        return Recorded(known.naive_median_ms / known.median, calibration.day)
    for path in sorted(RECORDS.glob("nvidia-*.json"), reverse=True):
        try:
            record = GradeRecord.model_validate_json(path.read_bytes())
        except (OSError, ValueError):  # of an older grader
            continue
        if record.environment.device_name != environment.device_name:
            continue
        timed = (p.components.get("speed") for p in record.problems if p.id == problem_id)
        for figures in (speed.figures for speed in timed if speed):
            if isinstance(figures, SpeedFigures) and figures.shape == shape and figures.median_ms:
                return Recorded(figures.median_ms, path.stem[-10:])
    return None


HELP = "time your answer beside naive PyTorch and SDPA"
OPTIONS = {"--only p04": "the problem", **SUBMISSION}


def run(options: argparse.Namespace) -> int:
    """Time all contenders and show the times; return 0, or 1 if your answer was not timed."""
    if options.only is None:
        raise UsageError(
            f"--only: got nothing, expected one problem: make race P={examples('p04')}"
        )
    (id,) = one_or_all(options.only)
    folder, problem = expect_folder(options.submission), load_problem(id)
    environment = probe("auto")
    if environment.device != "cuda":
        raise EnvironmentFault(
            "race: got no CUDA GPU, expected one: only there a kernel has a speed; see"
            " docs/where-to-work.md for GPUs that can be borrowed"
        )
    source = read_source(problem, folder)
    if source.verdict is not None:
        reason = f"{problem.file}: {source.message.headline}"
        raise ManifestError(f"race: {problem.id}/{reason}; make grade P={problem.id}")
    raced = _raced(SourceFile.of(problem.id, source.data), environment)
    if raced.internal:
        raise JudgeFault(f"race: {problem.id} was not timed: {clean(raced.fault)}")
    if raced.fault or raced.naive is None or raced.yours is None:
        raise EnvironmentFault(f"race: {problem.id} cannot be timed here: {clean(raced.fault)}")
    case = next((c for c in problem.benchmarks_on("cuda") if str(c) == raced.shape), None)
    known = recorded(environment, problem.id, raced.shape)
    limit = roof(problem, case, environment) if case else None
    stdout.show(render, Race(environment, raced, known, limit))
    return scoring.EXIT_POINTS_LOST if raced.yours.reason else scoring.EXIT_FULL_MARKS


def _raced(file: SourceFile, environment: Environment) -> Raced:
    children, module = Children(), "grader.commands.race.racing"
    try:
        with Console(stderr=True).status("starting") as status:

            def on_phase(phase: Phase) -> None:
                status.update(clean(phase.text, 60))

            events, fault = measured(children, module, [file], environment, on_phase)
    finally:
        children.stop()
    found = (event for event in events if isinstance(event, Raced))
    return next(found, Raced(problem=file.problem, fault=fault, internal=True))
