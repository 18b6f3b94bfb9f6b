"""The share of a timed go that is verified: heads, or rows, of its calls, drawn afterwards.

They are half as many as one call has, and four at least where a go has so many calls: a submission
that leaves a part f of its heads out stays unseen in a go with a chance of (1 - f) to the power of
that number. An official measurement times three blocks of seven goes, of 21 where calls are short.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import torch

from grader.spec.cases import Case

_SHARED = "w"  # by all rows of a call
_PARTS = 2  # of a call, of which a go has one verified
_FEWEST = 4  # of a go with as many calls


def draw(case: Case, calls: int, device: str) -> list[torch.Tensor]:
    """Return, for each of `calls`, the numbers of the heads of K and V, or rows, to be verified.

    They are drawn where they are used: a draw on the CPU starts threads there.
    """
    count = case.rows or case.num_kv_heads
    generator = torch.Generator(device).manual_seed(secrets.randbits(63))
    drawn = torch.randperm(calls * count, generator=generator, device=device)
    drawn = drawn[: max(math.ceil(count / _PARTS), min(_FEWEST, calls))]
    return [drawn[drawn // count == call] % count for call in range(calls)]


def of(
    case: Case, tensors: dict[str, torch.Tensor], drawn: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return copies of what of each tensor belongs to what was drawn.

    With a head of K and V go those of the queries in its group.
    """
    count, found = case.rows or case.num_kv_heads, {}
    for name, tensor in tensors.items():
        axis = 0 if case.rows or tensor.dim() == 1 else 1
        if name != _SHARED:
            places = torch.arange(tensor.shape[axis], device=drawn.device).view(count, -1)
            tensor = tensor.index_select(axis, places[drawn].flatten())
        found[name] = tensor
    return found


def joined(case: Case, calls: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Return heads of several calls as those of one; rows are left apart, since `w` is."""
    if case.rows or len(calls) == 1:
        return list(calls)
    names = calls[0]
    axes = {name: 0 if tensor.dim() == 1 else 1 for name, tensor in names.items()}
    return [{name: torch.cat([call[name] for call in calls], axes[name]) for name in names}]
