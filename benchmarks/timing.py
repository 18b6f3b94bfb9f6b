"""Times single calls between CUDA events with a flushed L2; contenders take turns."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from grader.kernel.dispatch import DispatchMode

_FLUSH_BYTES = 256 * 2**20
# Assumed rate of the GPU's cycle counter, by which `sample` keeps it busy.
_CYCLES_PER_S = 1.9e9
_MAX_DELAY_S = 3e-3
_SLOW_ROUNDS = 5


class Clock:
    """Times one call after another on one device."""

    def __init__(self, device: str) -> None:
        self.is_cuda = device.startswith("cuda")
        self._flush = torch.empty(_FLUSH_BYTES if self.is_cuda else 1, dtype=torch.uint8,
                                  device=device)  # fmt: skip
        self._sleep = getattr(torch.cuda, "_sleep", None)

    def synchronize(self) -> None:
        """Wait until the device is idle."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def sample(self, call: Callable[[], Any], delay_s: float = 2e-4) -> float:
        """Return the milliseconds of one call with a cold L2.

        The GPU first spins for `delay_s` while Python queues the launches, so that their time is
        not measured unless it is longer.
        """
        if not self.is_cuda:
            start = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - start)
        begin = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        if self._sleep is not None:
            self._sleep(int(_CYCLES_PER_S * min(delay_s, _MAX_DELAY_S)))
        self._flush.zero_()
        begin.record()
        result = call()
        end.record()
        end.synchronize()
        del result
        return begin.elapsed_time(end)

    def launch_s(self, call: Callable[[], Any]) -> float:
        """Return the seconds that Python needs to launch one call."""
        self.synchronize()
        start = time.perf_counter()
        call()
        taken = time.perf_counter() - start
        self.synchronize()
        return taken


class Entrant:
    """A participant of `interleave`: a function of the number of an input set."""

    def __init__(self, call: Callable[[int], Any], sets: int) -> None:
        self.call = call
        self.sets = sets
        self.samples_ms: list[float] = []
        self.fault: BaseException | None = None
        self._delay_s = 2e-4
        self._estimate_ms = 0.0
        self._every = 1
        self._turn = 0

    def warm_up(self, clock: Clock) -> None:
        """Call every set once, and estimate the times of launching and running."""
        for number in range(self.sets):
            self.call(number)
        # Three times: after a slow contender Python's code is no longer cached.
        self._delay_s = 3e-4 + 3 * min(clock.launch_s(lambda: self.call(0)) for _ in range(2))
        self._estimate_ms = min(self._time(clock) for _ in range(2))

    @property
    def cost_ms(self) -> float:
        """The milliseconds that one sample costs, including the wait."""
        return self._estimate_ms + 1e3 * min(self._delay_s, _MAX_DELAY_S) + 0.3

    def _time(self, clock: Clock) -> float:
        self._turn += 1
        number = self._turn % self.sets
        return clock.sample(lambda: self.call(number), self._delay_s)


def interleave(
    entrants: Sequence[Entrant],
    clock: Clock,
    *,
    seconds: float,
    rounds: int,
    rng: random.Random,
    least: int = 5,
) -> None:
    """Fill `samples_ms` of every entrant in rounds of one call each, in a random order.

    There are at most `rounds` rounds, fewer if `seconds` do not suffice, but at least `least`. An
    entrant over ten times slower than the fastest joins about five rounds. One that raises drops
    out, with the exception in `fault`.
    """
    running = []
    for entrant in entrants:
        entrant._every = 1
        try:
            entrant.warm_up(clock)
            running.append(entrant)
        except Exception as error:
            entrant.fault = error
    if not running:
        return
    fastest = min(entrant._estimate_ms for entrant in running)
    slow = [e for e in running if e._estimate_ms > 10 * fastest]
    slow_ms = sum(_SLOW_ROUNDS * e.cost_ms for e in slow)
    round_ms = sum(e.cost_ms for e in running if e not in slow)
    rounds = max(least, min(rounds, int((1e3 * seconds - slow_ms) / round_ms)))
    for entrant in slow:
        entrant._every = max(1, rounds // _SLOW_ROUNDS)
    for number in range(rounds):
        order = [e for e in running if number % e._every == 0]
        rng.shuffle(order)
        for entrant in order:
            try:
                entrant.samples_ms.append(entrant._time(clock))
            except Exception as error:
                entrant.fault = error
                running.remove(entrant)


def spread(samples: Sequence[float]) -> dict[str, Any]:
    """Return median, quartiles, minimum and number of samples in milliseconds."""
    ordered = sorted(samples)
    if len(ordered) == 1:
        low = high = ordered[0]
    else:
        low, _, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return {
        "median_ms": statistics.median(ordered),
        "quartiles_ms": [low, high],
        "best_ms": ordered[0],
        "samples": len(ordered),
    }


def extra_bytes(call: Callable[[], Any], outputs_of: Callable[[Any], list[torch.Tensor]]) -> int:
    """Return the peak of GPU memory allocated by a call, without its outputs."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated()
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in outputs_of(result)}
    return peak - before - sum(storage.nbytes() for storage in storages.values())


class Traffic(DispatchMode):
    """Sums the bytes of the tensors that PyTorch's operations read and write."""

    moved = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if not (func.is_view or func is torch.ops.aten._unsafe_view.default):
            tensors = (t for t in tree_leaves((args, kwargs, made)) if isinstance(t, torch.Tensor))
            self.moved += sum(t.nbytes for t in tensors)
        return made


def ceilings(clock: Clock, device: str) -> dict[str, float]:
    """Measure this GPU: bf16 matmul 8192^3 in TFLOP/s, a 4 GB copy in GB/s read + write.

    A GPU with less than 40 GB copies a tenth of its memory; a dry run on the CPU 1 MiB.
    """
    size, copied = (8192, 4 * 2**30) if clock.is_cuda else (64, 2**20)
    if clock.is_cuda:
        copied = min(copied, torch.cuda.get_device_properties(0).total_memory // 10)
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    product = torch.empty_like(a)
    source = torch.ones(copied, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    matmul = Entrant(lambda _: torch.mm(a, b, out=product), 1)
    copy = Entrant(lambda _: target.copy_(source), 1)
    interleave([matmul, copy], clock, seconds=1.0, rounds=21, rng=random.Random(0))
    for entrant in (matmul, copy):
        if entrant.fault is not None:
            raise entrant.fault
    return {
        "matmul_tflops": 2 * size**3 / statistics.median(matmul.samples_ms) / 1e9,
        "copy_gbps": 2 * copied / statistics.median(copy.samples_ms) / 1e6,
    }
