"""Measures the memory of a call beyond its inputs and outputs, as the driver or Linux counts it.

The call is the first of a fresh worker, so that a workspace that it keeps for later counts as much
as one that it frees. On the CPU one that the import took counts too.
"""

from __future__ import annotations

import math

import torch

from grader.base.dtypes import TORCH_DTYPES
from grader.isolate.usage import PeakMemory
from grader.spec.cases import Case
from grader.spec.problem import Problem
from grader.timing.stopwatch import Bench, CallOutputs, Timed, see_alone


def extra_bytes(
    bench: Bench, timed: Timed, problem: Problem, case: Case, before_bytes: int
) -> tuple[int, list[CallOutputs]]:
    """Return the most memory one call takes beyond inputs and outputs, and what it computed.

    `before_bytes` is the `taken_bytes` before the import where the worker had its CUDA context by
    then, else after it; on the CPU that of the idle baseline.
    """
    layout = bench.layout(problem, case)
    outputs = sum(TORCH_DTYPES[v.dtype].itemsize * math.prod(v.size) for v in layout.outputs)
    if bench.device == "cpu":
        with PeakMemory(timed.worker.tree()) as memory:
            _, results = bench.go(timed, problem, case, layout)
        see_alone(memory)
        # What the file took when it was imported counts, and a baseline's took next to nothing. The
        # arena is mapped and touched: inputs and outputs, with their guards.
        before_bytes = min(memory.before_bytes, bench.idle_bytes or memory.before_bytes)
        taken = memory.peak_bytes - before_bytes - layout.total_bytes
    else:
        _, results = bench.go(timed, problem, case, layout)
        taken = taken_bytes() - before_bytes
    return max(0, taken - outputs), results


def taken_bytes() -> int:
    """Return the device memory in use; only the worker that is measured changes it."""
    free, total = torch.cuda.mem_get_info()
    return total - free


def release(timed: Timed, *, forget: bool = False) -> None:
    """Let a worker give cached device memory back, and with `forget` its module's own caches."""
    timed.ask("release", forget=forget)
