"""Verifies what timed and measured calls computed, and makes figures of what was measured."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import torch

import reference
from grader.base.dtypes import TORCH_DTYPES, UNIT_ROUNDOFF
from grader.spec.cases import Case
from grader.spec.grade_record import MemoryFigures, SpeedFigures
from grader.spec.inputs import Inputs
from grader.spec.problem import Problem
from grader.timing import share
from grader.timing.drawn import drawn_inputs
from grader.timing.speed import Block
from grader.timing.stopwatch import CallOutputs

# Relative error per head, in unit roundoffs: at these lengths the rounding of P, of the output
# and, backward, of delta and dS averages out; what a submission may have beyond that is small.
_FORWARD_UNITS, _BACKWARD_UNITS = 2.0, 3.0
# fp32, and the fp32 oracle, add up thousands of terms: sqrt(4096) = 64 roundoffs.
_FP32_UNITS = 64.0
# Two baselines around a block that differ by more say that the machine was busy: a tenth is a
# fifteenth of p01's points for speed.
MAX_DRIFT_PERCENT = 10.0
# Memory that is the libraries' and not the submission's. CUDA: kernels are loaded, the driver sets
# up local memory for a kernel that spills (512 bytes for each of 132 x 2048 threads are 132 MiB),
# torch's caching allocator rounds up to 20 MiB. On the CPU malloc keeps and rounds, and the first
# call loads code.
SLACK_BYTES = {"cuda": 192 * 2**20, "cpu": 32 * 2**20}


def margin(problem: Problem, case: Case, device: str, go: Sequence[CallOutputs]) -> float:
    """Return error / allowed of the worst output of a go, in the share drawn of its calls."""
    inputs = [
        share.of(case, drawn_inputs(problem, case, call.seed, device).all, call.drawn)
        for call in go
    ]
    outputs = [call.outputs for call in go]
    worst = 0.0
    for given, got in zip(share.joined(case, inputs), share.joined(case, outputs), strict=True):
        dout = given.pop("dout", None) if problem.gradients else None
        worst = max(worst, verify(problem, case, Inputs(given, dout), got))
    return worst


def verify(problem: Problem, case: Case, inputs: Inputs, outputs: dict[str, torch.Tensor]) -> float:
    """Return error / allowed of one call's outputs, worst over outputs and heads.

    The oracle is the blocked reference in fp32 (that of a problem on rows in fp64) on the same
    device.
    """
    tensors = inputs.tensors
    if case.rows is not None:
        return _worst_row(problem, case, inputs, outputs)
    rules = reference.rules(problem.id, case.kwargs)
    sinks = tensors.get("sink_logits")
    qkv = [tensors[n] for n in ("q", "k", "v")]
    exact = {"dtype": torch.float32}
    if problem.gradients:
        found = reference.blocked_gradients(*qkv, inputs.dout, sink_logits=sinks, **rules, **exact)
        units = _BACKWARD_UNITS
    else:
        out, lse = reference.blocked_attention(*qkv, sink_logits=sinks, **rules, **exact)
        found = {"out": out, "lse": lse}
        units = _FORWARD_UNITS
    if case.dtype == "fp32":
        units = _FP32_UNITS
    unit = units * UNIT_ROUNDOFF[case.dtype]
    worst = 0.0
    for name, got in outputs.items():
        dims = tuple(range(2, found[name].dim())) or (0,)
        error = torch.linalg.vector_norm(got.float() - found[name], dim=dims)
        size = torch.linalg.vector_norm(found[name], dim=dims)
        worst = max(worst, _finite_or_inf((error / (unit * size).clamp_min(1e-30)).max()))
    return worst


def _worst_row(
    problem: Problem, case: Case, inputs: Inputs, outputs: dict[str, torch.Tensor]
) -> float:
    """Return error / allowed of the worst row: fp32 in the sum, and its rounding to the dtype."""
    assert case.cols is not None
    tensors = inputs.tensors
    truth = getattr(reference, problem.oracle)(**{n: t.double() for n, t in tensors.items()})
    (name,) = problem.returns
    # Terms of either sign: rounding errors, like the sum itself, are those of a random walk.
    terms = reference.magnitudes(problem.id, tensors)[name] / math.sqrt(case.cols)
    allowed = _FP32_UNITS * UNIT_ROUNDOFF["fp32"] * torch.maximum(terms, truth.abs())
    allowed += 2 * UNIT_ROUNDOFF[case.dtype] * truth.abs()
    error = (outputs[name].double() - truth).abs()
    return _finite_or_inf((error / allowed.clamp_min(1e-30)).max())


def _finite_or_inf(value: torch.Tensor) -> float:
    number = value.item()
    return number if math.isfinite(number) else math.inf


def speed_figures(
    student: list[Block], naive: list[Block], overheads: dict[int, float], *, clock: str
) -> SpeedFigures:
    """Return the speed-up over the baseline blocks around each block of the submission.

    `naive` has one block more than `student`: before, between and after; or two, before and after
    all of them. Blocks whose two baselines differ by more than `MAX_DRIFT_PERCENT` do not count; if
    none is left the speed-up is None.
    `overheads` has the seconds of a go that computes nothing, by its number of sets.
    """

    def median_ms(block: Block) -> float:
        return statistics.median(block.per_call_ms(overheads[block.sets]))

    naive_ms = [median_ms(block) for block in naive]
    around = list(itertools.pairwise(naive_ms))
    of_blocks = around if len(around) > 1 else around * len(student)
    brackets = []
    for block, (before, after) in zip(student, of_blocks, strict=True):
        drift = _drift_percent(before, after)
        ours = median_ms(block)
        if drift <= MAX_DRIFT_PERCENT and ours > 0:
            brackets.append(((before + after) / 2 / ours, ours, (before + after) / 2))
    samples = [ms for block in student for ms in block.per_call_ms(overheads[block.sets])]
    low, middle, high = statistics.quantiles(samples, n=4)
    none = (None, None, None)
    ratio, ours, baseline = sorted(brackets)[len(brackets) // 2] if brackets else none
    return SpeedFigures(
        speedup=ratio,
        median_ms=ours,
        naive_ms=baseline,
        spread_percent=100.0 * (high - low) / middle if middle > 0 else None,
        naive_drift_percent=min(_drift_percent(*both) for both in around),
        samples=len(samples),
        calls_per_sample=student[0].sets,
        worst_error_over_allowed=max(block.margin for block in student),
        clock=clock,
    )


def _drift_percent(one: float, other: float) -> float:
    low, high = sorted((one, other))
    return 100.0 * (high - low) / low if low > 0 else math.inf


def memory_figures(
    problem: Problem,
    cases: tuple[Case, Case],
    extra: list[int],
    naive_extra: list[int],
    device: str,
) -> MemoryFigures:
    """Return the figures of a memory component."""
    assert problem.memory is not None
    io = [_io_bytes(problem, case) for case in cases]
    factor = problem.memory.linear_factor
    tile = cases[1].kwargs.get("tile_q"), cases[1].kwargs.get("tile_k")
    return MemoryFigures(
        lengths=tuple(case.seqlen_k for case in cases),
        extra_bytes=tuple(extra),
        naive_extra_bytes=tuple(naive_extra),
        io_bytes=tuple(io),
        allowed_bytes=tuple(int(factor * n) + SLACK_BYTES[device] for n in io),
        shape=str(cases[1]),
        tile=None if None in tile else tile,
    )


def _io_bytes(problem: Problem, case: Case) -> int:
    q = case.batch * case.num_q_heads * case.seqlen_q * case.head_dim
    kv = case.batch * case.num_kv_heads * case.seqlen_k * case.head_dim
    item = TORCH_DTYPES[case.dtype].itemsize
    lse = 4 * case.batch * case.num_q_heads * case.seqlen_q
    total = (2 * q + 2 * kv) * item + lse
    if problem.gradients:
        total += (2 * q + 2 * kv) * item
    return total
