"""Workers that are started before their turn: in a jail the interpreter and torch take seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from grader.running.sandbox import Sandbox


class Waiting:
    """One worker that waits while others have their turn.

    It has to be a `held` one, which has imported torch and nothing of the submission, and has no
    context on the GPU.
    """

    def __init__(self, turns: Iterable[tuple[str, Callable[[], Sandbox]]] = ()) -> None:
        """Take the turns in their order: whose each is, and how its worker is started."""
        self._turns = list(turns)
        self._next: tuple[str, Sandbox] | None = None

    def take(self, whose: str) -> Sandbox | None:
        """Return the worker that waits for a turn of `whose`, if there is one; start the next."""
        found = None
        if self._next is not None and self._next[0] == whose:
            found, self._next = self._next[1], None
        elif self._next is None and self._turns and self._turns[0][0] == whose:
            del self._turns[0]  # nothing was started for it
        self._start()
        return found

    def skip(self, whose: str) -> None:
        """Drop the turns of `whose` that are left."""
        self._turns = [turn for turn in self._turns if turn[0] != whose]
        if self._next is not None and self._next[0] == whose:
            self._next[1].close()
            self._next = None
        self._start()

    def close(self) -> None:
        """Drop all turns."""
        self._turns.clear()
        if self._next is not None:
            self.skip(self._next[0])

    def _start(self) -> None:
        if self._next is None and self._turns:
            whose, start = self._turns.pop(0)
            self._next = (whose, start())
