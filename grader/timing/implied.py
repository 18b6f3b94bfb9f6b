"""Targets for a GPU model on which nobody measured the model answers: what its rates imply.

A speed-up is the time of naive PyTorch over that of the answer. Here neither is known, but naive's
has a lower bound and the answer's an estimate, so that their ratio is a target which the model
answer should reach:

    full = naive's bytes / bandwidth  /  (answer's time where it was measured, carried over)

*Naive* cannot be faster than the bytes that its operators read and write. Each operator of
`reference/naive.py` is a kernel of its own, and the score matrix, 2 bytes an element, or 4 after
the softmax, is larger than any cache. Bytes per score: Q K^T writes 2; the scale reads 2 and writes
2; so does the mask; softmax reads 2 and writes 4; lse reads 2 and 4; the weights are rounded, 4
and 2; the product with V reads 2. That makes 26, with a mask 30. A forward pass without lse and its
backward pass come to 24 + 32: dP 2, dV 2, dP in fp32 6, the gradient of softmax 10, of the mask 4,
of the scale 4, dQ and dK 2 each. The row sum reads x, writes the products and reads them: 12 bytes
an element. On an H200 naive takes 1.7 (p02) to 2.8 (p09) times this bound: by so much the target is
easier there than it could be.

*The answer* waits for dots, for the exponentials of the softmax, and for the bytes of inputs and
outputs. On the recorded GPU these three, one after the other, are 0.44 (p09) to 0.85 (p04) of its
time. On another GPU the same sum is taken with that GPU's rates, and the answer is given the same
share of it, less what an answer tuned elsewhere may lose: of the rate of dots and exponentials
`_KEPT_DOTS`, since a GPU with a small power limit does not hold its highest clock (an L4 of 72 W)
and tiles are smaller where there is less shared memory, and of the bandwidth `_KEPT_BYTES`. Both
are assumptions. No call is faster than its launches.

The result is never more than the targets in problem.toml, neither the default nor that of the
recorded GPU. Nothing of this was measured on the GPU in question; `grader calibrate` measures.
p01 is PyTorch on both sides and waits for launches: its targets are those of problem.toml.
"""

from __future__ import annotations

import functools
import json
import math

from grader.spec.cases import Case
from grader.spec.grade_record import Chip
from grader.spec.problem import ROOT, ManifestError, Problem
from grader.spec.problem_tables import Targets
from grader.spec.roofline import answer_counts, bandwidth, dot_rate, is_causal
from grader.timing.spacing import rounded_down, spaced

RECORD = ROOT / "docs" / "records" / "nvidia-h200-2026-11-22.json"
# The GPU of the record, as its driver reports it (2026-11-23).
RECORDED_NAME, RECORDED_CAPABILITY = "NVIDIA H200", (9, 0)
RECORDED_CHIP = Chip(
    multiprocessors=132, clock_mhz=1980, memory_clock_mhz=3201, memory_bus_bits=6016
)

_EXPS = 16  # per multiprocessor and clock: CUDA programming guide, throughput of instructions

_KEPT_DOTS, _KEPT_BYTES = 0.5, 0.8
# Seconds to launch a forward pass, with checks of its arguments, and both passes, with autograd.
_LAUNCH_S = {False: 100e-6, True: 500e-6}

_NAIVE_BYTES_PER_SCORE = {"noncausal": 26, "causal": 30, "gradients": 24 + 32}
_NAIVE_BYTES_PER_ELEMENT = 12


def implied(
    problem: Problem, case: Case, name: str, capability: tuple[int, int], chip: Chip
) -> Targets | None:
    """Return targets for `case` on a GPU model without any of its own; None where no rule holds.

    Args:
        problem: what is timed.
        case: the shape that was timed, one of the problem's for CUDA.
        name: of the GPU, as the driver has it.
        capability: its compute capability.
        chip: its rates.
    """
    if not problem.uses_triton or problem.id not in _record():  # PyTorch, or newer than the record
        return None
    recorded_case, recorded_s = _recorded(problem)
    recorded_gpu = RECORDED_NAME, RECORDED_CAPABILITY, RECORDED_CHIP
    theirs = answer_parts_s(problem, recorded_case, *recorded_gpu)
    ours = answer_parts_s(problem, case, name, capability, chip)
    carried_s = recorded_s / sum(theirs) * (ours[0] / _KEPT_DOTS + ours[1] / _KEPT_BYTES)
    answer_s = max(carried_s, _LAUNCH_S[bool(problem.gradients)])
    full = naive_bytes(problem, case) / bandwidth(chip) / answer_s
    recorded = problem.speed.devices.get(RECORDED_NAME, problem.speed)
    full = min(rounded_down(full), problem.speed.full, recorded.full)
    return spaced(problem.speed.floor, full)


def answer_parts_s(
    problem: Problem, case: Case, name: str, capability: tuple[int, int], chip: Chip
) -> tuple[float, float]:
    """Return the seconds that an answer needs at least: for dots and exponentials, and for bytes.

    At the full rates of the GPU; a real kernel overlaps some of it and wastes more.
    """
    counts = answer_counts(problem, case)
    dots = counts.operations / dot_rate(name, capability, chip)
    exps = counts.exponentials / (_EXPS * chip.multiprocessors * chip.clock_mhz * 1e6)
    return dots + exps, counts.bytes / bandwidth(chip)


def naive_bytes(problem: Problem, case: Case) -> int:
    """Return the bytes that naive PyTorch reads and writes at least, with 16-bit scores."""
    if case.rows is not None and case.cols is not None:
        return _NAIVE_BYTES_PER_ELEMENT * case.rows * case.cols
    kind = "gradients" if problem.gradients else "causal" if is_causal(problem) else "noncausal"
    scores = case.batch * case.num_q_heads * case.seqlen_q * case.seqlen_k
    return _NAIVE_BYTES_PER_SCORE[kind] * scores


def _recorded(problem: Problem) -> tuple[Case, float]:
    """Return the shape and the seconds of the model answer in the record."""
    shape, milliseconds = _record()[problem.id]
    for case in problem.benchmarks_on("cuda"):
        if str(case) == shape and milliseconds > 0 and math.isfinite(milliseconds):
            return case, milliseconds / 1000
    where = RECORD.relative_to(ROOT)
    raise ManifestError(
        f"{where}: {problem.id}: got the shape {shape!r}, expected one of problem.toml"
    )


@functools.cache
def _record() -> dict[str, tuple[str, float]]:
    try:
        problems = json.loads(RECORD.read_text(encoding="utf-8"))["problems"]
        found = {p["id"]: p["components"]["speed"]["figures"] for p in problems}
        return {id: (f["shape"], float(f["median_ms"])) for id, f in found.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        where = RECORD.relative_to(ROOT)
        raise ManifestError(
            f"{where}: got {type(error).__name__}: {error}, expected the grade record of the model"
            " answers, from which targets of other GPUs are implied; git checkout restores it"
        ) from None
