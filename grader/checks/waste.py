"""Says which tiles a kernel visits for nothing, and in which loop."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from grader.checks.counted_pairs import CountedPairs, tiles_holding
from grader.kernel.observers.trace import PRODUCTS


def wasted_tiles(products: Iterable[CountedPairs]) -> str:
    """Return a sentence on the product with the most visited tiles that hold no pair that is due.

    "" if no product has any.
    """
    return max(map(_wasted, products), default=(0, ""))[1]


def _wasted(counted: CountedPairs) -> tuple[int, str]:
    """Return how many tiles hold no pair that is due, and where they are."""
    visited, due = (tiles_holding(p, counted.tile) for p in (counted.visited, counted.due))
    if counted.over_queries:  # a row of dk or dv is a sum over queries
        visited, due = visited.swapaxes(2, 3), due.T
    wasted, place, any_due = visited & ~due, np.arange(due.shape[1]), due.any(1, keepdims=True)
    number = int(wasted.sum())
    if not number:
        return 0, ""
    before = any_due & (place < due.argmax(axis=1, keepdims=True))
    after = any_due & (place >= due.shape[1] - due[:, ::-1].argmax(axis=1, keepdims=True))
    of = "queries that see the keys" if counted.over_queries else "visible keys"
    regions = {f"before the {of}": before, f"after the {of}": after}
    regions[f"between {of}"] = any_due & ~before & ~after
    sizes = {where: int((wasted & region).sum()) for where, region in regions.items()}
    sizes = {where: size for where, size in sizes.items() if size}
    where = ", ".join(f"{n:,} {w}" if len(sizes) > 1 else f"all {w}" for w, n in sizes.items())
    product = "" if counted.product == "out" else f" for {counted.product}"
    said = f"{number:,} of {int(visited.sum()):,} tiles visited{product} hold no visible pair"
    return number, ": ".join(filter(None, [said, where])) + _loops(counted)


def _loops(counted: CountedPairs) -> str:
    """Return what to check of the loops around the product; "" where no loop is known."""
    index, dots = PRODUCTS.index(counted.product), counted.trace.rows("dots")
    lines = sorted({dot["loop"] for dot in dots if dot["product"] == index and dot["loop"]})
    if len(lines) < 2:
        return "".join(f"; check where the loop of line {n} begins and ends" for n in lines)
    return f"; check where the loops of lines {', '.join(map(str, lines))} begin and end"
