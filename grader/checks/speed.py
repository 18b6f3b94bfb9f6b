"""Speed: the ratio to naive PyTorch on the same device in the same run, every output verified."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator
from typing import Any

import torch

import reference
from grader.checks.correctness import UNIT_ROUNDOFF
from grader.checks.inputs import Inputs
from grader.checks.stopwatch import Bench
from grader.manifest import Benchmark, Case, Problem
from grader.sandbox import Sandbox

_GOES, _GOES_SHORT, _GOES_LONG, _NULL_GOES = 7, 21, 5, 12
_LONG_CALL_S = 0.2
_GO_S = 0.010  # a go shorter than this is measured more often: its overhead is not small
_MAX_SETS = 32
# Relative error per head, in unit roundoffs: at these lengths the rounding of P, of the output
# and, backward, of delta and dS averages out; what a submission may have beyond that is small.
_FORWARD_UNITS, _BACKWARD_UNITS = 2.0, 3.0
_FP32_UNITS = 64.0
# Peak bytes of naive per score, forward and backward, with what torch's allocator cannot reuse.
# Measured as reserved memory on an H200, 2026-11-21 (docs/records): 12.0 (p04) and 19.8 (p08).
_NAIVE_BYTES_PER_SCORE = {False: 14, True: 20}


def fitting_benchmarks(problem: Problem, device: str) -> Iterator[Benchmark]:
    """Yield the shapes whose naive run should fit into the device's free memory, largest first."""
    for benchmark in problem.benchmarks_on(device):
        case = benchmark.case
        if device == "cuda":
            if case.dtype == "bf16" and torch.cuda.get_device_capability()[0] < 8:
                continue
            torch.cuda.empty_cache()  # what the oracle of an earlier problem left behind
            if naive_bytes(problem, case) > 0.95 * torch.cuda.mem_get_info()[0]:
                continue
        yield benchmark


def naive_bytes(problem: Problem, case: Case) -> int:
    """Estimate the peak memory of the naive baseline on `case`."""
    if case.rows is not None:
        return 12 * case.rows * case.cols
    scores = case.batch * case.num_q_heads * case.seqlen_q * case.seqlen_k
    return _NAIVE_BYTES_PER_SCORE[bool(problem.gradients)] * scores


@dataclasses.dataclass(frozen=True)
class Block:
    """Seconds of several goes of `sets` calls each, and the worst error / allowed seen in them."""

    seconds: tuple[float, ...]
    sets: int
    margin: float

    def per_call_ms(self, overhead_s: float) -> list[float]:
        """Milliseconds per call of every go, the overhead of a go subtracted."""
        return [1000.0 * (s - overhead_s) / self.sets for s in self.seconds]


def run_block(
    bench: Bench,
    worker: Sandbox,
    problem: Problem,
    case: Case,
    *,
    overhead_s: float,
    entry: str | None = None,
) -> Block:
    """Time a block of goes. With `entry` the worker is the trusted baseline: nothing is verified.

    A first go, not counted, compiles and autotunes; a second says how many calls make a go.
    """
    layout = bench.layout(problem, case)
    check = (lambda results: 0.0) if entry else (lambda results: _margin(problem, case, results))
    _, results = bench.go(worker, problem, case, layout, sets=1, entry=entry)
    margin = check(results)
    seconds, _ = bench.go(worker, problem, case, layout, sets=1, entry=entry)
    one_s = max(seconds - overhead_s, 1e-5)
    sets = max(1, min(math.ceil(_GO_S / one_s), _MAX_SETS, bench.capacity // layout.total_bytes))
    times = []
    goes = _GOES if one_s < _LONG_CALL_S else _GOES_LONG
    if one_s * sets < 0.5 * _GO_S:
        goes = _GOES_SHORT
    for _ in range(goes):
        seconds, results = bench.go(worker, problem, case, layout, sets=sets, entry=entry)
        margin = max(margin, check(results))
        times.append(seconds)
    return Block(tuple(times), sets, margin)


def overhead(bench: Bench, worker: Sandbox, problem: Problem, case: Case, sets: int) -> float:
    """Return the seconds of a go in which a trusted worker computes nothing, a low quantile."""
    layout = bench.layout(problem, case)
    times = [
        bench.go(worker, problem, case, layout, sets=sets, null=True)[0] for _ in range(_NULL_GOES)
    ]
    return sorted(times)[_NULL_GOES // 4]


def figures(student: Block, naive: list[Block], overheads: dict[int, float]) -> dict[str, Any]:
    """Return the figures of a speed component: medians, their ratio, spread and sample counts.

    `overheads` has the seconds of a go that computes nothing, by its number of sets.
    """
    ours = student.per_call_ms(overheads[student.sets])
    blocks = [statistics.median(block.per_call_ms(overheads[block.sets])) for block in naive]
    median_ms = statistics.median(ours)
    low, _, high = statistics.quantiles(ours, n=4)
    naive_ms = min(blocks)
    return {
        "speedup": naive_ms / median_ms if median_ms > 0 else math.nan,
        "median_ms": median_ms,
        "naive_ms": naive_ms,
        "spread_percent": 100.0 * (high - low) / median_ms if median_ms > 0 else math.nan,
        "naive_drift_percent": 100.0 * (max(blocks) - min(blocks)) / min(blocks),
        "samples": len(ours),
        "calls_per_sample": student.sets,
        "worst_error_over_allowed": student.margin,
    }


def _margin(problem: Problem, case: Case, results: list) -> float:
    return max(verify(problem, case, inputs, outputs) for inputs, outputs in results)


def verify(problem: Problem, case: Case, inputs: Inputs, outputs: dict[str, torch.Tensor]) -> float:
    """Return error / allowed of one timed call's outputs, worst over outputs and heads.

    The oracle is the blocked reference in fp32 (fp64 for the row sum) on the same device.
    """
    tensors = inputs.tensors
    if case.rows is not None:
        x, w = tensors["x"].double(), tensors["w"].double()
        truth = {"y": x @ w}
        scale = {"y": (x * w).norm(dim=1)}
        error = (outputs["y"].double() - truth["y"]).abs()
        unit = UNIT_ROUNDOFF[case.dtype]
        allowed = _FP32_UNITS * UNIT_ROUNDOFF["fp32"] * scale["y"] + 2 * unit * truth["y"].abs()
        return _finite_or_inf((error / allowed.clamp_min(1e-30)).max())
    rules = reference.rules(problem.id, case.kwargs)
    sinks = tensors.get("sink_logits")
    qkv = [tensors[n] for n in ("q", "k", "v")]
    exact = {"dtype": torch.float32}
    if problem.gradients:
        truth = reference.blocked_gradients(*qkv, inputs.dout, sink_logits=sinks, **rules, **exact)
        units = _BACKWARD_UNITS
    else:
        out, lse = reference.blocked_attention(*qkv, sink_logits=sinks, **rules, **exact)
        truth = {"out": out, "lse": lse}
        units = _FORWARD_UNITS
    unit = UNIT_ROUNDOFF[case.dtype]
    unit = _FP32_UNITS * unit if case.dtype == "fp32" else units * unit
    worst = 0.0
    for name, got in outputs.items():
        dims = tuple(range(2, truth[name].dim())) or (0,)
        error = torch.linalg.vector_norm(got.float() - truth[name], dim=dims)
        size = torch.linalg.vector_norm(truth[name], dim=dims)
        worst = max(worst, _finite_or_inf((error / (unit * size).clamp_min(1e-30)).max()))
    return worst


def _finite_or_inf(value: torch.Tensor) -> float:
    number = value.item()
    return number if math.isfinite(number) else math.inf
