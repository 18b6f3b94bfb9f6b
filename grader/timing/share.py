"""The share of a timed go that is verified: of each of its calls heads, or rows, drawn afterwards.

Together they are as many as one call has, and one of each call at least: a submission that leaves a
part f of its calls out stays unseen in a go with a chance of (1 - f) to the power of that number.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import torch

from grader.spec.cases import Case

_SHARED = "w"  # by all rows of a call


def draw(case: Case, calls: int) -> torch.Tensor | None:
    """Return the numbers of the heads of K and V, or rows, that are verified of one of `calls`.

    None is all of them.
    """
    count = case.rows or case.num_kv_heads
    generator = torch.Generator().manual_seed(secrets.randbits(63))
    wanted = math.ceil(count / calls)
    return torch.randperm(count, generator=generator)[:wanted] if calls > 1 else None


def of(
    case: Case, tensors: dict[str, torch.Tensor], drawn: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Return what of each tensor belongs to what was drawn: copies, or all as it is.

    With a head of K and V go those of the queries in its group.
    """
    if drawn is None:
        return tensors
    count, found = case.rows or case.num_kv_heads, {}
    for name, tensor in tensors.items():
        axis = 0 if case.rows or tensor.dim() == 1 else 1
        each = torch.arange(tensor.shape[axis]).view(count, -1) if name != _SHARED else None
        index = each[drawn].flatten().to(tensor.device) if each is not None else None
        found[name] = tensor if index is None else tensor.index_select(axis, index)
    return found


def joined(case: Case, calls: Sequence[dict[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """Return heads of several calls as those of one; rows are left apart, since `w` is."""
    if case.rows or len(calls) == 1:
        return list(calls)
    names = calls[0]
    axes = {name: 0 if tensor.dim() == 1 else 1 for name, tensor in names.items()}
    return [{name: torch.cat([call[name] for call in calls], axes[name]) for name in names}]
