"""Where numbers became NaN, and where they lost digits."""

from __future__ import annotations

from grader.causes.rules.sighting import Sighting
from grader.kernel.observers.trace import Counter, Trace
from grader.spec.cases import Case

_SUBTRACTION, _MINUS, _PLUS = 1, 1, 2  # see grader.kernel.observers.nans


def nan(trace: Trace) -> Sighting | None:
    """A subtraction of equal infinities, where no other operation made a NaN."""
    if trace.count(Counter.NAN_KINDS) != 1 or trace.count(Counter.NAN_OPERATION) != _SUBTRACTION:
        return None
    line = trace.count(Counter.NAN_LINE)
    if trace.count(Counter.NAN_SIGN) == _MINUS:
        return Sighting(
            "NAN-FROM-INF-MINUS-INF",
            "-inf - (-inf) is NaN",
            "seen: the first NaN comes out of this line, where both numbers are -inf; the maximum"
            " of a row that has met no visible key, or has lost what it met, is -inf, and so is its"
            " lse",
            "subtract a finite number where the maximum is -inf",
            line,
        )
    if trace.count(Counter.NAN_SIGN) == _PLUS:
        return Sighting(
            "NAN-FROM-PLUS-INFINITY",
            "inf - inf is NaN",
            "seen: the first NaN comes out of this line, where both numbers are +inf",
            "a score, a maximum and a logit are finite or -inf: which of them has become +inf, by"
            " its sign, its units or its type?",
            line,
        )
    return None


def infinite(trace: Trace) -> Sighting | None:
    """Weights that are no exponential of a number below 0."""
    line = trace.count(Counter.INFINITE_LINE)
    if not line:
        return None
    return Sighting(
        "WEIGHTS-INFINITE",
        "some of the weights that this tl.dot multiplies are infinite",
        "seen: weights of pairs that exist are +inf here, and sums of them come out as NaN",
        "exp(score - maximum) and exp(score - lse) are at most 1: subtract the new maximum, that of"
        " this tile included, in the unit of the scores",
        line,
    )


def narrow(case: Case, trace: Trace) -> Sighting | None:
    line = trace.count(Counter.NARROW_LINE)
    if case.dtype != "fp32":
        return None
    rounded = trace.count(Counter.ROUNDED_LINE)
    if rounded and not line:
        return Sighting(
            "OPERANDS-ROUNDED",
            "an operand of a tl.dot is computed from numbers rounded to 16 bits",
            "seen: the inputs are fp32, and this line rounds numbers to 16 bits of which an operand"
            " in fp32 is made later",
            "a conversion back to fp32 restores nothing: convert to the dtype of the other operand,"
            " not to a fixed one",
            rounded,
            located=True,
        )
    if not line:
        return None
    return Sighting(
        "OPERANDS-ROUNDED",
        "the operands of this tl.dot are rounded to 16 bits",
        "seen: the inputs are fp32, and what is multiplied has 16 bits",
        "convert the weights to the dtype of v, not to a fixed one",
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
