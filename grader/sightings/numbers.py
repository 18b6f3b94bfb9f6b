"""Where numbers became NaN, and where they lost digits."""

from __future__ import annotations

from grader.cases import Case
from grader.running.trace import Counter, Trace
from grader.sightings.sighting import Sighting

_SUBTRACT, _MULTIPLY, _DIVIDE = 1, 3, 4  # see grader.running.nans
# By operation: what is NaN, what makes it so in an online softmax, and what to do.
_OF_NAN = {
    _SUBTRACT: (
        "NAN-FROM-INF-MINUS-INF",
        "-inf - (-inf) is NaN",
        "the maximum of a row without a visible key so far is -inf",
        "subtract a finite number where the maximum is -inf",
    ),
    _MULTIPLY: (
        "NAN-FROM-ZERO-TIMES-INF",
        "0 * inf is NaN",
        "exp(old maximum - new maximum) overflows where the new maximum is far below the old one",
        "a running maximum never falls: new_max = maximum(running_max, maximum of the tile)",
    ),
    _DIVIDE: (
        "NAN-FROM-DIVISION",
        "0 / 0 or inf / inf is NaN",
        "the sum of a row's weights is 0 where no key was visible, or where what is subtracted from"
        " the scores is far above all of them, and infinite where it is far below",
        "the maximum that is subtracted is that of the same row's visible scores, in the same units"
        " (times scale, times log2(e))",
    ),
}


def nan(trace: Trace) -> Sighting | None:
    """Return by which operation NaN came out of numbers, where it is one alone."""
    told = _OF_NAN.get(trace.count(Counter.NAN_OPERATION))
    if trace.count(Counter.NAN_KINDS) != 1 or told is None:
        return None
    id, title, reason, help = told
    return Sighting(
        id,
        title,
        f"seen: the first NaN comes out of this line; {reason}",
        help,
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
