"""Finds where numbers become NaN, lose digits, or leave the right running state."""

from __future__ import annotations

import dataclasses

from grader.causes.decide import Kind
from grader.causes.rules.sighting import Sighting
from grader.checks.correctness import are
from grader.kernel.observers.trace import MINUS, NAN_MAKERS, Counter, Trace
from grader.spec.cases import Case
from grader.spec.trace_record import TraceRecord

_SUBTRACTION, _DIVISION = "arith.subf", "arith.divf"
_MAKING_NAN = {
    **dict.fromkeys((_SUBTRACTION, "arith.addf"), "inf - inf"),
    "arith.mulf": "0 * inf",
    _DIVISION: "0 / 0 or inf / inf",
}


def nan(trace: Trace) -> Sighting | None:
    """Find a subtraction of equal infinities, or a division, if it alone makes NaN."""
    if trace.count(Counter.NAN_KINDS) != 1:
        return None
    if _first_maker(trace) == _DIVISION and not trace.count(Counter.INFINITE_LINE):
        return Sighting("SUM-OUT-OF-RANGE")
    line, sign = trace.count(Counter.NAN_LINE), trace.count(Counter.NAN_SIGN)
    if _first_maker(trace) == _SUBTRACTION and sign:
        id = "NAN-FROM-INF-MINUS-INF" if sign == MINUS else "NAN-FROM-PLUS-INFINITY"
        return Sighting(id, line)
    return None


def _first_maker(trace: Trace) -> str:
    """Return the operation that made the first NaN, "" if none of those with a number did."""
    number = trace.count(Counter.NAN_OPERATION)
    return NAN_MAKERS[number - 1] if number else ""


def by_zero(trace: Trace) -> Sighting | None:
    """Find a division by a sum of 0, to which nothing was added, if no NaN was made before."""
    line = trace.count(Counter.ZERO_LINE)
    if not line or _first_maker(trace) not in ("", _DIVISION):
        return None
    return Sighting("SUM-OUT-OF-RANGE", line, variant="zero", part="divisor", symptom=True)


def first_nan(trace: Trace) -> tuple[int, str]:
    """Return the line of the first NaN and what makes it; 0 if several operations make one."""
    if trace.count(Counter.NAN_KINDS) != 1:
        return 0, ""
    return trace.count(Counter.NAN_LINE), _MAKING_NAN.get(_first_maker(trace), "")


@dataclasses.dataclass(frozen=True)
class Rounding:
    """A place that rounds to 16 bits, by its key in exact mode, and the outputs it makes wrong.

    The key is 0 if the place is unknown, and the numbers of an output themselves show the rounding.
    `name` is the student's name of the numbers. `op` is the operation that makes them, or "dot" or
    "store" if they are only multiplied by a dot, or stored. This rounding alone makes the error
    `margin` times as large as allowed.
    """

    key: int
    name: str
    dtype: str
    op: str
    margin: float = 0.0
    wrong: tuple[str, ...] = ()
    allowed: str = "what is allowed"

    @property
    def line(self) -> int:
        """The line that rounds."""
        return abs(self.key)

    @property
    def computed(self) -> bool:
        """Whether operations other than a dot compute with the rounded numbers."""
        return self.key > 0

    @property
    def what(self) -> str:
        """What is rounded to what."""
        name = {"dot": "an operand of a tl.dot", "store": "what is stored"}.get(self.op, self.name)
        unnamed = {"arith.mulf": "a product", "arith.addf": "a sum"}.get(self.op, "a number")
        return f"{name or unnamed} is rounded to {self.dtype}"

    @property
    def proof(self) -> str:
        """What was seen with this rounding alone, and without any."""
        if not self.line:  # the numbers themselves show it
            size = f"its error is up to {self.margin:,.0f} times {self.allowed}"
            return f"each element of {self.name} is a number of {self.dtype}; {size}"
        error = f"this one alone makes the error {self.margin:.2g} times {self.allowed}"
        return f"without any rounding {are(self.wrong)} right; {error}"


def of_state(record: TraceRecord, role: str, *, in_unit: bool, located: bool) -> Sighting | None:
    """Say after which tile a role of the running state is first wrong, and at which line.

    With `in_unit`, that a maximum is right, but in another unit than it is subtracted in. It is not
    `located` if a function that the line calls may be wrong instead.
    """
    part = record.parting
    if part is None or not part.lines:
        return None
    line = part.lines[0].line
    if in_unit:
        return Sighting("MAXIMUM-IN-ANOTHER-UNIT", line, located=located, what=part.text)
    return Sighting(
        "STATE-PARTS",
        line,
        located=located,
        variant=role if role in ("maximum", "sum", "accumulator") else "",
        names=" and ".join(part.names) + (" is" if len(part.names) == 1 else " are"),
        what=part.text,
        number=part.number,
        tiles=record.tiles,
    )


def in_no_tile(record: TraceRecord, keys: str) -> Sighting:
    """Say that the tiles of a program are right, and some keys are in none."""
    line = record.rounds[-1].line or 0
    return Sighting("KEYS-NEVER-VISITED", line, variant="in_no_tile", keys=keys)


def rounded(case: Case, found: Rounding) -> Sighting:
    """Name a rounding that alone makes a result wrong."""
    id = "ROUNDED-TO-16-BITS"
    if case.rows is not None:
        sums = {"arith.addf": "HALF-ACCUMULATED", "tt.reduce": "HALF-ACCUMULATED"}
        id = {"arith.mulf": "HALF-PRODUCTS", **sums}.get(found.op, id)
    elif found.op == "dot":
        id = "OPERANDS-ROUNDED"
    return Sighting(
        id,
        found.line,
        located=bool(found.line),
        variant="" if found.line else "output",
        kind=Kind.PROVED,
        what=found.what,
        proof=found.proof,
    )
