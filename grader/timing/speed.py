"""Runs the timed goes of a problem: blocks of the baseline around blocks of the submission."""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Iterator

import torch

from grader.isolate import capacity
from grader.isolate.arena import Layout
from grader.spec.cases import Case
from grader.spec.problem import Problem
from grader.timing.stopwatch import Bench, CallOutputs, Timed

# Goes of a block: the median of seven is off by a third of their spread. A CPU has more blocks, of
# three goes, since its speed changes between blocks and not within one.
_GOES = {"cuda": 7, "cpu": 3}
# Blocks of short calls have more goes, since reading the clock is a larger part of each.
_GOES_SHORT = 21
_GO_S = 0.010  # a go should be this long: 50 times what one hand-over to the worker varies by
_NULL_GOES = 12  # empty goes, whose lower quartile is the overhead of a go
_TRIALS = 4  # further goes of one call that are tried where a go has several calls
_SHORTEST_S = 1e-5  # no launch is shorter
_MAX_SETS = 32
# Blocks of the submission, each in a worker of its own and between two of the baseline. Where
# points count a GPU has three too: the same answer came out up to 10 % apart from worker to worker,
# p01, whose time is that of launching, up to 55 % (H200, 2026-11-23).
_STUDENT_BLOCKS = {"cuda": 1, "cpu": 3}
_OFFICIAL_BLOCKS = 3
# Peak bytes of naive per score, forward and backward, with what torch's allocator cannot reuse.
# Measured as reserved memory on an H200, 2026-11-21 (docs/records): 12.0 (p04) and 19.8 (p08).
_NAIVE_BYTES_PER_SCORE = {False: 14, True: 20}
_NAIVE_BYTES_PER_ELEMENT = 12  # of x: its fp32 copy, the products, and the input itself
# On the CPU naive takes 11.5 bytes per score (p01, 2026-11-23), and each further worker 150 MiB for
# PyTorch, and what it works with.
_HOST_BYTES_PER_SCORE = 12
_WORKER_BYTES = 200 * 2**20

MarginOf = Callable[[list[CallOutputs]], float]


@dataclasses.dataclass(frozen=True)
class Block:
    """Seconds of several goes of `sets` calls each, and the worst error / allowed seen in them."""

    seconds: tuple[float, ...]
    sets: int
    margin: float = 0.0

    def per_call_ms(self, overhead_s: float) -> list[float]:
        """Milliseconds per call of every go, the overhead of a go subtracted."""
        return [1000.0 * (s - overhead_s) / self.sets for s in self.seconds]


def student_blocks(device: str, *, official: bool) -> int:
    """Return how many blocks of the submission are timed."""
    return max(_STUDENT_BLOCKS[device], _OFFICIAL_BLOCKS if official else 1)


def fitting_shapes(problem: Problem, device: str) -> Iterator[Case]:
    """Yield the shapes whose naive run should fit into the device's free memory, largest first."""
    for case in problem.benchmarks_on(device):
        if device == "cuda":
            if case.dtype == "bf16" and torch.cuda.get_device_capability()[0] < 8:
                continue
            torch.cuda.empty_cache()  # what the oracle of an earlier problem left behind
            if naive_bytes(problem, case) > 0.95 * torch.cuda.mem_get_info()[0]:
                continue
        elif host_bytes(case, workers=1) > capacity.free_bytes():
            continue
        yield case


def naive_bytes(problem: Problem, case: Case) -> int:
    """Estimate the peak memory of the naive baseline on `case`."""
    if case.rows is not None and case.cols is not None:
        return _NAIVE_BYTES_PER_ELEMENT * case.rows * case.cols
    scores = case.batch * case.num_q_heads * case.seqlen_q * case.seqlen_k
    return _NAIVE_BYTES_PER_SCORE[bool(problem.gradients)] * scores


def host_bytes(case: Case, *, workers: int) -> int:
    """Estimate what a measurement on the CPU takes beyond the judge and the baseline's worker."""
    scores = case.batch * case.num_q_heads * case.seqlen_q * case.seqlen_k
    return _HOST_BYTES_PER_SCORE * scores + workers * _WORKER_BYTES


def run_block(
    bench: Bench,
    timed: Timed,
    problem: Problem,
    case: Case,
    *,
    overhead_s: float,
    margin_of: MarginOf | None,
    like: Block | None = None,
) -> Block:
    """Time a block of goes; `margin_of` returns error / allowed of the outputs of one go.

    The baseline is trusted and has none. A first go, not counted, compiles and autotunes. A block
    has as many goes of as many calls as an earlier one of the same code that it is `like`. On a GPU
    an empty go comes before each, since a worker that has slept takes 0.2 ms to wake up (H200,
    2026-11-23).
    """
    layout = bench.layout(problem, case)
    unverified = _Unverified(margin_of, bench.capacity)

    def go(sets: int, *, watched: bool = False) -> float:
        if bench.device == "cuda":
            bench.go(timed, problem, case, layout, null=True)
        how = {"sets": sets, "watched": watched, "compare": timed.entry is None}
        seconds, results = bench.go(timed, problem, case, layout, **how)
        unverified.add(results)
        return seconds

    go(1)
    if like is not None:
        sets, goes = like.sets, len(like.seconds)
    else:
        sets, goes = _length(bench, layout, lambda: go(1) - overhead_s)
    if sets > 1 or like is not None:
        go(sets)  # not counted: it allocates the outputs of so many calls
    # Of a submission one more go is watched, at a drawn place: it cannot know which.
    watched_at = secrets.randbelow(goes) if timed.budget else None
    seconds = []
    for number in range(goes):
        if number == watched_at:
            go(sets, watched=True)
        seconds.append(go(sets))
    return Block(tuple(seconds), sets, unverified.worst())


def _length(bench: Bench, layout: Layout, call_s: Callable[[], float]) -> tuple[int, int]:
    """Return how many calls make a go, and how many goes a block, by the seconds of one call.

    Where several calls make a go, the fastest of five counts: a new worker is slow now and then,
    and a go that is too short is timed less well.
    """
    one_s = call_s()
    if one_s < _GO_S:
        one_s = min(one_s, *(call_s() for _ in range(_TRIALS)))
    one_s = max(one_s, _SHORTEST_S)
    sets = calls_of_go(bench, layout, one_s)
    return sets, _GOES_SHORT if one_s * sets < 0.5 * _GO_S else _GOES[bench.device]


class _Unverified:
    """Outputs of calls, verified when the block has ended or when they take too much memory.

    Verifying after each go would heat the device, and slow the submission but not the baseline.
    """

    def __init__(self, margin_of: MarginOf | None, room_bytes: int) -> None:
        self._margin_of, self._room_bytes = margin_of, room_bytes
        self._goes: list[list[CallOutputs]] = []
        self._worst = 0.0

    def add(self, results: list[CallOutputs]) -> None:
        if self._margin_of is None:
            return
        self._goes.append(results)
        if sum(call.num_bytes for go in self._goes for call in go) > self._room_bytes:
            self.worst()

    def worst(self) -> float:
        """Verify the outputs added so far; return the worst error / allowed of all.

        After a wrong output none is verified: many short calls would take minutes.
        """
        while self._goes and self._margin_of is not None:
            goes = self._goes.pop()
            if self._worst <= 1.0:
                self._worst = max(self._worst, self._margin_of(goes))
        return self._worst


def calls_of_go(bench: Bench, layout: Layout, one_s: float) -> int:
    """Return how many calls of `one_s` seconds make a go that is long enough to be timed."""
    calls = math.ceil(_GO_S / max(one_s, _SHORTEST_S))
    return max(1, min(calls, _MAX_SETS, bench.capacity // layout.total_bytes))


def overhead(bench: Bench, naive: Timed, problem: Problem, case: Case, sets: int) -> float:
    """Return the seconds of a go in which a trusted worker computes nothing, a low quantile."""
    layout = bench.layout(problem, case)
    times = [
        bench.go(naive, problem, case, layout, sets=sets, null=True)[0] for _ in range(_NULL_GOES)
    ]
    return sorted(times)[_NULL_GOES // 4]
