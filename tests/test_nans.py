"""Which NaN is told of: the first of a query that exists, with the infinities that made it."""

import types

import numpy as np
import pytest
import torch

from grader.causes.rules.numbers import nan
from grader.kernel.machine import events
from grader.kernel.machine.ttir import Type
from grader.kernel.observers.combining import Nans
from grader.kernel.observers.knowledge import Rows
from grader.kernel.observers.trace import Counter

INF = float("inf")
QUERIES = Rows("q", torch.tensor([[4, 5, -1]]), torch.tensor([0]))  # the last lane is of no query
TILE = Type((3,), "f32")


class Seen:
    """What `Nans` makes of operations of one program, as a trace has it."""

    def __init__(self) -> None:
        self.counters = np.zeros(len(Counter), np.int64)
        self.line = 0
        self.nans = Nans(self)

    def note_line(self, counter):
        self.counters[counter] = self.line

    def look(self, name, made, *operands, line):
        self.line = line
        op = types.SimpleNamespace(name=name)
        tiles = [torch.tensor([numbers], dtype=torch.float32) for numbers in (*operands, made)]
        programs, kinds = torch.tensor([0]), (TILE,) * len(tiles)
        notes = (tuple(tiles[:-1]), (tiles[-1],), (), kinds, (), ())
        self.nans.look(events.Computed(op, programs, *notes), (QUERIES,))

    def subtract(self, one, other, line=7):
        with np.errstate(invalid="ignore"):
            made = np.subtract(np.float32(one), np.float32(other))
        self.look("arith.subf", made.tolist(), one, other, line=line)

    def count(self, counter):
        return int(self.counters[counter])


@pytest.mark.filterwarnings("ignore:invalid value")
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
    seen.look("arith.divf", [np.nan, 1, 1], [0, 1, 1], [0, 1, 1], line=8)
    assert nan(seen) is None
