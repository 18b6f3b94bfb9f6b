"""Work that is done in a thread while its owner goes on, piece by piece and in order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable


class Behind:
    """Pieces of work that nobody waits for until all of them are needed.

    The thread is there from the first piece to `finish`. It ends with the process: who is
    interrupted need not wait for it.
    """

    def __init__(self, most: int) -> None:
        """Let `most` pieces wait at a time; who brings one more waits too."""
        self._pieces: queue.Queue[Callable[[], None] | None] = queue.Queue(most)
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def add(self, piece: Callable[[], None]) -> None:
        """Do a piece of work after those before it; raise, once, what one of them has raised."""
        self._fail()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._pieces.put(piece)

    def finish(self) -> None:
        """Wait until all is done; raise what a piece has raised."""
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
