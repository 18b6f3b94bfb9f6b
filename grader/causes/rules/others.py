"""Finds wrong pairs that no rule of the mask explains, and gradients without a product.

Also arguments that are exchanged, and options so large that adding a position overflows 32 bits.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from grader.causes.decide import Kind
from grader.causes.rules.left_out import odd_start
from grader.causes.rules.sighting import Result, Sighting
from grader.checks.correctness import named_ranges
from grader.checks.counted_pairs import CountedPairs
from grader.kernel.observers.trace import OTHER, PRODUCTS, SCORES, Counter, Trace
from grader.source.functions import Exchanged
from grader.spec.cases import Case

_LARGEST = 2**31 - 1
_ROWS = {"out": "v", "dv": "dout", "dk": "q", "dq": "k"}


def other_pairs(counted: CountedPairs) -> Sighting | None:
    """Name the pairs of a row and those that are due, where no other rule explains them."""
    missing, extra = counted.missing, counted.extra
    wrong = missing | extra
    # Where every weight is 0, numbers made it so and no mask: a scale of 0, or lse.
    if not wrong.any() or counted.twice.any() or not counted.taken.any() or counted.drowned.any():
        return None
    if not extra.any() and counted.product != "out" and bool((missing | ~counted.due).all()):
        return None
    axis = 2 if counted.over_queries else 3
    both = missing.any(axis, keepdims=True) & extra.any(axis, keepdims=True)
    pairs = np.broadcast_to(both, wrong.shape) & wrong
    batch, head, query, key = counted.example(pairs if pairs.any() else wrong)
    if counted.over_queries:
        row, due = f"key {key}", named_ranges("query", counted.due[:, key])
        took = counted.taken[batch, head, :, key]
        of_row = named_ranges("query", took) if took.any() else "no query"
        verb = "is seen by"
    else:
        row, due = f"query {query}", named_ranges("key", counted.due[query])
        took = counted.taken[batch, head, query]
        of_row = named_ranges("key", took) if took.any() else "no key"
        verb = "sees"
    what = "queries" if counted.over_queries else "keys"
    masked = bool(wrong.any() and (counted.masks[wrong] > 0).all())
    return Sighting(
        "OTHER-PAIRS",
        counted.mask_of(wrong) if masked else counted.scores_line,
        located=masked,
        product=counted.product,
        what=what,
        row=row,
        took=of_row,
        head=head,
        verb=verb,
        due=due,
        tiles=odd_start(counted, pairs if pairs.any() else wrong),
    )


def other_options(counted: CountedPairs) -> Sighting | None:
    """Find options with other values in the kernels than in the call, if the pairs follow these.

    A value that shows the same pairs as that of the call, such as one limited to seqlen, is right.
    """
    due = {"window_size": counted.window, "num_sink_tokens": counted.sinks}
    passed, seen = due | counted.passed, counted.taken
    if "window_size" not in counted.case.kwargs or passed == due or counted.twice.any():
        return None
    others = [n for n in due if (seen != _shown(counted, **passed | {n: due[n]})).any()]
    if not others or (seen != _shown(counted, **passed)).any():
        return None
    numbers = [f"{n} is {passed[n]} in the kernel, and {due[n]} in the call" for n in others]
    return Sighting(
        "OTHER-WINDOW",
        variant="of_the_launch",
        part="option",
        pointer=others[0] if len(others) == 1 else "",
        names=" and ".join(others),
        numbers="; ".join(numbers),
    )


def _shown(counted: CountedPairs, window_size: int, num_sink_tokens: int) -> np.ndarray:
    """Return the pairs, (query, key), that a window and a number of sinks show."""
    query, key = counted.places
    shown: np.ndarray = (key <= query) & ((query - key < window_size) | (key < num_sink_tokens))
    return shown


def other_window(counted: CountedPairs) -> Sighting | None:
    """Find another window and number of sinks that explain the pairs of all rows."""
    if "window_size" not in counted.case.kwargs or (counted.taken != counted.taken[:1, :1]).any():
        return None
    taken = counted.taken[0, 0]
    hidden = np.flatnonzero(~taken[-1])  # of the last query: between its sinks and its window
    if not hidden.size or not taken.any():
        return None
    window, sinks = len(taken) - 1 - int(hidden[-1]), int(hidden[0])
    if (taken != _shown(counted, window, sinks)).any():
        return None
    due, due_sinks = counted.window, counted.sinks
    if window == min(due, len(taken)):
        return None  # the number of sinks alone may depend on tiles
    of_sinks = [f", and of {n} sinks" if sinks or due_sinks else "" for n in (sinks, due_sinks)]
    return Sighting(
        "OTHER-WINDOW",
        product=counted.product,
        window=window,
        sinks=of_sinks[0],
        due=due,
        due_sinks=of_sinks[1],
    )


def no_product(trace: Trace, result: Result) -> Sighting | None:
    """Find a wrong output for which nothing was multiplied."""
    products = {dot["product"] for dot in trace.rows("dots")}
    if OTHER in products or SCORES not in products or trace.count(Counter.UNKNOWN_DOTS):
        return None
    if result.nan and not result.computed_nan:  # not stored, so that its product is not compiled
        return None
    for name in result.wrong:
        if name in PRODUCTS and PRODUCTS.index(name) not in products:
            line = trace.count(Counter.IDLE_LOOP_LINE)
            return Sighting("NO-PRODUCT", line, name=name, rows=_ROWS[name])
    return None


def exchanged(pair: Exchanged) -> Sighting:
    """Say which two arguments a call passes in each other's places."""
    return Sighting(
        "ARGUMENTS-EXCHANGED",
        pair.line,
        located=True,
        kind=Kind.PROVED,
        one=pair.one,
        other=pair.other,
        function=pair.function,
    )


def limited(case: Case) -> Case | None:
    """Return the case with smaller options that mean the same; None where all are small.

    No query sees more keys of a window, or more sinks, than the sequence holds.
    """
    enough = 2 * max(case.seqlen_q, case.seqlen_k)
    options = tuple(
        (name, enough if isinstance(n, int) and n > _LARGEST - enough else n)
        for name, n in case.options
    )
    return dataclasses.replace(case, options=options) if options != case.options else None


def overflow(case: Case, right: Case) -> Sighting:
    """Say that a case is wrong, and right with smaller options that mean the same."""
    large = {name: n for name, n in case.options if n != right.kwargs[name]}
    shown = " and ".join(f"{name} {n}" for name, n in large.items())
    smaller = ", ".join(f"{name}={right.kwargs[name]}" for name in large)
    return Sighting("OPTION-OVERFLOWS", kind=Kind.PROVED, shown=shown, smaller=smaller)
