"""The share of a corpus that `make test` judges: another one each day, the same all day.

`make test SHARE=2026-11-26` repeats the share of a day; `SHARE=all` judges whole corpora, as
`make sweep` does.
"""

from __future__ import annotations

import collections
import datetime
import hashlib
import math
import os
from collections.abc import Callable, Hashable, Iterable
from typing import Any

# Set for the workers of pytest-xdist too, which may begin after midnight.
SHARE = os.environ.setdefault("SHARE", datetime.date.today().isoformat())


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
