"""Draws, after a timed go, the heads or rows of its calls that are verified.

Their number n is half of what one call has, and at least four in a go of as many calls. If a
submission leaves a part f of its heads out, it passes a go with a chance of (1 - f) ** n. An
official measurement times three blocks of seven goes, of 21 where calls are short.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence

import torch

from grader.spec.cases import Case

_SHARED = "w"  # all rows of a call share it
_PARTS = 2  # a go has one of so many parts of a call verified
_FEWEST = 4  # heads or rows of a go that has as many calls


def draw(case: Case, calls: int, device: str) -> list[torch.Tensor]:
    """Return, for each of `calls`, the numbers of the heads of K and V, or rows, to be verified.

    They are drawn on the device that uses them: a draw on the CPU starts threads there.
    """
    count = case.rows or case.num_kv_heads
    generator = torch.Generator(device).manual_seed(secrets.randbits(63))
    drawn = torch.randperm(calls * count, generator=generator, device=device)
    drawn = drawn[: max(math.ceil(count / _PARTS), min(_FEWEST, calls))]
    return [drawn[drawn // count == call] % count for call in range(calls)]


def of(
    case: Case, tensors: dict[str, torch.Tensor], drawn: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return copies of the `drawn` heads, or rows, of each tensor.

    A head of K and V takes along the heads of queries in its group.
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
    """Join the heads of several calls into one; rows, each call with its `w`, stay apart."""
    if case.rows or len(calls) == 1:
        return list(calls)
    names = calls[0]
    axes = {name: 0 if tensor.dim() == 1 else 1 for name, tensor in names.items()}
    return [{name: torch.cat([call[name] for call in calls], axes[name]) for name in names}]
