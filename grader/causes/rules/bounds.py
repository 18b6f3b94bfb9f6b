"""What an access outside a tensor says of its cause: the machine saw how the tile lies."""

from __future__ import annotations

from grader.causes.rules.sighting import Sighting
from grader.kernel.machine.tensors import Outside


def outside(how: str, line: int, of: str) -> Sighting | None:
    """Return the cause of an access of a pointer that was outside in a way of `Outside`."""
    if how == Outside.EDGE:
        return Sighting("EDGE-NOT-MASKED", line, pointer=of)
    if how == Outside.BLOCK:
        return Sighting("EDGE-NOT-MASKED", line, variant="of_blocks", pointer=of)
    if how == Outside.MASK:
        return Sighting("MASK-TOO-WIDE", line, pointer=of)
    if how == Outside.STRIDE:
        return Sighting("WRONG-STRIDE", line, variant="outside", pointer=of)
    if how in (Outside.TILE, Outside.BEFORE):
        return Sighting("TILE-OUTSIDE", line, pointer=of)
    if how == Outside.WRAPS:
        return Sighting("OFFSET-OVERFLOWS", line, pointer=of)
    return None
