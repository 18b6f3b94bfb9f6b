"""Starts the workers of a measurement together, before the GPU is locked.

In a jail a worker is a fresh interpreter, which takes seconds to import torch. A locked GPU would
be idle meanwhile, and an import beside a timed call would slow that down. None of these workers has
a context on the GPU, or imports the file that it was started for, before its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from grader.isolate import capacity
from grader.isolate.sandbox import Sandbox

# An allowance for what a worker holds beyond the files of libraries, which all share. An import of
# torch without bytecode took 8 seconds of a core in a jail (three gradings side by side, 5 cores
# each, 2026-11-27): ten workers per core need two thirds of the time in which one has to start.
_WORKER_BYTES = 512 * 2**20
_WORKERS_PER_CORE = 10

Start = Callable[[], Sandbox]


class WorkersAhead:
    """A baseline, and the workers of the first problems, as many as cores and memory allow.

    As a context it waits for their imports, and ends at last the workers that nobody claimed.
    """

    def __init__(
        self,
        baseline: Start | None = None,
        of_problems: Mapping[str, Sequence[Start]] = {},
    ) -> None:
        self._baseline = baseline() if baseline else None
        self._of_problems: dict[str, list[Sandbox]] = {}
        left = _room() if of_problems else 0
        for problem, starts in of_problems.items():
            left -= len(starts)
            if left < 0 and self._of_problems:
                break
            self._of_problems[problem] = [start() for start in starts]

    def baseline(self) -> Sandbox | None:
        """Return the baseline's worker, which is the caller's from now on."""
        taken, self._baseline = self._baseline, None
        return taken

    def take(self, problem: str) -> list[Sandbox]:
        """Return the workers of a problem, which are the caller's from now on."""
        return self._of_problems.pop(problem, [])

    def _all(self) -> list[Sandbox]:
        workers = [worker for found in self._of_problems.values() for worker in found]
        return workers + [self._baseline] * (self._baseline is not None)

    def __enter__(self) -> WorkersAhead:
        for worker in self._all():
            worker.wait_for_imports()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all():
            worker.close()


def _room() -> int:
    """Return how many workers there is room for, half of the free memory at the most."""
    by_memory = capacity.free_bytes() // 2 // _WORKER_BYTES
    return int(min(by_memory, _WORKERS_PER_CORE * capacity.cores()))
