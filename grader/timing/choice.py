"""Which speed targets count: those calibrated here, those in problem.toml, or implied ones."""

from __future__ import annotations

from grader.spec.cases import Case
from grader.spec.grade_record import Environment, SpeedFigures
from grader.spec.problem import ManifestError, Problem
from grader.spec.problem_tables import Targets
from grader.timing.calibration import CalibratedProblem, Calibration, slower
from grader.timing.implied import implied

STATED = "problem.toml"
IMPLIED = "implied by this GPU's rates"


def aimed(
    problem: Problem,
    figures: SpeedFigures,
    environment: Environment,
    calibration: Calibration | None,
) -> SpeedFigures:
    """Return `figures` with `floor` and `full`, their source, and a note if something is odd.

    The first of these counts: the calibration, if it has the shape that was timed; problem.toml's
    targets for this GPU model, if the shape is the largest; targets implied by the GPU's rates;
    problem.toml's defaults.
    """
    known = calibration.problems.get(problem.id) if calibration else None
    if calibration and known and known.shape == figures.shape:
        targets: Targets | CalibratedProblem = known
        source, note = f"calibrated on {calibration.day}", slower(known, figures.naive_ms)
    else:
        note = None
        try:
            targets, source = _uncalibrated(problem, figures.shape, environment)
        except ManifestError as error:  # the record is damaged: what was measured still counts
            targets, source = problem.targets(environment.device_name), STATED
            note = str(error)
    update = {"floor": targets.floor, "full": targets.full, "targets": source, "note": note}
    return figures.model_copy(update=update)


def _uncalibrated(problem: Problem, shape: str, environment: Environment) -> tuple[Targets, str]:
    if environment.device == "cpu":
        return problem.targets("cpu"), STATED
    name, chip = environment.device_name, environment.chip
    cases = problem.benchmarks_on("cuda")
    case: Case | None = next((case for case in cases if str(case) == shape), None)
    stated = name in problem.speed.devices and case == cases[0]
    if not stated and case and chip and environment.capability:
        found = implied(problem, case, name, environment.capability, chip)
        if found:
            return found, IMPLIED
    return problem.targets(name), STATED
