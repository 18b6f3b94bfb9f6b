"""One grading beside the watch: in a thread, on a warm server, ended when the file is saved."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from grader.api import Grader
from grader.isolate.processes import Children
from grader.judge.request import Request
from grader.kernel.compile import kept_kernels
from grader.spec.grade_record import GradeRecord, Points, Verdict

_GRACE_S = 0.5


class GradingRun:
    """Grades `request` once, in a thread of its own."""

    def __init__(self, request: Request, children: Children) -> None:
        self.cases: list[tuple[str, Verdict]] = []
        self.first_s: float | None = None
        self.end_s = 0.0
        self.record: GradeRecord | None = None
        self.error: Exception | None = None
        self.sources: Mapping[str, bytes] = {}
        self.stopped = False
        self._request = request
        self._children = children
        self._grader: Grader | None = None
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it has not come to its end."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End the run and all that it started."""
        self.stopped = True
        # A child may start between two looks: it is asked again.
        while self._thread.is_alive():
            if self._grader is not None:
                self._grader.stop(_GRACE_S)
            self._thread.join(0.02)

    def _run(self) -> None:
        try:
            if self._children.kernels is not None:
                kept_kernels.make_room(self._children.kernels)
            self._grader = Grader(self._request, self, children=self._children)
            self.sources = self._grader.sources
            if not self.stopped:
                self.record = self._grader.run()
        except Exception as error:  # told in the watch, which goes on
            self.error = error
        self.end_s = time.monotonic() - self._began

    # What a grading says of its progress.

    def phase(self, problem_id: str, text: str) -> None:
        """Say nothing of phases."""

    def case_done(self, problem_id: str, check_id: str, verdict: Verdict) -> None:
        """Count a case."""
        if self.first_s is None:
            self.first_s = time.monotonic() - self._began
        self.cases.append((check_id, verdict))

    def problem_done(
        self, problem_id: str, verdict: Verdict, points: Points, *, more: str = ""
    ) -> None:
        """Say nothing: the record says it."""
