"""Times calls of a worker from outside: the judge holds inputs, clock and verification.

One timed go on a GPU (JUDGE protocol): fresh inputs stay in private memory; t0; they are copied
into the arena, L2 is flushed, the worker gets its signal, computes every set, answers; the outputs
are copied into private memory; t1. The time of a call is (t1 - t0 - overhead) / sets, the overhead
being the same with a trusted worker that computes nothing. On a CPU the CPU time of the worker and
of all that it started replaces the wall clock: threads do not shorten it, and neighbours hardly
lengthen it. Any process beside the worker ends the measurement, since one that has ended may go
uncounted. Of every go a share is verified later. Nothing that runs in the submission's process can
see inputs before t0, change outputs after t1, or touch the clock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import time
from typing import Any

import torch

from grader.isolate import apart, device_memory
from grader.isolate.arena import POISON, Arena, Call, Layout, View
from grader.isolate.placing import place
from grader.isolate.sandbox import Sandbox
from grader.isolate.session import Budget
from grader.isolate.usage import CpuTime, UsageMonitor
from grader.spec.cases import Case
from grader.spec.inputs import Inputs, make_inputs
from grader.spec.problem import Problem
from grader.spec.protocol import Ended, Reply, Status, failed
from grader.timing import share
from grader.timing.drawn import drawn_inputs

FLUSH_BYTES = 256 * 2**20  # five times the L2 cache of an H200, the largest there is
PAGE_BYTES = 2 * 2**20  # of a GPU
CALL_TIMEOUT_S = 120.0
_BASELINE_TIMEOUT_S = 40.0  # its calls take one second where the machine is not busy
_LEAST_S = 1.0  # each call may take this long, however little of the budget is left


class CallFailed(Exception):
    """A call for speed or memory did not end well; `result` is the worker's reply or its end."""

    def __init__(self, result: Reply | Ended) -> None:
        super().__init__(str(result))
        self.result = result


@dataclasses.dataclass(frozen=True)
class CallOutputs:
    """The `drawn` heads or rows (see `share`) of a call's outputs, and the seed of its inputs."""

    seed: int
    outputs: dict[str, torch.Tensor]
    drawn: torch.Tensor

    @property
    def num_bytes(self) -> int:
        return sum(output.nbytes for output in self.outputs.values())


@dataclasses.dataclass(frozen=True)
class Timed:
    """A worker whose calls are measured. With `entry` it is the trusted baseline.

    `budget` is the time that the calls of a submission may take together.
    """

    worker: Sandbox
    entry: str | None = None
    budget: Budget | None = None

    def ask(self, what: str, fds: tuple[int, ...] = (), **fields: Any) -> None:
        """Make a request that has to end within the time that is left.

        Raises:
            CallFailed: the worker did not answer, or not with success.
        """
        timeout_s = _BASELINE_TIMEOUT_S
        if self.budget is not None:
            timeout_s = min(CALL_TIMEOUT_S, max(self.budget.left_s, _LEAST_S))
        start = time.monotonic()
        result = self.worker.ask(what, timeout_s, fds, **fields)
        if self.budget is not None:
            self.budget.count(time.monotonic() - start, came_back=isinstance(result, Reply))
        if failed(result):
            raise CallFailed(result)


def see_alone(watch: UsageMonitor) -> None:
    """Refuse a call on the CPU beside which another process ran, since what it used may be unseen.

    Raises:
        CallFailed: another process ran.
    """
    if watch.most_processes > 1:
        text = "other processes ran beside the call: what they use cannot be measured"
        raise CallFailed(Reply(0, Status.EXCEPTION, error_type="RuntimeError", text=text))


class _WallTime:
    """The time for which the context is open, in `seconds`."""

    def __enter__(self) -> _WallTime:
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()


class Bench:
    """The judge's memory on one device: an arena that workers map, and private copies."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.idle_bytes: int | None = None  # host memory of a baseline that has computed nothing
        self._cuda: torch.Tensor | None = None
        self._cuda_fd = -1
        self._flush = torch.empty(0)
        if device == "cuda":
            total = torch.cuda.get_device_properties(0).total_memory
            self.capacity = min(8 * 2**30, total // 16)
            self._cuda, self._cuda_fd = device_memory.allocate(self.capacity)
            self._flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device="cuda")
        else:
            self.capacity = 2**30

    def attach(
        self, worker: Sandbox, entry: str | None = None, budget: Budget | None = None
    ) -> Timed:
        """Wait for `worker`, let it map the arena, and begin to watch what it uses.

        A baseline has no entry point after its import: each go names one.
        """
        start = time.monotonic()
        result = worker.ready()
        if budget is not None:
            budget.count(time.monotonic() - start, came_back=isinstance(result, Reply))
        unnamed = isinstance(result, Reply) and result.status == Status.NO_ENTRY
        if failed(result) and not (unnamed and entry is not None):
            raise CallFailed(result)
        timed = Timed(worker, entry, budget)
        if self.device == "cuda":
            assert self._cuda is not None
            timed.ask("open", (self._cuda_fd,), size=self._cuda.numel())
        elif entry is not None:
            self.idle_bytes = worker.tree().resident_bytes()
        return timed

    def layout(self, problem: Problem, case: Case) -> Layout:
        """Return where one set of inputs and outputs of `case` lies."""
        inputs = make_inputs(problem, case, 0, self.device)
        return place(case, inputs, problem.returns + problem.gradients)

    def go(
        self,
        timed: Timed,
        problem: Problem,
        case: Case,
        layout: Layout,
        *,
        sets: int = 1,
        null: bool = False,
        watched: bool = False,
        compare: bool = False,
    ) -> tuple[float, list[CallOutputs]]:
        """Run one timed go; return its seconds, and the share of its outputs to be verified.

        In a `watched` go the worker audits what PyTorch computes; its seconds mean nothing. With
        `compare` the inputs have to be afterwards as they were; it takes memory.

        Raises:
            CallFailed: the call did not end well, or an input was overwritten.
        """
        seeds = [secrets.randbits(63) for _ in range(sets)]
        private = [drawn_inputs(problem, case, seed, self.device) for seed in seeds]
        places = apart.scatter(layout, sets, self.capacity)
        with self._memory(places.total_bytes) as (memory, start, fds):
            memory.fill_(POISON)
            written = apart.outputs(memory, layout, sets, places.outputs_start)
            outputs = torch.empty_like(written)
            call = Call(layout, case.kwargs, problem.returns, bool(problem.gradients))
            how = {"sets": sets, "null": null, "watched": watched, "entry": timed.entry}
            timed.ask("settle", fds, layout=layout, window_start=start, **places._asdict())
            parts = [apart.parts(memory, layout, starts) for starts in places.starts]
            if self.device == "cuda":
                device_memory.forget_persisting_lines()
            self._synchronize()
            with CpuTime(timed.worker.tree()) if self.device == "cpu" else _WallTime() as clock:
                for part, inputs in zip(parts, private, strict=True):
                    for view, own in part:
                        view.of(own).copy_(inputs.all[view.name])
                if self.device == "cuda":
                    self._flush.fill_(1)
                self._synchronize()
                timed.ask("time", **call._asdict(), **how)
                outputs.copy_(written)
                self._synchronize()
            changed = self._overwritten(parts, private) if compare else None
        if isinstance(clock, CpuTime):
            see_alone(clock)
        if changed is not None:
            text = f"the input {changed} was overwritten: it is the caller's"
            raise CallFailed(Reply(0, Status.EXCEPTION, error_type="RuntimeError", text=text))
        results = []
        shares = share.draw(case, sets, self.device)
        for seed, raw, drawn in zip(seeds, outputs, shares, strict=True):
            if len(drawn):
                found = share.of(case, {view.name: view.of(raw) for view in layout.written}, drawn)
                results.append(CallOutputs(seed, found, drawn))
        return clock.seconds, results

    @staticmethod
    def _overwritten(
        parts: list[list[tuple[View, torch.Tensor]]], private: list[Inputs]
    ) -> str | None:
        """Return the name of an input that is not as it was, None if there is none."""
        every = zip(parts, private, strict=True)
        where = ((view, own, inputs) for part, inputs in every for view, own in part)
        return next(
            (v.name for v, own, given in where if not torch.equal(v.of(own), given.all[v.name])),
            None,
        )

    @contextlib.contextmanager
    def _memory(self, size: int) -> Any:
        """Yield memory for one go, its start in what the worker maps, and descriptors of that."""
        if self._cuda is not None:
            start = secrets.randbelow((self._cuda.numel() - size) // PAGE_BYTES + 1) * PAGE_BYTES
            yield self._cuda[start : start + size], start, ()
            return
        with Arena(size) as arena:
            yield arena.memory, 0, (arena.fd,)

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
