"""Shapes outside the table: ragged lengths, all head dims, groups, windows, sinks."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from benchmarks.shapes import Shape

LENGTHS = (100, 333, 1000, 1537, 4096, 5000, 10000, 20000)
HEAD_DIMS = (128, 64, 32, 16)
GROUPS = (8, 1, 4, 16, 2)
WINDOWS = (128, 1000, 64, 512, 1, 4096, 33)
SINKS = (4, 0, 1, 16, 100)
LEAST = 0.8
_HEADS = 16


def points(problem: str, count: int = 8, seed: int = 7) -> list[Shape]:
    """Return `count` shapes of a problem that cover the values of all dimensions.

    Each dimension cycles through its values in its own random order, so that a few shapes cover
    many values; the same seed gives the same shapes.
    """
    rng = random.Random(f"{seed} {problem}")
    lengths, dims, groups, windows, sinks = (
        _walk(values, count, rng) for values in (LENGTHS, HEAD_DIMS, GROUPS, WINDOWS, SINKS)
    )
    found = []
    for number in range(count):
        group = groups[number] if problem not in ("p03", "p04") else 1
        # The batch grows as seqlen shrinks, for similar work at every length.
        batch = max(1, min(16, 8192 // lengths[number]))
        windowed = problem in ("p06", "p07", "p09")
        found.append(
            Shape(
                f"sweep-{number}",
                batch,
                _HEADS,
                _HEADS // group,
                lengths[number],
                dims[number],
                window_size=windows[number] if windowed else None,
                num_sink_tokens=sinks[number] if problem in ("p07", "p09") else 0,
                is_causal=problem != "p03",
            )
        )
    return found


def _walk(values: tuple[int, ...], count: int, rng: random.Random) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        found += rng.sample(values, len(values))
    return found[:count]


def verdict(results: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """Return the results with a ratio to FlexAttention below LEAST, and how many have a ratio."""
    compared = [result for result in results if flex_ratio(result) is not None]
    return [result for result in compared if flex_ratio(result) < LEAST], len(compared)


def flex_ratio(result: dict[str, Any]) -> float | None:
    """Return FlexAttention's time over ours, None unless both were timed."""
    rows = {row["id"]: row for row in result["contenders"]}
    return rows.get("flex", {}).get("ratio")
