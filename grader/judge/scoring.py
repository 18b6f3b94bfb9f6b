"""From findings to points: pure functions over the records of `grader.spec.grade_record`.

Rules that hold everywhere here:

- Points have one decimal. A problem's points are the sum of its components', the totals the sum of
  the problems'; nothing is rounded twice.
- 0 <= earned <= available <= possible.
- Failed checks cost their share of the points and no more; problem.toml gives each a tenth of a
  point at least, so that one that fails is seen.
- What could not be measured is `INTERNAL` or `NOT_MEASURED`; nothing is skipped silently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from grader.base.text import finite
from grader.spec.grade_record import (
    Amount,
    CheckResult,
    ComponentResult,
    CorrectnessFigures,
    GradeRecord,
    MemoryFigures,
    Points,
    ProblemResult,
    SpeedFigures,
    Verdict,
    WorkFigures,
    worst,
)

EXIT_FULL_MARKS = 0
EXIT_POINTS_LOST = 1
EXIT_JUDGE_FAULT = 3
EXIT_ENVIRONMENT = 4
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells report Ctrl-C

# A fraction computed as 0.9999999999 by rounding in the logarithms still earns the point.
ROUNDING_SLACK = 1e-9
_MOST_NAMED = 4  # checks that a component rests on

Figures = WorkFigures | SpeedFigures | MemoryFigures


def withheld(
    verdict: Verdict, possible: float, reason: str, figures: Figures | None = None
) -> ComponentResult:
    """Return a component that earned nothing.

    Its points were available, unless it could not be measured here or was lost to a fault of the
    judge, which costs the student nothing.
    """
    available = possible if _is_measured(verdict) else 0.0
    points = Points(available=available, possible=possible)
    return ComponentResult(verdict=verdict, points=points, reason=reason, figures=figures)


def _passed(
    possible: float, earned: float, reason: str | None, figures: Figures
) -> ComponentResult:
    points = Points(earned=earned, available=possible, possible=possible)
    return ComponentResult(verdict=Verdict.PASS, points=points, reason=reason, figures=figures)


# Correctness.


def score_correctness(
    checks: Sequence[CheckResult], possible: float
) -> tuple[ComponentResult, tuple[CheckResult, ...]]:
    """Share `possible` points among `checks` by weight; return the component and the scored checks.

    A check earns the part of its share that holds (`share`). The sum is rounded up to a tenth, so
    that a failed check never costs more than its part; only when all hold is it `possible`. A check
    that is `INTERNAL` or `NOT_MEASURED` is not available; one that was `SKIPPED` is, and earns
    nothing.
    """
    total_weight = sum(check.weight for check in checks)
    earned = available = 0.0
    scored_checks = []
    for check in checks:
        worth = possible * check.weight / total_weight
        reachable = worth if _is_measured(check.verdict) else 0.0
        held = reachable * check.share
        earned += held
        available += reachable
        points = Points(
            earned=round(held, 2), available=round(reachable, 2), possible=round(worth, 2)
        )
        scored_checks.append(check.model_copy(update={"points": points}))
    whole = all(c.share >= 1.0 for c in checks if _is_measured(c.verdict))
    available = _tenths_up(available)
    earned = available if whole else min(_tenths_up(earned), round(available - 0.1, 1))
    verdict = worst(c.verdict for c in checks if c.verdict is not Verdict.NOT_MEASURED)
    figures = CorrectnessFigures(
        checks_passed=sum(c.verdict is Verdict.PASS for c in checks), checks_total=len(checks)
    )
    component = ComponentResult(
        verdict=verdict,
        points=Points(earned=max(earned, 0.0), available=available, possible=possible),
        reason=_correctness_reason(checks),
        figures=figures,
    )
    return component, tuple(scored_checks)


def _tenths_up(points: float) -> float:
    return math.ceil(10.0 * points - ROUNDING_SLACK) / 10.0


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


# Work, speed and memory. The components made here are not yet gated: see `gate`.


def tenths(possible: float, fraction: float) -> float:
    """Return `possible * fraction` rounded down to a tenth: all points only at fraction 1."""
    return min(possible, math.floor(10.0 * possible * fraction + ROUNDING_SLACK) / 10.0)


def _part_of_way(ratio: float, none: float, full: float) -> float:
    """Return how far a ratio has come from where there are no points to all: in the logarithm."""
    return min(max(math.log(ratio / none) / math.log(full / none), 0.0), 1.0)


def score_speed(figures: SpeedFigures, possible: float) -> ComponentResult:
    """Score `figures.speedup`, the ratio to naive on the same device.

    No points up to `floor`, all from `full` on. The verdict is `PASS` whatever the ratio: a right
    kernel that is slow is right, and has some of the points.
    """
    floor, full, speedup = (finite(v) for v in (figures.floor, figures.full, figures.speedup))
    if floor is None or full is None or not 0 < floor < full:
        reason = f"speed targets are not 0 < floor < full: floor {floor}, full {full}"
        return withheld(Verdict.INTERNAL, possible, reason, figures)
    if speedup is None or speedup <= 0:
        reason = "the measured ratio is not a positive finite number"
        return withheld(Verdict.INTERNAL, possible, reason, figures)
    earned = tenths(possible, _part_of_way(speedup, floor, full))
    reason = f"{speedup:.3g}x naive; no points at {floor:g}x, full points at {full:g}x"
    return _passed(possible, earned, reason if earned < possible else None, figures)


def work_fraction(figures: WorkFigures) -> float:
    """Return the part of the work points earned: that of the kind in which it is least.

    1 up to `full` times what is needed, 0 from naive's count on, linear in the log between; 0 too
    for less than any right answer does.
    """
    return min((_part(amount, figures.full) for amount in figures.amounts.values()), default=0.0)


def _part(amount: Amount, full: float) -> float:
    if amount.done < amount.least:
        return 0.0
    if amount.ratio <= full:
        return 1.0
    if amount.naive_ratio <= full:
        return 0.0
    return _part_of_way(amount.ratio, amount.naive_ratio, full)


def score_work(figures: WorkFigures, possible: float) -> ComponentResult:
    """Score what was done over what was needed; the verdict is `PASS` whatever the ratio."""
    if not figures.amounts:
        return withheld(Verdict.INTERNAL, possible, "no work was counted", figures)
    earned, reason = tenths(possible, work_fraction(figures)), None
    if earned < possible:
        kind, amount = min(figures.amounts.items(), key=lambda item: _part(item[1], figures.full))
        if amount.done < amount.least:
            reason = (
                f"the judge saw {amount.done:,} {kind}, and the output needs at least"
                f" {amount.least:,}: it sees tl.dot, and sums and outer products of tiles"
            )
        else:
            reason = (
                f"{amount.ratio:.2f}x the {kind} that are needed; full points up to"
                f" {figures.full:g}x, none from {amount.naive_ratio:.2f}x on"
            ) + (figures.waste and f"; {figures.waste}")
    return _passed(possible, earned, reason, figures)


def is_wasteful(work: ComponentResult) -> bool:
    """Whether points of work were lost by doing too much, rather than by doing it unseen."""
    if not isinstance(work.figures, WorkFigures) or work.points.earned >= work.points.available:
        return False
    return all(amount.done >= amount.least for amount in work.figures.amounts.values())


def score_memory(figures: MemoryFigures, possible: float) -> ComponentResult:
    """Score extra memory: all points if no more than allowed at every length, or none."""
    extra, allowed = figures.extra_bytes, figures.allowed_bytes
    if not len(extra) == len(allowed) == len(figures.lengths) > 0:
        reason = "extra or allowed memory was not recorded for every length"
        return withheld(Verdict.INTERNAL, possible, reason, figures)
    within = [got <= limit for got, limit in zip(extra, allowed, strict=True)]
    if all(within):
        return _passed(possible, possible, None, figures)
    first = within.index(False)
    reason = "more memory beyond inputs and outputs than is allowed"
    reason += f" at seqlen {figures.lengths[first]}"
    if figures.tile:  # of a problem without kernels; in others, the work part counts tiles
        queries, keys = figures.tile
        reason += f" with tile_q={queries}, tile_k={keys}: hold the scores of one tile at a time"
    return withheld(Verdict.FAIL, possible, reason, figures)


def gate(component: ComponentResult, rests_on: Sequence[CheckResult]) -> ComponentResult:
    """Return `component` as it counts beside the checks that it rests on: it earns when all pass.

    What was not measured, or lost to the judge, passes through unchanged. A gated component is
    `SKIPPED` and keeps its figures as evidence. Its points stay available if a check failed, and
    are not available if checks could not be judged, which is no fault of the submission.
    """
    possible = component.points.possible
    if not _is_measured(component.verdict):
        return component
    if not rests_on:
        return withheld(Verdict.INTERNAL, possible, "no check was recorded that it rests on")
    if hold(rests_on):
        return component
    if failed := [c.id for c in rests_on if _is_measured(c.verdict) and not _passes(c)]:
        reason, available = f"not awarded: it rests on {_those(failed)}", component.points.available
    elif faults := [c.id for c in rests_on if c.verdict is Verdict.INTERNAL]:
        reason, available = f"fault of the judge in what it rests on: {', '.join(faults)}", 0.0
    else:
        reason, available = "the checks that it rests on could not be measured", 0.0
    return ComponentResult(
        verdict=Verdict.SKIPPED,
        points=Points(available=available, possible=possible),
        reason=reason,
        figures=component.figures,
    )


def hold(checks: Sequence[CheckResult]) -> bool:
    """Whether all of `checks` pass that could be measured, and one could."""
    measured = [check for check in checks if check.verdict is not Verdict.NOT_MEASURED]
    return bool(measured) and all(map(_passes, measured))


def _passes(check: CheckResult) -> bool:
    return check.verdict is Verdict.PASS and check.share >= 1.0


def _those(failed: list[str]) -> str:
    """Name checks that do not pass, four at the most."""
    named = ", ".join(failed[:_MOST_NAMED])
    if len(failed) > _MOST_NAMED:
        return f"{named} and {len(failed) - _MOST_NAMED} more checks, which do not pass"
    return f"{named}, which {'does' if len(failed) == 1 else 'do'} not pass"


def is_complete(correctness: ComponentResult) -> bool:
    """Whether every check passed."""
    points = correctness.points
    return correctness.verdict is Verdict.PASS and points.earned >= points.available


# Problems and the whole record.


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
