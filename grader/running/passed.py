"""Finds the tensors among the arguments of a launch. In a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def tensors_of(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of an argument by their places, those in tuples and of descriptors too."""
    if isinstance(value, tuple):
        for index, part in enumerate(value):
            yield from tensors_of(f"{name}[{index}]", part)
        return
    tensor = getattr(value, "base", value)  # of a descriptor
    if isinstance(tensor, torch.Tensor):  # no other object's code is called
        yield name, tensor
