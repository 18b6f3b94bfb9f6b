"""A calibration: the speed-ups of the model answers on one machine, and targets made of them.

`grader calibrate` writes one, `grader grade` reads it before anything of a submission runs.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError

from grader.base.atomic_write import write_whole
from grader.spec.grade_record import Environment, Record, SpeedFigures
from grader.spec.problem import ROOT, ManifestError, Problem, explained, load_problem, problem_ids
from grader.timing.spacing import rounded_down, spaced

SCHEMA_VERSION = 1
FOLDER = ROOT / "calibration"
# Share of the median speed-up that earns all points. Gradings of the model answer on one GPU model,
# some on different machines, were up to 15 % apart (docs/records, benchmarks/NOTES.md), for which
# 0.87 would do. The rest is room for a right answer of another design, as much as the targets in
# problem.toml leave, so that a point means the same on a calibrated GPU.
SHARE = 0.6
# Two baselines of one measurement may differ by this much (grader/checks/performance.py).
USUAL_PERCENT = 10.0
_LARGEST_FILE = 2**20
_AGAIN = "calibrate again with python -m grader calibrate"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Percent = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CalibrationError(ManifestError):
    """A calibration that cannot be made or used; the message says what, got, expected, and help."""


def _is_date(text: str) -> str:
    datetime.datetime.fromisoformat(text)
    return text


class CalibratedProblem(Record):
    """One problem: speed-ups of every run, naive's own times in milliseconds, and the targets.

    `share` is `full` over the median speed-up; a spread is max / min - 1.
    """

    shape: str
    speedups: Annotated[tuple[Positive, ...], Field(min_length=1)]
    median: Positive
    spread_percent: Percent
    naive_ms: Annotated[tuple[Positive, ...], Field(min_length=1)]
    naive_median_ms: Positive
    naive_spread_percent: Percent
    share: Positive
    floor: Positive
    full: Positive


class Calibration(Record):
    """Targets of one GPU model (or CPU), with the machine, the versions and the time of day."""

    schema_version: Literal[1] = SCHEMA_VERSION
    kind: Literal["calibration"] = "calibration"
    date: Annotated[str, AfterValidator(_is_date)]
    submission: str
    device: Literal["cpu", "cuda"]
    device_name: str
    capability: tuple[int, int] | None = None
    driver: str | None = None
    torch: str | None = None
    triton: str | None = None
    runs: Annotated[int, Field(ge=1)]
    problems: dict[str, CalibratedProblem]

    @property
    def day(self) -> str:
        """The day on which it was made, as 2026-11-23."""
        return self.date[:10]


def calibrated(problem: Problem, device: str, found: Sequence[SpeedFigures]) -> CalibratedProblem:
    """Return the targets that the figures of several runs imply.

    `full` is `SHARE` of the median, or less where the runs differ so much that this would not lie
    below the lowest of them by the whole spread once more: after five runs, if they are normally
    distributed, the next lies below that once in 67 times. `floor` is that of problem.toml, unless
    it is too close to `full`.

    Raises:
        ValueError: no figures, or of several shapes.
    """
    shapes = {figures.shape for figures in found}
    if len(shapes) != 1:
        raise ValueError(f"shapes: got {sorted(shapes)}, expected one: is the memory in use?")
    speedups = [figures.speedup for figures in found if figures.speedup]
    naive = [figures.naive_ms for figures in found if figures.naive_ms]
    median, spread = statistics.median(speedups), _spread(speedups)
    lowest = min(speedups) / (1 + spread)
    stated = problem.targets("cpu") if device == "cpu" else problem.speed
    targets = spaced(stated.floor, rounded_down(min(SHARE * median, lowest)))
    return CalibratedProblem(
        shape=shapes.pop(),
        speedups=tuple(round(value, 4) for value in speedups),
        median=round(median, 4),
        spread_percent=round(100 * spread, 2),
        naive_ms=tuple(round(value, 6) for value in naive),
        naive_median_ms=round(statistics.median(naive), 6),
        naive_spread_percent=round(100 * _spread(naive), 2),
        share=round(targets.full / median, 3),
        floor=targets.floor,
        full=targets.full,
    )


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values) - 1


def of_environment(
    environment: Environment, submission: str, runs: int, problems: dict[str, CalibratedProblem]
) -> Calibration:
    """Return the calibration of this machine, dated now (UTC)."""
    kept = ("device", "device_name", "capability", "driver", "torch", "triton")
    return Calibration(
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        submission=submission,
        runs=runs,
        problems=problems,
        **{name: getattr(environment, name) for name in kept},
    )


def default_path(environment: Environment) -> Path:
    """Return where a calibration of this GPU model (or CPU) is written and looked for."""
    name = re.sub(r"[^a-z0-9]+", "-", environment.device_name.lower()).strip("-") or "unnamed"
    if environment.device == "cpu" and name != "cpu":
        name = f"cpu-{name}"
    return FOLDER / f"{name}.json"


def find(path: Path | None, environment: Environment) -> Calibration | None:
    """Return the calibration to grade with: of `path`, or the default one if there is one.

    Raises:
        CalibrationError: it cannot be used on this machine.
    """
    if path is None:
        path = default_path(environment)
        if not os.path.lexists(path):
            return None
    found = read(path)
    expected = environment.device, environment.device_name
    if (found.device, found.device_name) != expected:
        raise CalibrationError(
            f"{path}: device_name: got {found.device_name!r} ({found.device}), expected"
            f" {expected[1]!r} ({expected[0]}), which is here; leave --calibration out, or"
            f" {_AGAIN}"
        )
    return found


def read(path: Path) -> Calibration:
    """Read a calibration, and check that problem.toml has its problems and shapes.

    Raises:
        CalibrationError: the file is missing, no calibration, too new, or of other shapes.
    """
    data = _parsed(path)
    version = data.get("schema_version") if isinstance(data, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise CalibrationError(
            f"{path}: schema_version: got {version}, expected {SCHEMA_VERSION}: a newer grader"
            f" wrote it; update this one, or {_AGAIN}"
        )
    try:
        found = Calibration.model_validate_json(json.dumps(data))
    except ValidationError as error:
        raise CalibrationError(f"{path}: {explained(error)}; {_AGAIN}") from None
    for problem_id, known in found.problems.items():
        _expect_known(path, problem_id, known, found.device)
    return found


def _parsed(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_FILE + 1)
        if len(text) > _LARGEST_FILE:
            raise ValueError("more than 1 MiB")
        return json.loads(text)
    except FileNotFoundError:
        raise CalibrationError(
            f"--calibration: got {path}, which does not exist; expected a file that python -m"
            " grader calibrate wrote"
        ) from None
    except OSError as error:
        raise CalibrationError(f"{path}: cannot be read: {error.strerror}; {_AGAIN}") from None
    except (ValueError, RecursionError) as error:
        raise CalibrationError(f"{path}: not valid JSON: {error}; {_AGAIN}") from None


def _expect_known(path: Path, problem_id: str, known: CalibratedProblem, device: str) -> None:
    where = f"{path}: problems.{problem_id}"
    if problem_id not in problem_ids():
        raise CalibrationError(f"{where}: got an unknown problem, expected {problem_ids()[0]}, ...")
    shapes = [str(case) for case in load_problem(problem_id).benchmarks_on(device)]
    if known.shape not in shapes:
        raise CalibrationError(
            f"{where}.shape: got {known.shape!r}, expected {' or '.join(map(repr, shapes))}:"
            f" problem.toml has changed since; {_AGAIN}"
        )
    if not known.floor < known.full:
        got = f"got {known.full}, expected more than floor, {known.floor}"
        raise CalibrationError(f"{where}.full: {got}; {_AGAIN}")


def write(path: Path, calibration: Calibration) -> None:
    """Write a calibration in one step, with its folder if that is missing.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, calibration.model_dump_json(indent=1) + "\n")


def slower(known: CalibratedProblem, naive_ms: float | None) -> str | None:
    """Return a note where naive takes longer than when calibrated, beyond what is usual; or None.

    Naive is the judge's own code: when it takes longer, the machine has become slower. Usual is
    twice the spread that the calibration saw, and never less than what two baselines of one
    measurement may differ by.
    """
    usual = max(2 * known.naive_spread_percent, USUAL_PERCENT) / 100
    if naive_ms is None or not naive_ms > known.naive_median_ms * (1 + usual):
        return None
    return (
        f"this machine has become slower: naive took {naive_ms:.3g} ms,"
        f" {known.naive_median_ms:.3g} ms when it was calibrated"
    )


def changed_versions(calibration: Calibration, environment: Environment) -> tuple[str, ...]:
    """Return a note for each of torch and triton that has another version than calibrated."""
    notes = []
    for tool in ("torch", "triton"):
        then, now = getattr(calibration, tool), getattr(environment, tool)
        if then != now:
            notes.append(f"calibrated with {tool} {then}, this is {tool} {now}: calibrate again")
    return tuple(notes)
