"""Where numbers became NaN, and where they lost digits."""

from __future__ import annotations

from grader.cases import Case
from grader.running.trace import Counter, Trace
from grader.sightings.sighting import Sighting

_SUBTRACTION = 1  # see grader.running.nans


def nan(trace: Trace) -> Sighting | None:
    subtracted = trace.count(Counter.NAN_OPERATION) == _SUBTRACTION
    if trace.count(Counter.NAN_KINDS) != 1 or not subtracted:
        return None
    return Sighting(
        "NAN-FROM-INF-MINUS-INF",
        "-inf - (-inf) is NaN",
        "seen: the first NaN comes out of this line; the maximum of a row that has met no visible"
        " key, or has lost what it met, is -inf",
        "subtract a finite number where the maximum is -inf",
        trace.count(Counter.NAN_LINE),
    )


def narrow(case: Case, trace: Trace) -> Sighting | None:
    line = trace.count(Counter.NARROW_LINE)
    if case.dtype != "fp32" or not line:
        return None
    return Sighting(
        "OPERANDS-ROUNDED",
        "the operands of this tl.dot are rounded to 16 bits",
        "seen: the inputs are fp32, and what is multiplied has 16 bits",
        "convert the weights to the dtype of v, not to a fixed one: p.to(v.dtype)",
        line,
        located=True,
    )


def half_sum(case: Case, trace: Trace) -> Sighting | None:
    line = trace.count(Counter.HALF_SUM_LINE)
    if not line:
        return None
    return Sighting(
        "HALF-ACCUMULATED",
        "the sum is kept in 16 bits",
        "seen: this line adds up numbers of 16 bits",
        "accumulate in fp32 and round once, when storing",
        line,
        located=True,
    )
