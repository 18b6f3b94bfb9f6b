"""Predicts how long a launch takes, from what its programs ask of a chip.

A program lasts as long as the units of its multiprocessor need for it and for those beside it, or
as its own chain of instructions takes: the time is a smooth maximum of both. Multiprocessors take
programs in order as they become free. Memory has its own time. `python -m
benchmarks.predicting` fits the constants; docs/records/predicted-h100-2026-11-27.json has kernels,
times and errors, and docs/predict.md says how good it is.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from collections.abc import Mapping, Sequence

import torch

from grader.base.dot_rates import DOTS
from grader.kernel.compile.chips import EVERY_CHIP, Chip, resident_programs
from grader.kernel.compile.listing import Mix
from grader.kernel.compile.requests import Requests
from grader.kernel.compile.work import Work
from grader.kernel.machine.ttir import NotMeasured


@dataclasses.dataclass(frozen=True)
class Gpu:
    """A GPU whose times are predicted: its chip, clock and memory, from NVIDIA's data sheets.

    `fused` says that multiplications and additions in fp32 have units of their own, beside others.
    """

    name: str
    chip: Chip
    clock_hz: float
    bytes_per_s: float
    fused: bool

    @property
    def macs(self) -> float:
        """Products of 16-bit dots per clock in each of the four parts of a multiprocessor."""
        return DOTS[self.chip.compute_capability] / 2 / 4


GPUS = (
    Gpu("A100", EVERY_CHIP[80], 1.41e9, 2.039e12, fused=False),
    Gpu("H100", EVERY_CHIP[90], 1.755e9, 3.35e12, fused=True),
    Gpu("H200", EVERY_CHIP[90], 1.755e9, 4.8e12, fused=True),
)


@dataclasses.dataclass(frozen=True)
class Constants:
    """The fitted constants: cycles of a unit or of a wait.

    `memory` is the share of the data sheet's bandwidth that a kernel reaches; `overlap` and
    `hiding` are the powers in the sums of units, and of units and a program's own chain: with 1
    times add up, with infinity the longest one remains.
    """

    tensor: float = 1.02
    special: float = 5.2
    other: float = 1.4
    issue: float = 0.904
    shared: float = 0.00848  # a byte
    overlap: float = 1.76
    instruction: float = 1.11
    wait: float = 53.5
    fetch: float = 776.0
    program: float = 1930.0
    hiding: float = 3.57
    memory: float = 0.72
    launch_s: float = 2e-6


FITTED = Constants()
_MEMORY_POWER = 8.0
_MOST_SECTORS = 2.0  # times those that the bytes of requests need
_LEAST_FOUND, _MOST_NARROW, _MOST_STORED = 0.9, 0.5, 2.0
# The names of units in reports of what bounds a kernel.
UNITS = ("tensor cores", "exp2 and other special functions", "arithmetic besides dots",
         "issue slots", "shared memory")  # fmt: skip


class CannotTell(NotMeasured):
    """The model does not cover kernels of this kind."""


@dataclasses.dataclass(frozen=True)
class Launched:
    """The figures of a launch besides its work; `tensor_bytes` are those of its arguments."""

    num_warps: int
    registers: int
    shared_bytes: int
    stack_bytes: int
    tensor_bytes: int


@dataclasses.dataclass(frozen=True)
class Time:
    """A prediction: milliseconds, what bounds the kernel, and the share of the peak of dots."""

    ms: float
    bound: str
    peak: float


def expect_known(work: Work, launched: Launched) -> None:
    """Raise CannotTell if a launch is of a kind that the model does not cover."""
    total = Mix()
    for mix, size in zip(work.mixes, work.sizes.tolist(), strict=True):
        total += mix * (size * launched.num_warps)
    if launched.stack_bytes:
        raise CannotTell("its variables do not fit into registers, and what spills is not modelled")
    if work.macs and not work.tensor_cores:
        raise CannotTell("its dots use no tensor cores, and such dots are not modelled")
    if total.macs < _LEAST_FOUND * work.macs:
        raise CannotTell("its loops could not be found again in the machine code")
    if work.stored > _MOST_STORED * launched.tensor_bytes:
        raise CannotTell(
            "it adds to the same memory again and again, and such rounds are not modelled"
        )
    if total.narrow_bytes > _MOST_NARROW * (total.global_bytes + 1):
        raise CannotTell(
            "its threads read less than 4 bytes at a time: whether their addresses lie side by side"
            " is not modelled"
        )


def expect_coalesced(found: Mapping[Requests, float], path: str) -> None:
    """Raise CannotTell if requests, with the count of each, take too many needless sectors.

    `path` is the submission's file. The model does not know which such sectors caches hold.
    """
    taken = sum(one.sectors * count for one, count in found.items())
    least = sum(one.least * count for one, count in found.items())
    if taken > _MOST_SECTORS * least:
        worst = max(found, key=lambda one: (one.sectors - one.least) * found[one])
        line = worst.seen.op.place.line_in(path) or worst.seen.op.place.line
        verb = "reads" if worst.seen.kind == "load" else "writes"
        raise CannotTell(
            f"line {line} {verb} {worst.sectors / worst.least:.2g} times the bytes that it needs"
        )


def predict(work: Work, launched: Launched, gpu: Gpu, constants: Constants = FITTED) -> Time:
    """Return the time of one launch on a GPU."""
    c, warps = constants, launched.num_warps
    resident, _ = resident_programs(
        gpu.chip, num_warps=warps, registers=launched.registers, shared_bytes=launched.shared_bytes
    )
    programs = len(work.kinds)
    resident = max(1, min(resident, math.ceil(programs / gpu.chip.multiprocessors)))
    names = [field.name for field in dataclasses.fields(Mix)]
    mixes = torch.tensor([[getattr(m, n) for n in names] for m in work.mixes], dtype=torch.float64)
    of = dict(zip(names, mixes.T, strict=True))
    tensor = of["macs"] / gpu.macs * c.tensor
    in_part = warps / 4
    units = torch.stack(
        [
            tensor * in_part,
            of["special"] * c.special * in_part,
            of["other"] * c.other * in_part,
            (of["issued"] + (0.0 if gpu.fused else 1.0) * of["fused"]) * c.issue * in_part,
            of["shared_bytes"] * c.shared * warps,
        ]
    )
    busy = _together(units, c.overlap) * resident
    chain = (
        tensor
        + of["issued"] * c.instruction
        + of["special"] * c.special / 2
        + of["waits"] * c.wait
        + of["fetches"] * c.fetch
        + c.program
    )
    lasts = _together(torch.stack([busy, chain]), c.hiding)
    slots = gpu.chip.multiprocessors * resident
    compute_s = _handed_out(lasts[work.kinds].tolist(), slots) / gpu.clock_hz
    sizes = work.sizes.to(torch.float64)
    moved = min(work.loaded + work.stored, launched.tensor_bytes)
    times = {
        "": compute_s,
        "bytes to and from memory": moved / (c.memory * gpu.bytes_per_s),
    }
    values = torch.tensor(list(times.values()), dtype=torch.float64)
    seconds = float(_together(values, _MEMORY_POWER)) + c.launch_s
    bound = max(times, key=lambda name: times[name])
    if not bound and float((chain * sizes).sum()) > float((busy * sizes).sum()):
        count = f"{resident} program{'s' if resident > 1 else ''} per multiprocessor"
        bound = f"latency, with {count}"
    elif not bound:
        bound = UNITS[int((units * sizes).sum(1).argmax())]
    peak = 4 * gpu.macs * gpu.chip.multiprocessors * gpu.clock_hz
    return Time(1e3 * seconds, bound, work.macs / peak / seconds)


def cycles_of(mix: Mix, constants: Constants = FITTED) -> float:
    """Return the cycles that instructions cost a part of a multiprocessor, to compare lines."""
    c = constants
    return max(
        mix.macs / GPUS[-1].macs, c.special * mix.special, c.other * mix.other, mix.issued * c.issue
    )


def _together(times: torch.Tensor, power: float) -> torch.Tensor:
    """Add up times that partly overlap, along the first axis: from their maximum to their sum."""
    longest = times.amax(0).clamp_min(1e-12)
    return longest * ((times / longest) ** power).sum(0) ** (1 / power)


def _handed_out(durations: Sequence[float], slots: int) -> float:
    """Return when the last program ends if each begins, in order, as soon as a slot is free."""
    if len(set(durations)) == 1:
        return durations[0] * math.ceil(len(durations) / slots)
    ends = list(durations[:slots])
    heapq.heapify(ends)
    for duration in durations[slots:]:
        heapq.heapreplace(ends, ends[0] + duration)
    return max(ends)
