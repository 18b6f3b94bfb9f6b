"""The live view of the grading of a class: a bar on a terminal, a line per job elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Self

from rich import progress
from rich.console import Console

from classroom.grading import Judged
from classroom.plan import Job, Plan
from grader.base.live import Live
from grader.base.text import clean, plural, points

_NAMED = 4
_ID_LIMIT = 30


class View(Live):
    """Shows the progress of a run: a bar on a terminal, elsewhere a line per job."""

    def __init__(
        self, console: Console, plan: Plan, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(console, clock=clock)
        self.cached = plan.cached
        self.graded = 0
        self.faults = 0
        self._given_up = len(plan.given_up)
        self._before = plan.cached + self._given_up
        self._total = plan.files + self._before  # the same number as in `class status`
        self._done = self._before
        self.workers: int | None = None  # how many jobs run at a time, if that is known
        self._under_way: list[Job] = []
        self._began = clock()

    def __enter__(self) -> Self:
        bars = self._total > self._before and self.show(
            progress.BarColumn(bar_width=24),
            progress.MofNCompleteColumn(),
            progress.TextColumn("{task.fields[text]}", markup=False),
        )
        if bars:
            bars.add_task("", total=self._total, completed=self._done, text="")
        return self

    def started(self, job: Job) -> None:
        """Note that a job was submitted; workers start jobs in this order."""
        self._under_way.append(job)

    def ended(self, job: Job, done: Judged, retried: int) -> None:
        """Count the results of a job; without a terminal write its line."""
        self._under_way.remove(job)
        self.graded += len(done.results)
        self.faults += len(done.faults) - retried
        self._done += len(job.keys) - retried
        if self._bars is None:
            words = [
                f"{r.key.problem} {r.result.verdict}"
                f" {points(r.result.points.earned)}/{points(r.result.points.available)}"
                for r in done.results
            ]
            words += [f"{key.problem} fault: {text}" for key, text in done.faults.items()]
            words += [f"({plural(retried, 'file')} again)"] * bool(retried)
            line = f"{clean(job.student, _ID_LIMIT)}  {'  '.join(words)}  {self.summary()}"
            self.line(clean(line, 500))

    def tick(self) -> None:
        """Show the present state."""
        if self._bars is not None:
            text = f"{self.summary()}{self._now()}"
            self._bars.update(self._bars.task_ids[0], completed=self._done, text=text)

    def _now(self) -> str:
        """Return whose files are graded now, or how many jobs were submitted."""
        if self.workers is None or not self._under_way:
            return f"  {len(self._under_way)} handed out" if self._under_way else ""
        running = self._under_way[: self.workers]
        names = [clean(job.student, _ID_LIMIT) for job in running[:_NAMED]]
        more = len(running) - len(names)
        return f"  now: {', '.join(names)}" + (f" and {more} more" if more else "")

    def summary(self) -> str:
        """Return what is done, and the time for the rest at the rate so far."""
        words = f"{self._done} of {self._total} files, {self.cached} from before"
        if faults := self.faults + self._given_up:
            words += f", {plural(faults, 'fault')}"
        if left := self._left_s():
            words += f", about {duration(left)} left"
        return words

    def _left_s(self) -> float:
        done = self._done - self._before
        if not done:
            return 0.0
        return (self._clock() - self._began) / done * (self._total - self._done)


def duration(seconds: float) -> str:
    """Return a time as a person says it: 40 s, 12 min, 3.5 h."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
