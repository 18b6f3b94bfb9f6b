"""Compiles kernels before the calls that launch them, on several cores, into their workers' cache.

Compilation does not count as time of a call: a kernel that takes its window, its sinks and its
lengths as constants compiles anew for nearly every case, and that is no mistake. It needs no GPU:
none is locked meanwhile.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence

from grader.isolate.arena import Call
from grader.isolate.compiled import unavailable
from grader.isolate.sandbox import PATIENCE, Sandbox
from grader.kernel.compile.chips import chip_of
from grader.source.submission import Source
from grader.spec.problem import Problem
from grader.spec.protocol import Ended, failed

_CALL_S = 60.0
_TOTAL_S = 150.0


class Compilers:
    """Workers that make the calls of a list for a GPU of this capability, and launch nothing."""

    def __init__(
        self,
        problem: Problem,
        source: Source,
        calls: Sequence[Call],
        workers: int,
        capability: int | None,
    ) -> None:
        """Start at once; nothing is compiled where that is impossible without the GPU.

        Errors are ignored here: the call itself compiles then, and raises them again.
        """
        self._problem, self._source, self._capability = problem, source, capability
        self._pending: queue.SimpleQueue[Call] = queue.SimpleQueue()
        for call in calls:
            self._pending.put(call)
        self._deadline = time.monotonic() + _TOTAL_S
        possible = chip_of(capability) is not None and unavailable(capability or 0) is None
        count = max(1, min(workers, len(calls))) if possible else 0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def wait(self, seconds: float = _TOTAL_S) -> None:
        """Wait until all is compiled, `seconds` at the most, and end the workers."""
        self._deadline = min(self._deadline, time.monotonic() + seconds)
        for thread in self._threads:
            thread.join()  # the call that is being made may take `_CALL_S`

    def _work(self) -> None:
        # A worker dies with the thread that started it: this one starts and ends its own.
        file = self._source.data, self._problem.file, self._problem.entry
        how = {"role": "compile", "capability": self._capability, "fills": True}
        with Sandbox(*file, device="cpu", **how) as worker:
            if failed(worker.ready()):
                return
            while (left_s := self._deadline - time.monotonic()) > 0:
                try:
                    call = self._pending.get_nowait()
                except queue.Empty:
                    return
                how = {"timeout_s": min(left_s, _CALL_S), "patience": PATIENCE}
                if isinstance(worker.ask("compile", **how, **call._asdict()), Ended):
                    return
