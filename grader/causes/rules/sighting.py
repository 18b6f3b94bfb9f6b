"""Defines a sighting, and the words in which sightings describe accesses and keys."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from grader.causes.decide import Kind
from grader.checks.correctness import named_ranges
from grader.checks.counted_pairs import CountedPairs, accesses
from grader.kernel.observers.trace import OPERANDS, Counter, Trace
from grader.source.feeding import Spot
from grader.spec.causes import Text, entry_of

_SIDES = {"branch+after": "branch+before", "branch+before": "branch+after"}
# Too few or too many programs: one mistake, which looks different at different sizes.
_OF_GRID = {"EMPTY-GRID", "HEADS-NEVER-COMPUTED", "ROWS-NEVER-STORED", "LAST-ROWS-LEFT-OUT"}

# The family of pairs that one loop masks and that no loop counts: either of two may be at fault.
EITHER_LOOP = "either loop"


class Sighting:
    """A mistake that was seen: its `id` without the problem's prefix, and where it shows.

    Its text is in grader/spec/causes, in the form `variant`, with `figures` in its fields.

    `line` is where it shows. Its step is known only if the mistake lies there too (`located`): a
    loop shows wrong limits that were computed elsewhere. `kind` is what it rests on. A `symptom` is
    less sure than any other sighting, as many mistakes lead to it. `pointer` names a pointer, or
    an option, that no figure names. `through` are lines of the kernel in which it shows, where
    several kernels share the line. `part` is what may be wrong in the line, if that is not what the
    entry of the id says. `either`: another loop than the one that is named may be at fault.
    """

    def __init__(
        self,
        id: str,
        line: int = 0,
        *,
        located: bool = False,
        kind: Kind = Kind.SEEN,
        symptom: bool = False,
        variant: str = "",
        pointer: str = "",
        part: str | None = None,
        through: tuple[int, ...] = (),
        either: bool = False,
        **figures: object,
    ) -> None:
        self.id, self.line, self.located, self.variant = id, line, located, variant
        self.kind, self.symptom = kind, symptom
        self.pointer, self.through, self.figures = pointer, through, figures
        self._either = either
        self._part = entry_of(id).part if part is None else part

    @functools.cached_property
    def text(self) -> Text:
        """What a report says of it."""
        return entry_of(self.id).said(self.figures, "seen", self.variant)

    @functools.cached_property
    def spot(self) -> Spot:
        """Where it shows; its entry in grader/spec/causes says in which part of the line."""
        part = self._part if not self.located or self._part == "mask" else ""
        if self.variant.startswith("of_queries"):  # a loop over queries ends at the other side
            part = _SIDES.get(part, part)
        named = self.pointer or self.figures.get("operand") or self.figures.get("name") or ""
        return Spot(self.line, self.located, part, str(named), self.through)

    @property
    def family(self) -> str:
        """The key that sightings of one mistake share."""
        if self._either:
            return EITHER_LOOP
        return "grid" if self.id in _OF_GRID else self.id


# A sighting that rests on the numbers of a result alone.
by_numbers = functools.partial(Sighting, kind=Kind.NUMBERS)


@dataclasses.dataclass(frozen=True)
class Result:
    """Names of the wrong outputs of a call, whether one holds NaN, and whether all are close.

    `computed_nan`: one holds NaN that was computed, and did not lie in memory before the call;
    `left_over`: one holds NaN of other memory that nobody wrote, or what was made from that.
    `close`: rounding can explain the errors, which are a few hundredths of the values. `place` is
    batch, head and row of the worst element of the first output, None if it has no such axes.
    """

    wrong: tuple[str, ...]
    nan: bool
    close: bool
    place: tuple[int, int, int] | None = None
    computed_nan: bool = False
    left_over: bool = False


def repeated(trace: Trace, *names: str) -> list[dict[str, Any]]:
    """Return the accesses of the operands `names` that programs make more than once each."""
    rows = [row for row in accesses(trace) if row["count"] > row["programs"]]
    return [row for row in rows if row["name"] in names]


def line_of(trace: Trace, operand: str) -> int:
    """Return the first line that reads an operand; 0 if several kernels read it, or none."""
    rows = [row for row in accesses(trace) if row["name"] == operand]
    return rows[0]["line"] if len({row["kernel"] for row in rows}) == 1 else 0


def operand_at(trace: Trace, line: Counter, number: Counter) -> tuple[int, str]:
    """Return the line and the operand that two counters have; (0, "") where nothing was seen."""
    at, operand = trace.count(line), trace.count(number)
    return (at, OPERANDS[operand]) if at and 0 <= operand < len(OPERANDS) else (0, "")


def visible_to(counted: CountedPairs) -> str:
    """Name what a row of the result should count: keys of a query, or queries of a key."""
    return "queries that see the key" if counted.over_queries else "visible keys"


def one_row(counted: CountedPairs, pairs: np.ndarray, verb: str) -> str:
    """Describe one row of the result: "query 3 of head 0 counted keys 4-7", or a key's queries."""
    batch, head, query, key = counted.example(pairs)
    if counted.over_queries:
        queries = named_ranges("query", pairs[batch, head, :, key])
        return f"key {key} {verb} {queries} of query head {head}"
    return f"query {query} of head {head} {verb} {named_ranges('key', pairs[batch, head, query])}"


def one_example(counted: CountedPairs) -> str:
    """Describe one row with missing pairs or, where none are missing, one with extra pairs."""
    if counted.missing.any():
        return one_row(counted, counted.missing, "never counted")
    return one_row(counted, counted.extra, "counted")
