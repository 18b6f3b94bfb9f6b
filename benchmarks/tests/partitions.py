"""Partitions of a modelled program, each a thread, of which one runs at a time; and their barriers.

The next partition to run is drawn from a seed among those that can, so that runs are repeatable.
In most runs one partition is slow: it runs only when no other can, so that the others get as far
ahead as barriers allow. If none can run, there is a deadlock.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable


class Fault(Exception):
    """The kernel made a mistake that goes wrong on the hardware."""


class Stopped(BaseException):
    """Ends a partition after another one failed."""


class Barrier:
    """An mbarrier; a wait for a parity ends when the last completed phase has that parity."""

    def __init__(self, label: str) -> None:
        self.label, self.count, self.phase, self.pending, self.bytes = label, 0, 0, 0, 0

    def arrive(self, count: int = 1, nbytes: int = 0) -> None:
        if not self.count:
            raise Fault(f"{self.label}: used before its init")
        self.pending -= count
        self.bytes += nbytes
        self.settle()

    def settle(self) -> None:
        if self.pending < 0:
            raise Fault(f"{self.label}: more than {self.count} arrivals in phase {self.phase}")
        if self.pending == 0 and self.bytes == 0:
            self.phase += 1
            self.pending = self.count

    def has_ended(self, parity: int) -> bool:
        return self.phase & 1 != parity


class State:
    """The state of the running program, with the scheduler of its partitions."""

    program = programs = allocations = 0
    run = 0  # which partition is slow
    rng = random.Random(0)
    scheduler: Partitions | None = None


class Partitions:
    """Schedules partitions, one at a time, with copies in between."""

    def __init__(self, partitions: list[tuple[Callable[..., None], tuple]]) -> None:
        self.copies: list[Callable[[], None]] = []
        self.blocked: dict[int, tuple[Barrier, int]] = {}
        self.alive = set(range(len(partitions)))
        self.fault: BaseException | None = None
        self.slow = (None, *self.alive)[State.run % (len(partitions) + 1)]
        self.gates = [threading.Semaphore(0) for _ in partitions]
        self.over = threading.Semaphore(0)
        self.local = threading.local()
        self.threads = [
            threading.Thread(target=self._run, args=(i, function, args), daemon=True)
            for i, (function, args) in enumerate(partitions)
        ]

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        self._hand_on()
        self.over.acquire()
        for thread in self.threads:
            thread.join()
        if self.fault is not None:
            raise self.fault
        if self.copies:
            raise Fault("the program ended with loads under way")

    def _run(self, me: int, function: Callable[..., None], args: tuple) -> None:
        self.local.me, self.local.unfenced = me, set()
        self.local.products, self.local.stores = [], []
        self.gates[me].acquire()
        try:
            if self.fault is None:
                function(*args)
                if self.local.products or self.local.stores:
                    raise Fault(f"partition {me} ended with products or stores under way")
        except Stopped:
            pass
        except Exception as error:
            self.fault = self.fault or error
        self.alive.discard(me)
        self._hand_on()

    def _hand_on(self) -> None:
        """Wake the next partition; without any left, end the run."""
        if not self.alive:
            self.over.release()
            return
        while self.fault is None:
            ready = [
                i
                for i in sorted(self.alive)
                if i not in self.blocked or self.blocked[i][0].has_ended(self.blocked[i][1])
            ]
            if self.copies and (not ready or State.rng.random() < 0.3):
                self.copies.pop(State.rng.randrange(len(self.copies)))()
            elif ready:
                chosen = State.rng.choice([i for i in ready if i != self.slow] or ready)
                self.blocked.pop(chosen, None)
                self.gates[chosen].release()
                return
            else:
                waits = (
                    f"partition {i} waits for {bar.label}, parity {parity}, which is in phase"
                    f" {bar.phase}"
                    for i, (bar, parity) in sorted(self.blocked.items())
                )
                self.fault = Fault("deadlock: " + "; ".join(waits))
        self.gates[min(self.alive)].release()

    def step(self) -> None:
        self._hand_on()
        self.gates[self.local.me].acquire()
        if self.fault is not None:
            raise Stopped

    def wait(self, bar: Barrier, parity: int) -> None:
        self.blocked[self.local.me] = (bar, parity)
        self.step()
