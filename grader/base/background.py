"""Does pieces of work in order, in a thread, while their owner goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Behind:
    """Pieces of work that nobody waits for until all of them are needed.

    The thread runs from the first piece to `finish`. It is a daemon: an interrupted process ends
    without waiting for it.
    """

    def __init__(self, most: int) -> None:
        """Let at most `most` pieces wait; `add` blocks while that many do."""
        self._pieces: queue.Queue[Callable[[], None] | None] = queue.Queue(most)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def add(self, piece: Callable[[], None]) -> None:
        """Queue a piece of work; raise, once, the exception of an earlier piece if there is one."""
        self._fail()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._pieces.put(piece)

    def finish(self) -> None:
        """Wait until all pieces are done; raise the exception of a piece if there is one."""
        if self._thread is not None:
            self._pieces.put(None)
            self._thread.join()
            self._thread = None
        self._fail()

    def _fail(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self) -> None:
        while (piece := self._pieces.get()) is not None:
            try:
                piece()
            except Exception as error:
                self._error = error
