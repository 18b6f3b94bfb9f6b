"""Applies the rules of all subjects to a traced call, in order of precedence."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from grader.causes.rules import numbers, others, pairs, placement, pointers, rows, sums
from grader.causes.rules.sighting import Result, Sighting
from grader.checks.counted_pairs import CountedPairs, counted_pairs
from grader.kernel.observers.trace import PRODUCTS, Counter, Trace
from grader.spec.cases import Case


def look(problem_id: str, case: Case, trace: Trace, result: Result) -> Sighting | None:
    """Return why the outputs of a traced call are wrong, None where that was not seen."""
    if case.rows is None:
        return next(filter(None, _of_attention(problem_id, case, trace, result)), None)
    return (
        rows.query_rows(case, trace)
        or sums.unwritten(trace, result)
        or pointers.strides(case, trace)
        or rows.elements_of_x(case, trace)
        or rows.elements_of_w(case, trace)
    )


def astray(case: Case, trace: Trace, names: tuple[str, ...]) -> Sighting | None:
    """Return why accesses of a call were outside of their tensors.

    The call was traced without these accesses: only what it did read and store is evidence.
    """
    if case.rows is not None:
        return pointers.strides(case, trace) or rows.query_rows(case, trace)
    result = Result(names, nan=False, close=False)
    return (
        placement.misplaced(case, trace, result)
        or pointers.strides(case, trace)
        or pointers.heads(case, trace, result, alone=True)
        or pointers.heads_apart(trace)
    )


def _of_attention(
    problem_id: str, case: Case, trace: Trace, result: Result
) -> Iterator[Sighting | None]:
    yield sums.at_line(trace, Counter.UNWRITTEN_LINE)
    yield placement.misplaced(case, trace, result)
    yield rows.query_rows(case, trace)
    yield sums.unwritten(trace, result)
    yield pointers.strides(case, trace)
    yield placement.overwritten(case, trace, result)
    yield placement.along_keys(trace, result)  # a transposed tile matches later rules as well
    yield sums.at_line(trace, Counter.ACROSS_LINE)
    yield sums.turned(trace)
    yield placement.apart(case, trace, result)
    yield pointers.heads(case, trace, result)
    yield pointers.astray(trace)
    yield pointers.heads_apart(trace)
    yield pairs.nothing_visited(trace)
    yield sums.columns_apart(trace)
    yield sums.scores_left_out(trace)
    # lse and out are made of the same scores.
    names = ["out" if name == "lse" else name for name in result.wrong]
    for name in dict.fromkeys(names):
        near = result.place if name == names[0] else None
        counted = counted_pairs(problem_id, case, trace, name, near) if name in PRODUCTS else None
        if counted is not None:
            yield rows.rows_of_gradient(counted, result)
            yield from (rule(counted) for rule in _OF_PAIRS)
    yield sums.wrong_product(trace, result)
    yield sums.mixed(trace)
    yield pointers.never_read(case, trace)
    yield sums.at_line(trace, Counter.CROSSED_LINE)
    yield others.no_product(trace, result)
    if result.close and not result.nan:
        return
    if "out" in result.wrong:
        yield sums.at_line(trace, Counter.OVER_QUERIES_LINE)
    if result.computed_nan:  # the maximum of a key may be -inf, and it is no row's
        yield numbers.nan(trace)
        yield sums.at_line(trace, Counter.INFINITE_LINE)


_OF_PAIRS: tuple[Callable[[CountedPairs], Sighting | None], ...] = (
    pointers.pointers,
    others.other_options,
    pairs.mismatched,
    pairs.raised,
    pairs.padding,
    pairs.inverted,
    pairs.positions_in_the_tile,
    pairs.by_tile_number,
    pairs.twice,
    pairs.not_aligned,
    pairs.wrong_pairs,
    pairs.masked_but_shown,
    sums.of_product,
    others.other_window,
    others.other_pairs,
)
