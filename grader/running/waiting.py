"""Workers that are started before their turn: in a jail the interpreter and torch take seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from grader.running.sandbox import Sandbox

_AHEAD = 2  # a short turn is over before the next worker has imported torch


class Waiting:
    """Workers that wait while another has its turn.

    They have to be `held` ones, which have imported torch and nothing of the submission, and have
    no context on the GPU.
    """

    def __init__(self, turns: Iterable[tuple[str, Callable[[], Sandbox]]] = ()) -> None:
        """Take the turns in their order: whose each is, and how its worker is started."""
        self._turns = list(turns)
        self._started: list[tuple[str, Sandbox]] = []

    def take(self, whose: str) -> Sandbox | None:
        """Return the worker that waits for a turn of `whose`, if there is one; start others."""
        found = None
        if self._started and self._started[0][0] == whose:
            found = self._started.pop(0)[1]
        elif not self._started and self._turns and self._turns[0][0] == whose:
            del self._turns[0]  # nothing was started for it
        self._start()
        return found

    def skip(self, whose: str) -> None:
        """Drop the turns of `whose` that are left."""
        self._turns = [turn for turn in self._turns if turn[0] != whose]
        for started in [started for started in self._started if started[0] == whose]:
            self._started.remove(started)
            started[1].close()
        self._start()

    def close(self) -> None:
        """Drop all turns."""
        self._turns.clear()
        while self._started:
            self._started.pop()[1].close()

    def _start(self) -> None:
        while self._turns and len(self._started) < _AHEAD:
            whose, start = self._turns.pop(0)
            self._started.append((whose, start()))
