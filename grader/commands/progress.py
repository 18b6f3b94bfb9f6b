"""Live progress while grading: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping

from rich import progress
from rich.console import Console

from grader.base.live import Live
from grader.base.text import clean
from grader.base.text import points as shown_points
from grader.spec.grade_record import Points, Verdict

BAR_WIDTH = 16
PHASE_LIMIT = 40


class Progress(Live):
    """Progress of a graded run; without a terminal each finished problem is one line."""

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(console, clock=clock)
        self._tasks: dict[str, progress.TaskID] = {}
        self._totals: Counter[str] = Counter()
        self._passed: Counter[str] = Counter()
        self._started: dict[str, float] = {}

    def start(self, totals: Mapping[str, int]) -> None:
        """Begin; `totals` has the number of cases by problem, in the order of the run."""
        self._totals = Counter(totals)
        bars = self.show(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(bar_width=BAR_WIDTH),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[phase]}", style="dim", markup=False),
            progress.TimeElapsedColumn(),
        )
        for problem_id, count in totals.items() if bars else ():
            self._tasks[problem_id] = bars.add_task(
                clean(problem_id, PHASE_LIMIT), total=max(count, 1), start=False, phase="waiting"
            )

    def case_done(self, problem_id: str, check_id: str, verdict: Verdict) -> None:
        """Count one finished case."""
        self._begin(problem_id)
        self._passed[problem_id] += verdict is Verdict.PASS
        if self._bars:
            phase = clean(check_id, PHASE_LIMIT)
            self._bars.update(self._tasks[problem_id], advance=1, phase=phase)

    def phase(self, problem_id: str, text: str) -> None:
        """Show what is being done for a problem, such as "speed"."""
        self._begin(problem_id)
        if self._bars:
            self._bars.update(self._tasks[problem_id], phase=clean(text, PHASE_LIMIT))

    def problem_done(
        self, problem_id: str, verdict: Verdict, points: Points, *, more: str = ""
    ) -> None:
        """Finish a problem, or a part of it: `more` says what is still to come.

        Without a terminal this writes its line.
        """
        self._begin(problem_id)
        earned = f"{shown_points(points.earned)}/{shown_points(points.available)} points"
        if self._bars:
            task = self._tasks[problem_id]
            state = f"correct, {more}" if more else f"{verdict}  {earned}"
            self._bars.update(task, phase=state)
            if not more:
                self._bars.stop_task(task)
        elif not more:
            seconds = self._clock() - self._started[problem_id]
            cases = f"{self._passed[problem_id]}/{self._totals[problem_id]} cases"
            id = clean(problem_id, PHASE_LIMIT)
            self.line(f"{id}  {verdict}  {cases}  {earned}  {seconds:.1f} s")

    def _begin(self, problem_id: str) -> None:
        if problem_id not in self._started:
            self._started[problem_id] = self._clock()
            if self._bars:
                self._bars.start_task(self._tasks[problem_id])
