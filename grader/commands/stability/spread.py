"""How points and speed-ups of the same submission vary over several gradings.

What matters to a student is whether the points stay. A grading in which a part could not be
measured (a busy machine) costs nobody points, and does not count for its problem.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Sequence

from grader.base.text import finite
from grader.judge import scoring
from grader.spec.grade_record import GradeRecord, ProblemResult, SpeedFigures, Verdict

SCHEMA_VERSION = 1
STABLE_POINTS = 1.0  # the range of points that a problem may have
_ROUNDING = 1e-6


@dataclasses.dataclass(frozen=True)
class Spread:
    """One problem over several gradings: points and speed-ups of the runs that count.

    `seconds` is the time of its tests in each run, in which others may have run beside it.
    """

    id: str
    title: str
    points: tuple[float, ...]
    available: float
    speedups: tuple[float, ...]
    seconds: tuple[float, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def range(self) -> float:
        """The most points less the fewest, 0 where nothing could be measured."""
        return round(max(self.points) - min(self.points), 6) if self.points else 0.0

    @property
    def is_stable(self) -> bool:
        """Whether the points differ by no more than one."""
        return self.range <= STABLE_POINTS + _ROUNDING


def spreads(records: Sequence[GradeRecord]) -> list[Spread]:
    """Return one row per problem, in order."""
    by_id: dict[str, list[ProblemResult]] = {}
    for record in records:
        for problem in record.problems:
            by_id.setdefault(problem.id, []).append(problem)
    return [_spread(found) for found in by_id.values()]


def _spread(found: Sequence[ProblemResult]) -> Spread:
    most = max(problem.points.available for problem in found)
    whole = [p for p in found if p.points.available >= most - _ROUNDING and most > 0]
    return Spread(
        id=found[0].id,
        title=found[0].title,
        points=tuple(p.points.earned for p in whole),
        available=most,
        speedups=tuple(s for s in map(_speedup, found) if s is not None),
        seconds=tuple(p.duration_s for p in found),
        verdicts=tuple(p.verdict for p in found),
    )


def _speedup(problem: ProblemResult) -> float | None:
    speed = problem.components.get("speed")
    figures = speed.figures if speed else None
    return finite(figures.speedup) if isinstance(figures, SpeedFigures) else None


def exit_code(records: Sequence[GradeRecord], *, whole: bool) -> int:
    """Return 130 interrupted, 3 a fault of the judge, 4 nothing measurable, 1 unstable, or 0."""
    if not whole:
        return scoring.EXIT_INTERRUPTED
    codes = {scoring.exit_code(record) for record in records}
    for code in (scoring.EXIT_JUDGE_FAULT, scoring.EXIT_ENVIRONMENT):
        if code in codes:
            return code
    stable = all(spread.is_stable for spread in spreads(records))
    return scoring.EXIT_FULL_MARKS if stable else scoring.EXIT_POINTS_LOST


def to_json(records: Sequence[GradeRecord], wanted: int) -> str:
    """Return table and records as JSON; `wanted` is how many gradings were asked for."""
    problems = []
    for spread in spreads(records):
        row = dataclasses.asdict(spread) | {"range": spread.range, "stable": spread.is_stable}
        problems.append(row | {"median": statistics.median(spread.points or (0.0,))})
    data = {
        "schema_version": SCHEMA_VERSION,
        "kind": "stability",
        "wanted": wanted,
        "problems": problems,
        "records": [json.loads(record.to_json()) for record in records],
    }
    return json.dumps(data, indent=1) + "\n"
