"""What an access outside a tensor says of its cause: the machine saw how the tile lies."""

from __future__ import annotations

import functools

from grader.causes.rules.sighting import Sighting
from grader.kernel.machine.tensors import Outside

_Edge = functools.partial(Sighting, "EDGE-NOT-MASKED", located=True)


def outside(how: str, line: int) -> Sighting | None:
    """Return the cause of an access at `line` that was outside in a way of `Outside`."""
    if how == Outside.EDGE:
        return _Edge(line=line)
    if how == Outside.BLOCK:
        return _Edge(line=line, variant="of_blocks")
    if how == Outside.MASK:
        return Sighting("MASK-TOO-WIDE", line)
    if how == Outside.STRIDE:
        return Sighting("WRONG-STRIDE", line, variant="outside")
    if how in (Outside.TILE, Outside.BEFORE):
        return Sighting("TILE-OUTSIDE", line)
    if how == Outside.WRAPS:
        return Sighting("OFFSET-OVERFLOWS", line, located=True)
    return None
