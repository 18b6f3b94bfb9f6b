"""The watch: one thread that waits for saves, keys and the current run, and shows results."""

from __future__ import annotations

import dataclasses
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from grader.api import Grader, Listener
from grader.commands.hint.command import render as render_hint
from grader.commands.hint.hints import Shown, next_hint
from grader.commands.watch import browser
from grader.commands.watch import terminal as page
from grader.commands.watch.terminal import Keys, Screen, changes, first_checks
from grader.isolate import reaper
from grader.isolate.processes import Children
from grader.judge.request import Request
from grader.kernel.compile import stages
from grader.report import exports
from grader.spec.grade_record import GradeRecord, ProblemResult, Verdict
from grader.spec.problem import Problem

_GRACE_S = 0.5


class GradingRun(Listener):
    """Grades `request` once, in a separate thread, and collects its progress."""

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
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the run has not ended."""
        return self._thread.is_alive()

    @property
    def words(self) -> str:
        """The progress of the run, as one line."""
        if not self.cases:
            return "starting"
        check, verdict = self.cases[-1]
        wrong = sum(verdict != "pass" for _, verdict in self.cases)
        return f"{len(self.cases)} cases, {wrong} not passed; {check} {verdict}"

    def stop(self) -> None:
        """End the run and all its processes."""
        self.stopped = True
        # A child may start after the others were stopped: repeat until the thread ends.
        while self._thread.is_alive():
            if self._grader is not None:
                self._grader.stop(_GRACE_S)
            self._thread.join(0.02)

    def _run(self) -> None:
        try:
            if self._children.kernels is not None:
                stages.make_room(self._children.kernels)
            self._grader = Grader(self._request, self, children=self._children)
            self.sources = self._grader.sources
            if not self.stopped:
                self.record = self._grader.run()
        except Exception as error:  # shown in the watch, which goes on
            self.error = error
        self.end_s = time.monotonic() - self._began

    def case_done(self, problem_id: str, check_id: str, verdict: Verdict) -> None:
        """Count a case."""
        if self.first_s is None:
            self.first_s = time.monotonic() - self._began
        self.cases.append((check_id, verdict))


# Polling one file costs microseconds. inotify would miss saves that another machine makes on a
# network file system, and all saves once the user has too many watches.
LOOK_S = 0.1
_SETTLE_S = 0.06  # an editor may write in several steps
_GONE_S = 0.4  # and may remove the file first

State = tuple[int, ...] | None  # None: the file does not exist


def state_of(path: Path) -> State:
    """Return values of which some differ after a save; times are compared for equality alone."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    times = found.st_mtime_ns, found.st_ctime_ns
    return found.st_dev, found.st_ino, found.st_mode, found.st_size, *times


@dataclasses.dataclass
class Watch:
    """Grades one problem at the start, at each save and at a key, until q.

    `request` returns a request with a new seed that runs the given checks first.
    """

    problem: Problem
    request: Callable[[tuple[str, ...]], Request]
    children: Children
    keys: Keys
    screen: Screen
    shown: Shown
    reports: bool

    def __post_init__(self) -> None:
        self._path = self.request(()).submission / self.problem.id / self.problem.file
        self._graded: State = None  # the file's state when the last run began
        self._run: GradingRun | None = None
        self._last: ProblemResult | None = None  # of the last completed run
        self._tested: ProblemResult | None = None  # of the last completed run with tests
        self._wants_hint = False
        self._page_told = False
        self._due_at: float | None = None
        self._seen: State = None  # the file's state, when `_due_at` was set
        self._dependent = frozenset(
            c.id for c in self.problem.checks if c.compiles or any(t.invalid for t in c.cases)
        )

    def run(self) -> None:
        """Watch until q; end the current run then, and on any exception."""
        try:
            self._begin()
            while self._wait():
                pass
        finally:
            self.screen.status("")
            if self._run is not None:
                self._run.stop()

    def _wait(self) -> bool:
        """Wait for a key or a moment, and act on keys, saves and results; return False at q."""
        fds = [self.keys.fd] if self.keys.fd is not None and self.keys.in_foreground() else []
        due_s = LOOK_S if self._due_at is None else self._due_at - time.monotonic()
        ready, _, _ = select.select(fds, [], [], min(max(0.0, due_s), LOOK_S))
        for key in self.keys.read() if ready else "":
            if key in "qQ\x04":
                return False
            self._press(key)
        self._look()
        self._show()
        return True

    def _look(self) -> None:
        """Start a new run once the file has changed and been stable for a moment."""
        now, state = time.monotonic(), state_of(self._path)
        if state == self._graded:
            self._due_at = None
        elif self._due_at is None or state != self._seen:
            self._seen = state
            self._due_at = now + (_GONE_S if state is None else _SETTLE_S)
        elif now >= self._due_at:
            self._begin()

    def _begin(self) -> None:
        """End the current run, and start one on the file as it is now."""
        if self._run is not None:
            self._run.stop()
        self._due_at = None
        self._graded = state_of(self._path)
        request = self.request(first_checks(self._tested, self._dependent))
        self._run = GradingRun(request, self.children)

    def _show(self) -> None:
        run = self._run
        if run is None:
            return
        if run.is_running:
            self.screen.status(f"{self.problem.id}: {run.words}")
            return
        self._run = None
        self.screen.status("")
        if run.error is not None:
            self._say(f"the judge failed: {type(run.error).__name__}: {run.error}")
        elif run.record is not None and not run.record.interrupted:
            self._tell(run)
        if self._wants_hint:
            self._hint()

    def _tell(self, run: GradingRun) -> None:
        now = run.record.problems[0]
        changed = changes(self._tested if now.message is None else None, now)
        times = {"first_s": run.first_s, "end_s": run.end_s}
        self.screen.say(page.result(now, changed, **times, **self.screen.looks) + "\n")
        if state_of(self._path) is None:
            self._say(f"waiting for {self.problem.id}/{self.problem.file}")
        self._last = now
        if now.message is None:
            self._tested = now
        if self.reports:
            _, notes = exports.write_page(run.record, run.sources)
            for text in notes if not self._page_told else ():
                self._say(text)
            self._page_told = bool(notes)

    def _press(self, key: str) -> None:
        if key in "aA\r\n":
            self._begin()
        elif key in "hH" and self._run is None:
            self._hint()
        elif key in "hH":
            self._wants_hint = True
            self._say("the hint comes when this run has ended")
        elif key in "oO":
            self._open()
        elif key == "?":
            self.screen.say(page.keys(self.screen.width))

    def _hint(self) -> None:
        self._wants_hint = False
        last, looks = self._last, self.screen.looks
        if last is None:
            return
        try:
            folder = self._path.parent.parent
            hint = next_hint((self.problem.id,), folder, self.shown, lambda id: last)
        except Exception as error:  # a failing hint must not end the watch
            self._say(f"no hint: {error}")
            return
        how = {"width": looks["width"], "color": looks["color"]}
        self.screen.say(render_hint(hint, self.shown.notices, **how) + "\n")

    def _open(self) -> None:
        if not self.reports:
            self._say("no report is written: REPORT=no")
        elif not exports.PAGE.exists():
            self._say("no report is written yet")
        elif not browser.opens(exports.PAGE, reaper.start):
            self._say(f"no browser was found; the report is {exports.PAGE.absolute()}")

    def _say(self, text: str) -> None:
        self.screen.say(page.note(text, self.screen.width))
