"""The memory in which the worker writes down what the kernels of one call do."""

from __future__ import annotations

from grader.isolate.arena import Arena
from grader.kernel.observers.rounds import Rounds, RoundsShape
from grader.kernel.observers.trace import Trace, TraceShape
from grader.source.submission import Source
from grader.spec.cases import Case


class TraceBlock:
    """For a trace of the whole call."""

    def __init__(self, case: Case, source: Source) -> None:
        self.shape = TraceShape.of(case, source.num_lines)
        self._arena = Arena(self.shape.total_bytes)
        self.fd = self._arena.fd
        self.close = self._arena.close

    def snapshot(self) -> Trace:
        """Return a private copy of what was written."""
        return Trace.of(self.shape, self._arena.memory.numpy())


class RoundsBlock:
    """For the rounds of one program."""

    def __init__(self, shape: RoundsShape) -> None:
        self.shape = shape
        self._arena = Arena(shape.total_bytes)
        self.fd = self._arena.fd
        self.close = self._arena.close

    def snapshot(self) -> Rounds | None:
        """Return a private copy of what was written, None where nothing was."""
        return Rounds.of(self.shape, self._arena.memory.numpy())
