"""Where numbers became NaN, and where they lost digits."""

from __future__ import annotations

from grader.causes.rules.sighting import Sighting
from grader.kernel.observers.trace import Counter, Trace
from grader.spec.cases import Case
from grader.spec.trace_record import TraceRecord

_SUBTRACTION, _DIVISION, _MINUS, _PLUS = 1, 4, 1, 2  # see grader.kernel.observers.combining


def nan(trace: Trace) -> Sighting | None:
    """A subtraction of equal infinities, or a division, where no other operation made a NaN."""
    operation = trace.count(Counter.NAN_OPERATION)
    if trace.count(Counter.NAN_KINDS) == 1 and operation == _DIVISION:
        return None if trace.count(Counter.INFINITE_LINE) else Sighting("SUM-OUT-OF-RANGE")
    if trace.count(Counter.NAN_KINDS) != 1 or operation != _SUBTRACTION:
        return None
    line = trace.count(Counter.NAN_LINE)
    if trace.count(Counter.NAN_SIGN) == _MINUS:
        return Sighting("NAN-FROM-INF-MINUS-INF", line)
    if trace.count(Counter.NAN_SIGN) == _PLUS:
        return Sighting("NAN-FROM-PLUS-INFINITY", line)
    return None


def infinite(trace: Trace) -> Sighting | None:
    """Weights that are no exponential of a number below 0."""
    line = trace.count(Counter.INFINITE_LINE)
    if not line:
        return None
    return Sighting("WEIGHTS-INFINITE", line)


def of_state(record: TraceRecord, role: str, *, in_unit: bool, located: bool) -> Sighting | None:
    """Say after which tile a role of the running state is first wrong, and at which line.

    Or, of a maximum, that it is right in another unit than it is subtracted in. It is not `located`
    there if what the line calls may be wrong as well.
    """
    part = record.parting
    if part is None or not part.lines:
        return None
    line = part.lines[0].line
    if in_unit:
        return Sighting("MAXIMUM-IN-ANOTHER-UNIT", line, located, figures={"what": part.text})
    return Sighting(
        "STATE-PARTS",
        line,
        located,
        variant=role if role in ("maximum", "sum", "accumulator") else "",
        figures={
            "names": " and ".join(part.names) + (" is" if len(part.names) == 1 else " are"),
            "what": part.text,
            "number": part.number,
            "tiles": record.tiles,
        },
    )


def narrow(case: Case, trace: Trace) -> Sighting | None:
    line = trace.count(Counter.NARROW_LINE)
    if case.dtype != "fp32":
        return None
    rounded = trace.count(Counter.ROUNDED_LINE)
    if rounded and not line:
        return Sighting("OPERANDS-ROUNDED", rounded, located=True, variant="in_between")
    if not line:
        return None
    return Sighting("OPERANDS-ROUNDED", line, located=True)


def half_sum(case: Case, trace: Trace) -> Sighting | None:
    line = trace.count(Counter.HALF_SUM_LINE)
    if not line:
        return None
    return Sighting("HALF-ACCUMULATED", line, located=True)
