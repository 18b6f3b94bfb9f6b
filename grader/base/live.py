"""Live progress on a console: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from rich import progress
from rich.console import Console


class Live(contextlib.AbstractContextManager):
    """Bars, or lines, on `console`, which should write to standard error.

    Use it as a context manager: leaving it, also by an exception, takes the bars away and gives the
    cursor back. A stream that is closed ends nothing.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._bars: progress.Progress | None = None

    def __exit__(self, *error: object) -> None:
        self.stop()

    def show(self, *columns: progress.ProgressColumn) -> progress.Progress | None:
        """Show bars with these columns, where there is a terminal."""
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            # Standard output stays untouched: a record may be written to it meanwhile.
            self._bars = progress.Progress(
                *columns,
                console=self._console,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            )
            try:
                self._bars.start()
            except BaseException:
                self.stop()
                raise
        return self._bars

    def line(self, text: str) -> None:
        """Write a line at once."""
        with contextlib.suppress(OSError, ValueError):
            self._console.file.write(text + "\n")
            self._console.file.flush()

    def stop(self) -> None:
        """Take the bars away and show the cursor; harmless when called again."""
        bars, self._bars = self._bars, None
        if bars is not None:
            with contextlib.suppress(OSError, ValueError):
                bars.stop()
