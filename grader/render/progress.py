"""Live progress while grading: a small table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from grader.model import Points, Verdict
from grader.render.text import clean
from grader.render.text import points as shown_points

REFRESH_PER_SECOND = 4
BAR_WIDTH = 16
PHASE_LIMIT = 40


@dataclasses.dataclass
class _Row:
    """What is known about one problem; `started` and `ended` are in seconds of the clock."""

    total: int = 0
    done: int = 0
    passed: int = 0
    phase: str = "waiting"
    started: float | None = None
    ended: float | None = None
    verdict: Verdict | None = None
    points: Points = Points()


class Progress:
    """Progress of a graded run on `console`, which should write to standard error.

    Use it as a context manager: leaving it, also by an exception, takes the live table away and
    gives the cursor back. Without a terminal each finished problem is one line, flushed.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._rows: dict[str, _Row] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self, totals: Mapping[str, int]) -> None:
        """Begin with the number of correctness checks of each problem, in the order of the run."""
        self._rows = {problem_id: _Row(total=count) for problem_id, count in totals.items()}
        if not self._console.is_terminal or self._console.is_dumb_terminal or self._live:
            return
        # Standard output stays untouched: a record may be written to it while the table is shown.
        self._live = Live(
            get_renderable=self._table,
            console=self._console,
            refresh_per_second=REFRESH_PER_SECOND,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        try:
            self._live.start(refresh=True)
        except BaseException:
            self.stop()
            raise

    def check_done(self, problem_id: str, check_id: str, verdict: Verdict) -> None:
        """Count one finished check."""
        row = self._row(problem_id)
        row.done += 1
        row.passed += verdict is Verdict.PASS
        row.phase = clean(check_id, PHASE_LIMIT)

    def phase(self, problem_id: str, text: str) -> None:
        """Show what is being done for a problem, such as "speed"."""
        self._row(problem_id).phase = clean(text, PHASE_LIMIT)

    def problem_done(self, problem_id: str, verdict: Verdict, points: Points) -> None:
        """Finish a problem; without a terminal this writes its line."""
        row = self._row(problem_id)
        row.verdict, row.points, row.ended, row.phase = verdict, points, self._clock(), ""
        if self._live is None:
            self._write_line(problem_id, row)

    def stop(self) -> None:
        """Take the live table away and show the cursor; harmless when called again."""
        live, self._live = self._live, None
        if live is not None:
            try:
                live.stop()
            finally:
                self._console.show_cursor(True)

    def _row(self, problem_id: str) -> _Row:
        row = self._rows.setdefault(problem_id, _Row())
        if row.started is None:
            row.started = self._clock()
        return row

    def _elapsed(self, row: _Row) -> str:
        if row.started is None:
            return ""
        return f"{(row.ended or self._clock()) - row.started:.1f} s"

    def _write_line(self, problem_id: str, row: _Row) -> None:
        checks = f"{row.passed}/{max(row.total, row.done)} correctness checks"
        parts = [clean(problem_id, PHASE_LIMIT), str(row.verdict), checks, _earned(row)]
        line = "  ".join([*parts, self._elapsed(row)])
        try:
            self._console.file.write(line + "\n")
            self._console.file.flush()
        except (OSError, ValueError):
            # A closed standard error must not end a graded run.
            pass

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for style in (None, None, None, "dim", "dim"):
            table.add_column(style=style, no_wrap=True)
        for problem_id, row in list(self._rows.items()):
            total = max(row.total, row.done)
            finished = row.verdict is not None
            state = f"{row.verdict}  {_earned(row)}" if finished else row.phase
            table.add_row(
                Text(clean(problem_id, PHASE_LIMIT)),
                ProgressBar(total=max(total, 1), completed=row.done, width=BAR_WIDTH),
                Text(f"{row.done}/{total}"),
                Text(state),
                Text(self._elapsed(row)),
            )
        return table


def _earned(row: _Row) -> str:
    return f"{shown_points(row.points.earned)}/{shown_points(row.points.available)} points"
