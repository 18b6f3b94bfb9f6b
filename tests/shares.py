"""The share of a corpus that `make test` judges: another one with each version of the set.

One version draws the same members each time, and a class of one member is always judged. The next
versions come round to the others, and `make sweep` judges all of them. `make test SHARE=0.16.0`, or
any other word, draws another share; `SHARE=all` judges everything.
"""

import collections
import hashlib
import math
import os
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from grader import __version__
from grader.spec.problem import ROOT

SHARE = os.environ.get("SHARE") or __version__


def of_all(item: Any) -> None:
    """Put all items of a corpus into one family."""


def drawn(
    items: Iterable,
    one_in: int,
    family: Callable[[Any], Hashable] = lambda item: getattr(item, "problem", None),
) -> list:
    """Return one in `one_in` of each family, at least one, in the order of `items`.

    What has no `id` is drawn by its place.
    """
    families: dict[Hashable, list[int]] = collections.defaultdict(list)
    items = list(items)
    for place, item in enumerate(items):
        families[family(item)].append(place)

    def order(place: int) -> bytes:
        word = getattr(items[place], "id", place)
        return hashlib.sha256(f"{SHARE} {word}".encode()).digest()

    chosen: set[int] = set()
    for group in families.values():
        count = len(group) if SHARE == "all" else math.ceil(len(group) / one_in)
        chosen |= {*sorted(group, key=order)[:count]}
    return [item for place, item in enumerate(items) if place in chosen]


def users() -> list[str]:
    """Return the files of tests that draw, as paths in the checkout."""
    line = "\nfrom tests.shares import drawn"
    paths = sorted((ROOT / "tests").glob("test_*.py"))
    return [f"tests/{path.name}" for path in paths if line in path.read_text("utf-8")]
