"""Statistics of a class without names: points, checks, causes, steps and times."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from types import SimpleNamespace

from classroom.grades import Standing, Status
from classroom.records import FileResult
from grader.base.text import points
from grader.report.score import measured
from grader.spec.grade_record import CheckResult, ProblemResult, SpeedFigures, Verdict
from grader.spec.problem import Problem, load_problem

_NOT_FAILED = (
    Verdict.PASS,
    Verdict.SKIPPED,
    Verdict.NOT_MEASURED,
    Verdict.NOT_IMPLEMENTED,
    Verdict.INTERNAL,
)


@dataclasses.dataclass(frozen=True)
class Bar:
    """A row of a chart: `count` of `of` students; a check or a cause also has an `id`."""

    label: str
    count: int
    of: int
    id: str = ""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Number, extremes, median and inclusive quartiles of a set of numbers."""

    count: int
    lowest: float
    lower: float
    median: float
    upper: float
    highest: float


def spread(values: Iterable[float]) -> Spread | None:
    """Return the spread of `values`, None where there are none."""
    found = sorted(values)
    if not found:
        return None
    lower, median, upper = (
        statistics.quantiles(found, n=4, method="inclusive") if len(found) > 1 else found * 3
    )
    return Spread(len(found), found[0], lower, median, upper, found[-1])


def histogram(values: Sequence[float], possible: float, parts: int) -> tuple[Bar, ...]:
    """Count points in `parts` equal ranges; zero and full points have rows of their own."""
    bounds = [possible * number / parts for number in range(parts)]  # each ends a range
    places = (
        parts + 1 if value >= possible else bisect.bisect_left(bounds, max(value, 0))
        for value in values
    )
    counts = Counter(places)
    labels = ["0", *(f"to {points(bound)}" for bound in bounds[1:])]
    labels += [f"under {points(possible)}", f"{points(possible)}, all"]
    return tuple(Bar(label, counts[at], len(values)) for at, label in enumerate(labels))


def summarize(standing: Standing) -> SimpleNamespace:
    """Return the statistics of a class for its page.

    `faults` has texts of faults and how many grades each holds up. A problem's `points` are those
    of students whose points are decided, late days counted; `unnamed` counts students with
    failures but no named cause.
    """
    problems = tuple(_of_problem(standing, load_problem(id)) for id in standing.problems)
    grades = standing.grades.values()
    faults = Counter((g.problem, g.reason) for g in grades if g.status is Status.FAULT)
    return SimpleNamespace(
        students=len(standing.students),
        handed_in=sum(bool(_files(standing, s.id)) for s in standing.students),
        totals=tuple(
            total
            for name, bonus in (("Required", False), ("Bonus", True))
            if (total := _total(standing, problems, name, bonus=bonus))
        ),
        problems=problems,
        faults=tuple((problem, text, n) for (problem, text), n in faults.most_common()),
        pending=sum(g.status is Status.PENDING for g in grades),
        graded_s=sum(r.result.duration_s for r in standing.results.values()),
    )


def _files(standing: Standing, student: str) -> dict[str, str]:
    hand_in = standing.hand_ins.get(student)
    return hand_in.files if hand_in else {}


def _total(
    standing: Standing, problems: Sequence[SimpleNamespace], name: str, *, bonus: bool
) -> SimpleNamespace | None:
    """Return the totals of required or bonus problems, over students with all points decided."""
    of = [problem for problem in problems if problem.bonus is bonus]
    if not of:
        return None
    sums, undecided = [], 0
    for student in standing.students:
        parts = [standing.grades[student.id, problem.id].points for problem in of]
        if None in parts:
            undecided += 1
        else:
            sums.append(round(sum(parts), 1))
    possible = round(sum(problem.possible for problem in of), 1)
    return SimpleNamespace(
        name=name,
        possible=possible,
        points=spread(sums),
        bars=histogram(sums, possible, 10),
        undecided=undecided,
    )


def _of_problem(standing: Standing, problem: Problem) -> SimpleNamespace:
    grades = [standing.grades[student.id, problem.id] for student in standing.students]
    decided = [g.points for g in grades if g.points is not None]
    possible = max((g.possible for g in grades), default=float(problem.total_points))
    results = [r for g in grades if (r := standing.result(g.student, problem.id))]
    started = [r.result for r in results if not _is_stub(r.result)]
    causes, unnamed = _causes(started)
    gradings = {r.key: r.result.duration_s for r in results}
    return SimpleNamespace(
        id=problem.id,
        title=problem.title,
        bonus=problem.bonus,
        possible=possible,
        measured=measured(possible, float(problem.total_points)),
        handed_in=sum(problem.id in _files(standing, g.student) for g in grades),
        statuses=Counter(g.status for g in grades),
        points=spread(decided),
        bars=histogram(decided, possible, 4),
        checks=_checks(started),
        causes=causes,
        unnamed=unnamed,
        funnel=_funnel(problem, started),
        speeds=_speeds(results),
        seconds=spread(gradings.values()),
    )


def _is_stub(result: ProblemResult) -> bool:
    """Whether no step of the problem was begun."""
    step = result.message.step if result.message else None
    return result.verdict is Verdict.NOT_IMPLEMENTED and step in (None, 1)


def _failed(result: ProblemResult) -> list[CheckResult]:
    return [check for check in result.checks if check.verdict not in _NOT_FAILED]


def _checks(results: Sequence[ProblemResult]) -> tuple[Bar, ...]:
    """Return the checks that any student fails, the most failed first."""
    failed = Counter(check.id for result in results for check in _failed(result))
    titles = {check.id: check.title for result in results for check in result.checks}
    return tuple(Bar(titles[id], n, len(results), id) for id, n in failed.most_common())


def _causes(results: Sequence[ProblemResult]) -> tuple[tuple[Bar, ...], int]:
    """Return the causes by number of students, and how many students fail without a cause."""
    counts: Counter[str] = Counter()
    titles, unnamed = {}, 0
    for result in results:
        failed = _failed(result)
        found = {c.diagnosis.id: c.diagnosis.title for c in failed if c.diagnosis}
        counts.update(found.keys())
        titles |= found
        unnamed += bool(failed and not found)
    named = (Bar(titles[id], n, len(results), id) for id, n in counts.most_common())
    return tuple(named), unnamed


def _funnel(problem: Problem, results: Sequence[ProblemResult]) -> SimpleNamespace:
    """Return how many students pass each step; `unknown` counts those wrong in an unknown step."""
    firsts = [_first_wrong_step(result, len(problem.steps)) for result in results]
    known = [step for step in firsts if step is not None]
    steps = tuple(
        Bar(f"{number}: {step.title}", sum(first > number for first in known), len(results))
        for number, step in enumerate(problem.steps, start=1)
    )
    return SimpleNamespace(started=len(results), steps=steps, unknown=len(firsts) - len(known))


def _first_wrong_step(result: ProblemResult, count: int) -> int | None:
    """Return the first step that is empty or wrong, or one more than the last if none is.

    None means that a step is wrong and the judge does not know which.
    """
    failed = [check for check in result.checks if check.verdict is not Verdict.PASS]
    wrong = bool(_failed(result)) or result.verdict in (
        Verdict.NOT_IMPLEMENTED,
        Verdict.REJECTED,
        Verdict.ERROR,
    )
    if not wrong:
        return count + 1
    messages = [check.message for check in failed] + [result.message]
    steps = [check.step for check in failed] + [m.step for m in messages if m]
    return min((step for step in steps if step is not None), default=None)


def _speed_of(result: FileResult) -> SpeedFigures | None:
    """Return the speed of a fully correct file, None where none was measured."""
    parts = result.result.components
    right, speed = parts.get("correctness"), parts.get("speed")
    if right is None or speed is None or not isinstance(speed.figures, SpeedFigures):
        return None
    whole = right.verdict is Verdict.PASS and right.points.earned >= right.points.possible > 0
    return speed.figures if whole and speed.figures.speedup is not None else None


def _speeds(results: Sequence[FileResult]) -> tuple[SimpleNamespace, ...]:
    """Return the speed-ups of fully correct files, by device."""
    found: dict[str, list[float]] = {}
    for result in results:
        speed = _speed_of(result)
        if speed is not None and speed.speedup > 0:
            found.setdefault(result.environment.device_name, []).append(speed.speedup)
    return tuple(
        SimpleNamespace(device=device, spread=middle, bars=_doublings(values))
        for device, values in sorted(found.items())
        if (middle := spread(values))
    )


def _doublings(values: Sequence[float]) -> tuple[Bar, ...]:
    """Count speed-ups by powers of two, from the slowest to the fastest, in at most 20 rows."""
    bounds = [0.5 * 2**n for n in range(18)]
    found = [sum(bound <= value for bound in bounds) for value in values]
    labels = [
        f"under {bounds[0]:g}x",
        *(f"{low:g} to {high:g}x" for low, high in itertools.pairwise(bounds)),
        f"{bounds[-1]:g}x and more",
    ]
    rows = range(min(found), max(found) + 1)
    return tuple(Bar(labels[row], found.count(row), len(values)) for row in rows)
