"""Memory: what one call takes beyond its inputs and outputs, as the driver or the kernel says."""

from __future__ import annotations

import dataclasses
import math
import os
from typing import Any

import torch

from grader.arena import TORCH_DTYPES
from grader.checks.stopwatch import CALL_TIMEOUT_S, Bench, CallFailed
from grader.manifest import Case, Problem
from grader.sandbox import Sandbox, failed

# torch's caching allocator takes device memory in blocks of 2 MiB, or 20 MiB for tensors of 1 to
# 10 MiB; on the CPU malloc keeps and rounds too. That much is not the submission's.
SLACK_BYTES = 32 * 2**20


def lengths(problem: Problem, case: Case, device: str) -> tuple[Case, Case] | None:
    """Return `case` at the two lengths of problem.toml, or None when the problem has no memory."""
    pair = problem.memory_lengths.get(device, problem.memory_lengths.get("default"))
    if not pair or case.rows is not None:
        return None
    short, long = (dataclasses.replace(case, seqlen_q=n, seqlen_k=n) for n in pair)
    return short, long


def extra_bytes(
    bench: Bench, worker: Sandbox, problem: Problem, case: Case, entry: str | None = None
) -> int:
    """Return the most memory one call takes beyond inputs and outputs, after a first call."""
    layout = bench.layout(problem, case)
    _start_over(bench, worker)
    bench.go(worker, problem, case, layout, sets=1, entry=entry)
    _start_over(bench, worker)
    before = _taken(bench, worker)
    bench.go(worker, problem, case, layout, sets=1, entry=entry)
    outputs = sum(_size_bytes(v.dtype, v.size) for v in layout.outputs)
    shared = layout.total_bytes if bench.device == "cpu" else 0  # the arena, mapped and touched
    return max(0, _taken(bench, worker) - before - outputs - shared)


def figures(
    problem: Problem, cases: tuple[Case, Case], extra: list[int], naive_extra: list[int]
) -> dict[str, Any]:
    """Return the figures of a memory component."""
    io = [_io_bytes(problem, case) for case in cases]
    factor = problem.memory_linear_factor
    return {
        "lengths": [case.seqlen_k for case in cases],
        "extra_bytes": extra,
        "naive_extra_bytes": naive_extra,
        "io_bytes": io,
        "allowed_bytes": [int(factor * n) + SLACK_BYTES for n in io],
        "shape": str(cases[1]),
    }


def _io_bytes(problem: Problem, case: Case) -> int:
    q = case.batch * case.num_q_heads * case.seqlen_q * case.head_dim
    kv = case.batch * case.num_kv_heads * case.seqlen_k * case.head_dim
    item = TORCH_DTYPES[case.dtype].itemsize
    lse = 4 * case.batch * case.num_q_heads * case.seqlen_q
    total = (2 * q + 2 * kv) * item + lse
    if problem.gradients:
        total += (2 * q + 2 * kv) * item
    return total


def _size_bytes(dtype: str, size: tuple[int, ...]) -> int:
    return TORCH_DTYPES[dtype].itemsize * math.prod(size)


def _start_over(bench: Bench, worker: Sandbox) -> None:
    """Begin a new peak: cached memory goes back to the driver, the kernel's mark is reset (CPU)."""
    result = worker.ask("release", CALL_TIMEOUT_S)
    if failed(result):
        raise CallFailed(result)
    if bench.device == "cpu":
        fd = os.open(f"/proc/{worker.pid}/clear_refs", os.O_WRONLY)
        try:
            os.write(fd, b"5")
        finally:
            os.close(fd)


def _taken(bench: Bench, worker: Sandbox) -> int:
    """Return the device memory in use, which only the worker changes, or its peak memory (CPU)."""
    if bench.device == "cuda":
        free, total = torch.cuda.mem_get_info()
        return total - free
    with open(f"/proc/{worker.pid}/status", encoding="ascii") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    raise CallFailed("the worker's peak memory cannot be read")
