"""Runs the jobs of a plan on an engine, stores each result at once, and retries faults."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import errno
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from classroom.engine import ParslEngine, is_broken
from classroom.grading import GradingOutcome, Settings, Task, all_faults, judged, refusal
from classroom.plan import Job, Plan
from classroom.records import EngineFault, Fault, now
from classroom.store import Store
from classroom.view import View
from grader.judge.set_check import SetError
from grader.spec.grade_record import Environment

# More would only fill the engine's memory; clusters grow with the number of waiting jobs.
_UNDER_WAY = 256
_TICK_S = 0.5
# Beyond the limit of a grading: time to start it, to kill it, and to send its result.
_MARGIN_S = 180.0


class Patience:
    """Waits for results of an engine, for a limited time."""

    def __init__(self, engine: ParslEngine, interrupted: Callable[[], bool]) -> None:
        self._engine = engine
        self._interrupted = interrupted
        self._heard = time.monotonic()

    def wait(self, futures: Iterable[Future[Any]], limit_s: float) -> set[Future[Any]]:
        """Return which of `futures` are done, after half a second at most.

        If the engine's workers are on this machine, one must be done within `limit_s` seconds.

        Raises:
            KeyboardInterrupt: the user has interrupted the run.
            EngineFault: no more results can arrive.
        """
        done, _ = concurrent.futures.wait(futures, _TICK_S, concurrent.futures.FIRST_COMPLETED)
        if self._interrupted():
            raise KeyboardInterrupt
        if done:
            self._heard = time.monotonic()
            return done
        self._engine.check()
        silent_s = time.monotonic() - self._heard
        if self._engine.workers is not None and silent_s > limit_s + _MARGIN_S:
            raise EngineFault(
                f"the engine has returned no result for {silent_s:.0f} s, though a grading is"
                f" ended after {limit_s:.0f} s"
            )
        return done


@dataclasses.dataclass
class Running:
    """One run of a plan; however it ends, finished results are stored.

    The jobs of `plan` are graded on machines like `machine`, with the function `grading`.
    `interrupted` says whether the user has interrupted the run.
    """

    store: Store
    engine: ParslEngine
    plan: Plan
    settings: Settings
    machine: Environment
    view: View
    grading: Callable[[Task], GradingOutcome]
    interrupted: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._waiting = collections.deque(self.plan.jobs)
        self._attempts = dict(self.plan.attempts)
        self._under_way: dict[Future[GradingOutcome], Job] = {}

    def run(self) -> None:
        """Grade everything.

        Raises:
            KeyboardInterrupt: the user has interrupted the run.
            EngineFault: the engine has stopped working, or its disk is full.
            SetError: the judge refuses to grade with this problem set.
            StoreError: results cannot be stored any more.
        """
        patience = Patience(self.engine, self.interrupted)
        try:
            while self._waiting or self._under_way:
                while self._waiting and len(self._under_way) < _UNDER_WAY:
                    self._start(self._waiting.popleft())
                most_s = max(self.settings.most_s(len(j.keys)) for j in self._under_way.values())
                done = patience.wait(self._under_way, most_s)
                for future in [f for f in self._under_way if f in done]:  # in their order
                    self._end(self._under_way.pop(future), future)
                self.view.tick()
        except (KeyboardInterrupt, EngineFault, SetError):
            for future, job in self._under_way.items():  # save results that have arrived
                if future.done() and not future.exception():
                    with contextlib.suppress(SetError):
                        self._end(job, future)
            raise

    def _start(self, job: Job) -> None:
        files = {problem: self.store.data(key.sha256) for problem, key in job.keys.items()}
        self._under_way[self.engine.submit(self.grading, Task(files, self.settings))] = job
        self.view.started(job)

    def _end(self, job: Job, future: Future[GradingOutcome]) -> None:
        try:
            outcome = future.result()
        except Exception as error:  # of a worker, a node or the network
            if is_broken(error):
                raise EngineFault(f"the engine runs nothing any more: {error}") from None
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise EngineFault(f"nothing can be written where gradings run: {error}") from None
            done = all_faults(job.keys, f"{type(error).__name__}: {error}")
        else:
            if words := refusal(outcome):
                raise SetError(f"the judge refuses to grade: {words}")
            done = judged(job.keys, outcome, self.machine, official=self.settings.official)
        self.store.save_results(done.results)
        again = []
        for key, text in done.faults.items():
            self.store.add(Fault(key=key, text=text, at=now()))
            self._attempts[key] -= 1
            if self._attempts[key] > 0:  # alone: another file may be to blame
                again.append(Job(job.student, {key.problem: key}))
        self._waiting.extend(again)
        self.view.ended(job, done, len(again))
