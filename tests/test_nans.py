"""Which NaN is told of: the first of a query that exists, with the infinities that made it."""

from __future__ import annotations

import types

import numpy as np
import pytest

from grader.causes.rules.numbers import nan
from grader.kernel.observers.lineage import Rows
from grader.kernel.observers.nans import Nans
from grader.kernel.observers.trace import Counter

INF = np.inf
QUERIES = Rows("q", np.array([4, 5, -1]))  # the last lane is of no query


def handle(numbers, tags=(QUERIES,)):
    return types.SimpleNamespace(data=np.array(numbers, np.float32), tags=tags)


class Seen:
    """What `Nans` makes of operations, as a trace has it."""

    def __init__(self) -> None:
        self.counters = np.zeros(len(Counter), np.int64)
        self.nans = Nans(self.counters)

    def subtract(self, one, other, line=7):
        with np.errstate(invalid="ignore"):
            made = np.array(one, np.float32) - np.array(other, np.float32)
        self.nans.look(handle(made), [handle(one), handle(other)], np.subtract, lambda: line)

    def count(self, counter):
        return int(self.counters[counter])


@pytest.mark.parametrize(
    ("one", "other", "id"),
    [
        ([-INF, 1, 1], [-INF, 1, 1], "NAN-FROM-INF-MINUS-INF"),
        ([INF, 1, 1], [INF, 1, 1], "NAN-FROM-PLUS-INFINITY"),
        ([INF, -INF, 1], [INF, -INF, 1], None),
        ([INF, 1, 1], [-INF, 1, 1], None),  # +inf, and no NaN
    ],
)
def test_the_infinities_of_a_subtraction_are_told_apart(one, other, id):
    seen = Seen()
    seen.subtract(one, other)
    found = nan(seen)
    assert (found and found.id) == id


def test_lanes_of_no_query_are_not_looked_at():
    seen = Seen()
    seen.subtract([1, 1, INF], [1, 1, INF])
    assert nan(seen) is None and not seen.count(Counter.NAN_KINDS)
    # Nor does a NaN that came up there keep one of a query from being the first.
    seen.subtract([-INF, 1, np.nan], [-INF, 1, 1], line=9)
    found = nan(seen)
    assert found.id == "NAN-FROM-INF-MINUS-INF" and found.line == 9


def test_a_nan_of_two_kinds_of_operation_is_not_told():
    seen = Seen()
    seen.subtract([-INF, 1, 1], [-INF, 1, 1])
    zero = handle([0, 1, 1])
    seen.nans.look(handle([np.nan, 1, 1]), [zero, zero], np.divide, lambda: 8)
    assert nan(seen) is None
