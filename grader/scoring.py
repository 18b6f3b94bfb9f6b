"""From findings to points: pure functions over the records of `grader.model`.

Rules that hold everywhere here:

- Components, problems and totals hold whole points. The share of a single check may be a
  fraction; it is for display, and the component is not the sum of the displayed shares.
- 0 <= earned <= available <= possible.
- A missing or contradictory input is scored zero or `INTERNAL`; nothing is skipped silently.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grader.model import (
    COMPONENTS,
    CheckResult,
    ComponentResult,
    GradeRecord,
    Message,
    Points,
    ProblemResult,
    Verdict,
    worst,
)

EXIT_FULL_MARKS = 0
EXIT_POINTS_LOST = 1
EXIT_JUDGE_FAULT = 3
EXIT_ENVIRONMENT = 4
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report Ctrl-C

# A fraction computed as 0.9999999999 by rounding in the logarithms still earns the point.
ROUNDING_SLACK = 1e-9


# Constructors for the components that carry no measurement.


def not_measured(possible: int, reason: str) -> ComponentResult:
    """Return a component that cannot be measured here: its points are not available."""
    return ComponentResult(Verdict.NOT_MEASURED, Points(0, 0, possible), reason)


def internal(possible: int, reason: str) -> ComponentResult:
    """Return a component lost to a fault of the judge: it costs the student no points."""
    return ComponentResult(Verdict.INTERNAL, Points(0, 0, possible), reason)


def withheld(verdict: Verdict, possible: int, reason: str) -> ComponentResult:
    """Return a component that was available and earned nothing (rejected, skipped, ...)."""
    return ComponentResult(verdict, Points(0, possible, possible), reason)


# Correctness.


def score_correctness(
    checks: Sequence[CheckResult], possible: int
) -> tuple[ComponentResult, tuple[CheckResult, ...]]:
    """Share `possible` points among `checks` by weight; return the component and the scored checks.

    earned = floor(possible * passed weight / total weight): full only when every check passes.
    A check that is `INTERNAL` or `NOT_MEASURED` is not available: what is available is the share
    of the rest, rounded down, but always above `earned` while one of the rest has not passed.
    A check that was `SKIPPED` because of an earlier failure is available and not earned.
    """
    weights = [max(check.weight, 0) for check in checks]
    total_weight = sum(weights)
    if possible <= 0 or total_weight == 0:
        scored = tuple(dataclasses.replace(check, points=Points()) for check in checks)
        return internal(max(possible, 0), "the problem has no check that carries weight"), scored

    passed = measured = 0
    scored_checks = []
    for check, weight in zip(checks, weights, strict=True):
        share = round(possible * weight / total_weight, 2)
        if _is_measured(check.verdict):
            measured += weight
            earned_share = share if check.verdict is Verdict.PASS else 0
            passed += weight if check.verdict is Verdict.PASS else 0
            points = Points(earned_share, share, share)
        else:
            points = Points(0, 0, share)
        scored_checks.append(dataclasses.replace(check, points=points))

    earned = possible * passed // total_weight
    available = possible * measured // total_weight
    if passed < measured:
        # passed < total here, hence earned < possible and the sum stays within `possible`.
        available = max(available, earned + 1)
    verdict = worst(c.verdict for c in checks if c.verdict is not Verdict.NOT_MEASURED)
    figures = {
        "checks_passed": sum(c.verdict is Verdict.PASS for c in checks),
        "checks_total": len(checks),
    }
    component = ComponentResult(
        verdict, Points(earned, available, possible), _correctness_reason(checks), figures
    )
    return component, tuple(scored_checks)


def _is_measured(verdict: Verdict) -> bool:
    return verdict not in (Verdict.INTERNAL, Verdict.NOT_MEASURED)


def _correctness_reason(checks: Sequence[CheckResult]) -> str | None:
    parts = []
    measured = [c for c in checks if _is_measured(c.verdict)]
    failed = [c for c in measured if c.verdict is not Verdict.PASS]
    faults = [c.id for c in checks if c.verdict is Verdict.INTERNAL]
    absent = [c.id for c in checks if c.verdict is Verdict.NOT_MEASURED]
    if failed:
        parts.append(f"{len(measured) - len(failed)} of {len(measured)} checks pass")
    if faults:
        parts.append(f"fault of the judge, costs no points: {', '.join(faults)}")
    if absent:
        parts.append(f"not measured: {', '.join(absent)}")
    return "; ".join(parts) or None


# Speed and memory. The components made here are not yet gated by correctness: see `gate`.


def speed_fraction(speedup: float, floor: float, full: float) -> float:
    """Return the part of the speed points earned: 0 at `floor`, 1 at `full`, linear in the log.

    NaN, infinity, zero and negative ratios are not measurements and earn 0, and so does every
    ratio when not 0 < floor < full (`score_speed` reports such targets as a fault of the judge).
    """
    ratio, low, high = finite(speedup), finite(floor), finite(full)
    if ratio is None or not _valid_targets(low, high):
        return 0.0
    if not ratio > low:
        return 0.0
    if ratio >= high:
        return 1.0
    return (math.log(ratio) - math.log(low)) / (math.log(high) - math.log(low))


def whole_points(possible: int, fraction: float) -> int:
    """Return floor(possible * fraction): all points only at fraction 1, none for NaN or below 0."""
    if possible <= 0 or not fraction > 0:
        return 0
    return min(possible, math.floor(possible * min(fraction, 1.0) + ROUNDING_SLACK))


def score_speed(
    figures: Mapping[str, Any],
    possible: int,
    *,
    floor: float | None = None,
    full: float | None = None,
) -> ComponentResult:
    """Score `figures["speedup"]`, the ratio to naive on the same device; `PASS` means full points.

    `floor` and `full` default to the figures of these names; the component keeps all `figures`.
    """
    floor = figures.get("floor") if floor is None else floor
    full = figures.get("full") if full is None else full
    kept = {**figures, "floor": floor, "full": full}
    if "speedup" not in figures:
        return dataclasses.replace(internal(possible, "no speed-up was recorded"), figures=kept)
    if not _valid_targets(finite(floor), finite(full)):
        reason = f"speed targets are not 0 < floor < full: floor {floor}, full {full}"
        return dataclasses.replace(internal(possible, reason), figures=kept)
    speedup = finite(figures["speedup"])
    fraction = speed_fraction(figures["speedup"], floor, full)
    earned = whole_points(possible, fraction)
    points = Points(earned, possible, possible)
    if earned == possible and fraction > 0:
        return ComponentResult(Verdict.PASS, points, None, kept)
    if speedup is None or speedup <= 0:
        reason = "the measured ratio is not a positive finite number"
    else:
        reason = f"{speedup:.3g}x naive; no points at {floor:g}x, full points at {full:g}x"
    return ComponentResult(Verdict.FAIL, points, reason, kept)


def score_memory(figures: Mapping[str, Any], possible: int) -> ComponentResult:
    """Score extra memory: all points if `extra_bytes` <= `allowed_bytes` at every length, or none.

    `figures["allowed_bytes"]` is a list beside `extra_bytes`, or one number for every length.
    """
    kept = dict(figures)
    extra, allowed = _numbers(figures.get("extra_bytes")), _numbers(figures.get("allowed_bytes"))
    if len(allowed) == 1:
        allowed = allowed * len(extra)
    if not extra or len(extra) != len(allowed) or None in allowed:
        reason = "extra or allowed memory was not recorded for every length"
        return dataclasses.replace(internal(possible, reason), figures=kept)
    within = [got is not None and got <= limit for got, limit in zip(extra, allowed, strict=True)]
    if all(within):
        return ComponentResult(Verdict.PASS, Points(possible, possible, possible), None, kept)
    first = within.index(False)
    lengths = _numbers(figures.get("lengths"))
    where = f" at seqlen {lengths[first]:.0f}" if first < len(lengths) and lengths[first] else ""
    reason = f"more memory beyond inputs and outputs than is allowed{where}"
    return ComponentResult(Verdict.FAIL, Points(0, possible, possible), reason, kept)


def gate(component: ComponentResult, correctness: ComponentResult | None) -> ComponentResult:
    """Return `component` as it counts beside `correctness`: it earns when correctness is complete.

    What was not measured, or lost to the judge, passes through unchanged. A gated component is
    `SKIPPED`, keeps its figures as evidence, and stays available unless correctness itself could
    not be judged through no fault of the submission: then its points are not available either.
    """
    possible = component.points.possible
    if not _is_measured(component.verdict):
        return component
    if correctness is None:
        return internal(possible, "no correctness result was recorded")
    if _complete(correctness):
        return component
    judged = correctness.points
    if correctness.verdict is Verdict.INTERNAL and judged.earned >= judged.available:
        reason, available = "correctness could not be judged: fault of the judge", 0
    elif correctness.verdict is Verdict.NOT_MEASURED:
        reason, available = "correctness could not be measured", 0
    else:
        reason, available = "correctness is not complete", component.points.available
    return ComponentResult(
        Verdict.SKIPPED, Points(0, available, possible), reason, component.figures
    )


def _complete(correctness: ComponentResult) -> bool:
    points = correctness.points
    return correctness.verdict is Verdict.PASS and points.earned >= points.available


def _valid_targets(floor: float | None, full: float | None) -> bool:
    return floor is not None and full is not None and 0 < floor < full


def finite(value: Any) -> float | None:
    """Return `value` as a finite float; None when it is missing, not a number, NaN or infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _numbers(value: Any) -> list[float | None]:
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return [] if value is None else [finite(value)]


# Problems and the whole record.


def complete_components(
    components: Mapping[str, ComponentResult], possible: Mapping[str, int]
) -> dict[str, ComponentResult]:
    """Return all four components in order; one that is missing and worth points is `INTERNAL`."""
    whole = {}
    for name in COMPONENTS:
        worth = max(possible.get(name, 0), 0)
        if name in components:
            whole[name] = components[name]
        elif worth:
            whole[name] = internal(worth, f"the judge recorded no {name} result")
        else:
            whole[name] = not_measured(0, f"this problem has no {name} part")
    return whole


def problem_points(components: Mapping[str, ComponentResult]) -> Points:
    """Return the sum over the components."""
    return sum((component.points for component in components.values()), Points())


def problem_verdict(
    components: Mapping[str, ComponentResult],
    checks: Sequence[CheckResult],
    message: Message | None = None,
) -> Verdict:
    """Return the worst verdict among components and checks.

    No component for one of the four names is `INTERNAL`. A problem with a `message` of its own has
    failed: when nothing else says how, it is `ERROR`.
    """
    if any(name not in components for name in COMPONENTS):
        return Verdict.INTERNAL
    found = worst([*(c.verdict for c in components.values()), *(c.verdict for c in checks)])
    if message is not None and found in (Verdict.PASS, Verdict.NOT_MEASURED):
        return Verdict.ERROR
    return found


def total(problems: Iterable[ProblemResult]) -> tuple[Points, Points]:
    """Return the points of the required problems and, apart, of the bonus problems."""
    required, bonus = Points(), Points()
    for problem in problems:
        if problem.bonus:
            bonus = bonus + problem.points
        else:
            required = required + problem.points
    return required, bonus


def exit_code(record: GradeRecord, fail_under: float | None = None, exit_zero: bool = False) -> int:
    """Return the exit status of a graded run; the first line that applies decides.

    130  interrupted by Ctrl-C
      3  a fault of the judge: any `INTERNAL` verdict, or a record without problems
      4  not one point could be measured on this machine
      0  `fail_under` is given and `totals.earned` reaches it; or, without it, every problem
         graded, bonus problems included, has all points available here and passes
      1  points were lost; 0 with `exit_zero`, which hides nothing but lost points
    """
    if record.interrupted:
        return EXIT_INTERRUPTED
    if not record.problems or any(_has_internal(problem) for problem in record.problems):
        return EXIT_JUDGE_FAULT
    if not any(problem.points.available > 0 for problem in record.problems):
        return EXIT_ENVIRONMENT
    if fail_under is not None:
        enough = record.totals.earned >= fail_under
    else:
        enough = all(_has_full_marks(problem) for problem in record.problems)
    return EXIT_FULL_MARKS if enough or exit_zero else EXIT_POINTS_LOST


def _has_internal(problem: ProblemResult) -> bool:
    verdicts = [problem.verdict]
    verdicts += [component.verdict for component in problem.components.values()]
    verdicts += [check.verdict for check in problem.checks]
    return Verdict.INTERNAL in verdicts


def _has_full_marks(problem: ProblemResult) -> bool:
    return (
        problem.verdict in (Verdict.PASS, Verdict.NOT_MEASURED)
        and problem.points.earned >= problem.points.available
    )
