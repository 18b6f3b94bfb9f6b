"""The end of the pipe through which a child of the judge's sends events and signs of life."""

from __future__ import annotations

import contextlib
import os
import threading
import time

_EVERY_S = 1.0


class EventPipe:
    """Writes whole lines to a descriptor, from any thread; `alive` is sent every second."""

    def __init__(self, fd: int, alive: bytes) -> None:
        self._fd = fd
        self._alive = alive
        self._lock = threading.Lock()
        os.set_inheritable(fd, False)
        threading.Thread(target=self._beat, daemon=True).start()

    def send(self, line: bytes) -> None:
        """Write one line, even if nobody reads it any more."""
        with self._lock, contextlib.suppress(OSError):
            view = memoryview(line)
            while view:
                view = view[os.write(self._fd, view) :]

    def _beat(self) -> None:
        while True:
            time.sleep(_EVERY_S)
            self.send(self._alive)


def read_request(fd: int) -> bytes:
    """Return the request that the judge left in `fd`, and close it."""
    with os.fdopen(fd, "rb") as file:
        return file.read()
