"""Which tiles were visited for nothing, by pairs that are given here; test_work.py has kernels."""

from types import SimpleNamespace

import numpy as np
import pytest

from grader.checks.waste import wasted_tiles

CAUSAL = np.tril(np.ones((64, 64), bool))
SINKS = CAUSAL & (np.triu(np.ones((64, 64), bool), -16) | (np.arange(64) < 16))


def product(name, due, visited, *loops):
    """One product of two heads, in tiles of 16, with dots in these loops; 0 is no loop."""
    number = ("out", "dv", "dk", "dq").index(name)
    dots = [{"product": number, "loop": line} for line in loops] + [{"product": 4, "loop": 99}]
    return SimpleNamespace(
        product=name,
        due=due,
        visited=np.broadcast_to(visited, (1, 2, 64, 64)),
        tile=(16, 16),
        over_queries=name in ("dk", "dv"),
        trace=SimpleNamespace(rows=lambda table: dots),
    )


def tiles(*rows):
    return np.kron([[letter != "." for letter in row] for row in rows], np.ones((16, 16), bool))


EVERY = np.ones((64, 64), bool)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (product("out", CAUSAL, CAUSAL, 7), ""),
        (
            product("out", CAUSAL, EVERY, 7),
            "12 of 32 tiles visited hold no visible pair: all after the visible keys;"
            " check where the loop of line 7 begins and ends",
        ),
        (
            product("dk", CAUSAL, EVERY, 7),
            "12 of 32 tiles visited for dk hold no visible pair:"
            " all before the queries that see the keys;"
            " check where the loop of line 7 begins and ends",
        ),
        (
            product("out", SINKS, tiles("x...", "xx.x", "xxx.", "xxxx"), 9, 7),
            "4 of 22 tiles visited hold no visible pair: 2 after the visible keys,"
            " 2 between visible keys; check where the loops of lines 7, 9 begin and end",
        ),
        (
            product("dq", np.triu(CAUSAL), tiles("x...", "xx..", "..x.", "...x"), 0),
            "2 of 10 tiles visited for dq hold no visible pair: all before the visible keys",
        ),
    ],
)
def test_wasted_tiles_are_counted_and_placed(made, said):
    assert wasted_tiles([made]) == said


def test_the_product_with_the_most_wasted_tiles_is_named():
    few = product("dq", CAUSAL, CAUSAL | tiles("xx..", "xx..", "xxx.", "xxxx"), 3)
    many = product("dv", CAUSAL, EVERY, 5)
    assert wasted_tiles([few, many]) == wasted_tiles([many]) != wasted_tiles([few]) != ""
    assert wasted_tiles([]) == ""
