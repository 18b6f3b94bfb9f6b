"""What comes out of a call whose kernels are launched and do nothing: nothing that is right."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import torch

from grader.checks.correctness import Expected, find_differences


def right_without_kernels(
    names: Iterable[str], idle: dict[str, torch.Tensor], expected: Expected, earlier: Expected
) -> tuple[str, ...]:
    """Return the outputs that are right though no kernel computed them.

    Args:
        names: the outputs that are judged.
        idle: outputs of a call whose kernels did nothing, by name.
        expected: what is right for that call.
        earlier: what was right for an earlier call of the same sizes with other values. An output
            for which this, or zero, would be right as well says nothing: it may be what was there
            before.
    """

    def is_right(name: str, value: torch.Tensor) -> bool:
        alone = dataclasses.replace(expected, truth={name: expected.truth[name]})
        return not find_differences({name: value.to(idle[name].dtype)}, alone)

    return tuple(
        name
        for name in names
        if is_right(name, idle[name])
        and not is_right(name, earlier.truth[name])
        and not is_right(name, torch.zeros_like(idle[name]))
    )
