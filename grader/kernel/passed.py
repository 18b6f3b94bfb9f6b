"""Finds the tensors among a launch's arguments, without the submission's code. In a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def tensors_of(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each tensor of an argument with its name, also from tuples and descriptors.

    The function calls no code of the submission and skips tensors without addresses: an error of
    either would look like one of the judge's.
    """
    if isinstance(value, tuple):
        for index, part in enumerate(tuple.__iter__(value)):
            yield from tensors_of(f"{name}[{index}]", part)
        return
    if type(value).__module__.partition(".")[0] == "triton":  # a descriptor, or reinterpreted
        value = getattr(value, "base", value)
    if isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_meta:
        yield name, value


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor as a plain torch.Tensor, without methods that may be the submission's."""
    if type(tensor) is torch.Tensor and not vars(tensor):
        return tensor
    made = torch.Tensor.as_subclass(tensor, torch.Tensor)
    if type(made) is not torch.Tensor:  # its __torch_function__ overrides the conversion
        raise TypeError(f"got a {type(tensor).__name__}, expected a tensor with memory of its own")
    return made
