"""Asks the rules of all subjects, in order, what they saw in a traced call."""

from __future__ import annotations

from collections.abc import Callable

from grader.cases import Case
from grader.checks.walk import Walk, walk_of
from grader.running.trace import PRODUCTS, Trace
from grader.sightings import numbers, pairs, pointers, rows, sums
from grader.sightings.sighting import Result, Sighting


def look(problem_id: str, case: Case, trace: Trace, result: Result) -> Sighting | None:
    """Return why the outputs of a traced call are wrong, None where that was not seen."""
    rules = _OF_ROW_SUMS if case.rows is not None else _BEFORE
    for rule in rules:
        found = rule(case, trace)
        if found is not None:
            return found
    if case.rows is not None:
        return numbers.half_sum(case, trace)
    # lse is made of the scores that out is made of.
    for name in dict.fromkeys("out" if name == "lse" else name for name in result.wrong):
        walk = walk_of(problem_id, case, trace, name) if name in PRODUCTS else None
        if walk is None:
            continue
        for judge in _RULES:
            found = judge(case, walk)
            if found is not None:
                return found
    for rule in (sums.mixed, sums.not_transposed):
        found = rule(case, trace)
        if found is not None:
            return found
    if result.nan:
        return numbers.nan(trace)
    if result.close:
        return numbers.narrow(case, trace)
    return sums.over_queries(trace) if "out" in result.wrong else None


_OF_ROW_SUMS = (rows.query_rows, pointers.strides, rows.elements_of_x, rows.elements_of_w)
_BEFORE: tuple[Callable[[Case, Trace], Sighting | None], ...] = (
    rows.query_rows,
    pointers.strides,
    pointers.heads,
    pointers.astray,
    pointers.heads_apart,
    pairs.nothing_visited,
)
_RULES: tuple[Callable[[Case, Walk], Sighting | None], ...] = (
    pointers.pointers,
    pairs.mismatched,
    pairs.padding,
    pairs.inverted,
    pairs.positions_in_the_tile,
    pairs.twice,
    pairs.wrong_pairs,
    pairs.masked_but_shown,
    sums.discarded,
)
