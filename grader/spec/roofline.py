"""The roofline of a GPU: what a call has to compute and move, and the rates of the chip.

No kernel that does this work is faster. Rates are those of the highest clocks that the driver
reports.
"""

from __future__ import annotations

import dataclasses

from grader.base.dot_rates import DOTS
from grader.spec.cases import Case
from grader.spec.grade_record import Chip, Environment
from grader.spec.problem import Problem

_DOTS_UNKNOWN = 512  # the least of any chip with tensor cores that Triton uses
_GEFORCE = "GeForce"  # from 8.6 on these sum in fp32 at half the rate
# Operations of 16-bit dots per multiprocessor and clock: NVIDIA's Turing architecture paper. Triton
# does not use these tensor cores, but the library's kernels do.
_TURING = {(7, 5): 1024}
# Per visible pair: operations per element of head_dim (2 products, and 7 more in two backward
# kernels, with 2 operations each) and exponentials (each kernel computes the weights anew).
_DOTS_PER_PAIR, _EXPS_PER_PAIR = {False: 4, True: 18}, {False: 1, True: 3}
# What no design can do without: two products forward, and those of dP, dV, dQ and dK backward.
_LEAST_DOTS_PER_PAIR = {False: 4, True: 12}
# How often tensors as large as q, and as k, are read or written, one kernel after the other.
_PASSES_Q, _PASSES_K = {False: 2, True: 9}, {False: 2, True: 8}


def bandwidth(chip: Chip) -> float:
    """Return bytes per second of device memory, which moves data twice per clock."""
    return 2 * chip.memory_clock_mhz * 1e6 * chip.memory_bus_bits / 8


def dot_rate(name: str, capability: tuple[int, int], chip: Chip) -> float:
    """Return operations per second of 16-bit dots that Triton can reach at the highest clock."""
    per_clock = DOTS.get(capability, _DOTS_UNKNOWN)
    if _GEFORCE in name and capability >= (8, 6):
        per_clock = min(per_clock, _DOTS_UNKNOWN)
    return per_clock * chip.multiprocessors * chip.clock_mhz * 1e6


def rates(environment: Environment) -> tuple[float, float] | None:
    """Return 16-bit dot operations and bytes per second; None where they are not known."""
    chip, capability = environment.chip, environment.capability
    if chip is None or capability is None or capability not in DOTS:
        return None
    dots = dot_rate(environment.device_name, capability, chip)
    if capability in _TURING:
        dots = _TURING[capability] * chip.multiprocessors * chip.clock_mhz * 1e6
    return dots, bandwidth(chip)


@dataclasses.dataclass(frozen=True)
class Roof:
    """Seconds that dots and bytes take at full rates; `rate` and `bandwidth` are per second."""

    operations: int
    rate: float
    bytes: int
    bandwidth: float

    @property
    def ms(self) -> float:
        """The larger of the two times."""
        return 1000.0 * max(self.operations / self.rate, self.bytes / self.bandwidth)


def roof(problem: Problem, case: Case, environment: Environment) -> Roof | None:
    """Return the roof; None where the rates of this GPU are not known."""
    known = rates(environment)
    if known is None:
        return None
    counts = answer_counts(problem, case)
    return Roof(counts.operations, known[0], counts.bytes, known[1])


def least(problem: Problem, case: Case, environment: Environment) -> Roof | None:
    """Return the roof of any right answer, whatever its design; None where `roof` returns None.

    Each input is read once, and each product of two matrices is made once, at the rate of the
    fastest 16-bit dots, those with 16-bit sums among them.
    """
    chip, capability = environment.chip, environment.capability
    if chip is None or capability is None or capability not in DOTS:
        return None
    per_clock = max(DOTS[capability], _TURING.get(capability, 0))
    both, itemsize = bool(problem.gradients), 4 if case.dtype == "fp32" else 2
    if case.rows is not None and case.cols is not None:
        operations, elements = 0, case.rows * case.cols
    else:
        pairs = case.batch * case.num_q_heads * visible_pairs(problem, case)
        operations = _LEAST_DOTS_PER_PAIR[both] * case.head_dim * pairs
        rows = (1 + both) * case.num_q_heads * case.seqlen_q + 2 * case.num_kv_heads * case.seqlen_k
        elements = case.batch * rows * case.head_dim
    rate = per_clock * chip.multiprocessors * chip.clock_mhz * 1e6
    return Roof(operations, rate, itemsize * elements, bandwidth(chip))


@dataclasses.dataclass(frozen=True)
class Counts:
    """What an answer computes and moves: operations of dots, two per multiply-add, and bytes."""

    operations: int
    exponentials: int
    bytes: int


def answer_counts(problem: Problem, case: Case) -> Counts:
    """Return what an answer has to do for a call, with 16-bit inputs (the row sum: fp32)."""
    if case.rows is not None and case.cols is not None:
        return Counts(0, 0, 4 * case.rows * case.cols)
    both = bool(problem.gradients)
    pairs = case.batch * case.num_q_heads * visible_pairs(problem, case)
    of_q = _PASSES_Q[both] * case.num_q_heads * case.seqlen_q
    of_k = _PASSES_K[both] * case.num_kv_heads * case.seqlen_k
    return Counts(
        operations=_DOTS_PER_PAIR[both] * case.head_dim * pairs,
        exponentials=_EXPS_PER_PAIR[both] * pairs,
        bytes=2 * case.batch * (of_q + of_k) * case.head_dim,
    )


def visible_pairs(problem: Problem, case: Case) -> int:
    """Return how many keys the queries of one head see together."""
    if not is_causal(problem):
        return case.seqlen_q * case.seqlen_k
    window = case.kwargs.get("window_size") or case.seqlen_k
    sinks = case.kwargs.get("num_sink_tokens") or 0
    rows = range(1, case.seqlen_q + 1)
    return sum(min(row, window) + min(sinks, max(row - window, 0)) for row in rows)


def is_causal(problem: Problem) -> bool:
    """Whether a query sees no key after it."""
    return problem.oracle != "noncausal_attention"
