"""The share of a corpus that `make test` judges: another one with each version of the set.

`make test SHARE=0.16.0`, or any other word, draws another; `SHARE=all` judges whole corpora, as
`make sweep` does.
"""

from __future__ import annotations

import collections
import hashlib
import math
import os
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from grader import __version__

SHARE = os.environ.get("SHARE", __version__)


def drawn(
    items: Iterable, one_in: int, family: Callable[[Any], Hashable] = lambda item: item.problem
) -> list:
    """Return one in `one_in` of each family, at least one, in the order of `items`."""
    families: dict[Hashable, list] = collections.defaultdict(list)
    items = list(items)
    for item in items:
        families[family(item)].append(item)
    chosen: set[int] = set()
    for group in families.values():
        order = sorted(
            group, key=lambda item: hashlib.sha256(f"{SHARE} {item.id}".encode()).digest()
        )
        count = len(group) if SHARE == "all" else math.ceil(len(group) / one_in)
        chosen |= {id(item) for item in order[:count]}
    return [item for item in items if id(item) in chosen]
