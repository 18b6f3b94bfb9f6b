"""Compiles the kernels of a problem's cases on several cores before the first of them runs.

Compilation has time of its own: a kernel that takes its window, its sinks and its lengths as
constants compiles anew for nearly every case, and that is no mistake.
"""

from __future__ import annotations

import queue
import threading
import time

from grader.isolate.session import Budget, Session
from grader.source.submission import Source
from grader.spec.cases import Case
from grader.spec.inputs import make_inputs
from grader.spec.problem import Problem
from grader.spec.problem_tables import Check, Limits

_CALL_S = 20.0  # one case; a session gives it three times as much on a GPU
_TOTAL_S = 150.0


class Compilers:
    """Workers that make the calls of a list of cases and launch nothing."""

    def __init__(
        self, problem: Problem, source: Source, cases: list[tuple[Check, Case]], workers: int
    ) -> None:
        self._problem = problem
        self._source = source
        self._pending: queue.SimpleQueue[tuple[Check, Case]] = queue.SimpleQueue()
        for place in cases:
            if place[1].invalid is None:
                self._pending.put(place)
        self._deadline = time.monotonic() + _TOTAL_S
        self._threads = [
            threading.Thread(target=self._work, daemon=True)
            for _ in range(max(1, min(workers, len(cases))))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float = _TOTAL_S) -> None:
        """Wait until all is compiled, `seconds` at the most, and end the workers."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)
        for thread in self._threads:
            thread.join(max(0.0, self._deadline - time.monotonic()) + 4 * _CALL_S)

    def _work(self) -> None:
        # A worker dies with the thread that started it: this one starts and ends its own.
        budget = Budget(Limits(call_s=_CALL_S, lost_s=_TOTAL_S, total_s=_TOTAL_S))
        session = Session(self._problem, self._source, device="cuda", machine=False, budget=budget)
        try:
            while time.monotonic() < self._deadline and budget.used_up() is None:
                check, case = self._pending.get_nowait()
                inputs = make_inputs(self._problem, case, 0)
                session.compile(case, inputs, self._problem.judged(check))
        except queue.Empty:
            return
        finally:
            session.close()
