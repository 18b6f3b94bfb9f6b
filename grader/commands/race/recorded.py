"""How long the model answer took on this GPU model, where somebody has measured it."""

from __future__ import annotations

import dataclasses
import json

from grader.spec.grade_record import Environment, GradeRecord, SpeedFigures
from grader.spec.problem import ROOT
from grader.timing.calibration import CalibrationError
from grader.timing.calibration import find as find_calibration

RECORDS = ROOT / "docs" / "records"


@dataclasses.dataclass(frozen=True)
class Recorded:
    """Milliseconds per call, and the day on which they were measured."""

    ms: float
    day: str


def recorded(environment: Environment, problem_id: str, shape: str) -> Recorded | None:
    """Return the time at this shape: of this machine's calibration, or of the newest record."""
    try:
        calibration = find_calibration(None, environment)
    except CalibrationError:
        calibration = None
    known = calibration.problems.get(problem_id) if calibration else None
    if calibration and known and known.shape == shape:
        return Recorded(known.naive_median_ms / known.median, calibration.day)
    for path in sorted(RECORDS.glob("nvidia-*.json"), reverse=True):
        try:
            record = GradeRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):  # of an older grader
            continue
        if record.environment.device_name != environment.device_name:
            continue
        for problem in record.problems:
            speed = problem.components.get("speed")
            figures = speed.figures if speed else None
            if problem.id != problem_id or not isinstance(figures, SpeedFigures):
                continue
            if figures.shape == shape and figures.median_ms:
                return Recorded(figures.median_ms, path.stem[-10:])
    return None
