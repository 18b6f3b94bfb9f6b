"""Outputs that are right but for a factor."""

from __future__ import annotations

import dataclasses
import math

import torch

from grader.cases import Case
from grader.checks.correctness import Expected, find_differences
from grader.sightings.sighting import Sighting

_ALIKE = 1e-3  # how near a factor comes to one that has a name
_SMALL = 1e-4  # no factor: next to nothing is left


def scaled(
    case: Case, wrong: tuple[str, ...], got: dict[str, torch.Tensor], expected: Expected
) -> Sighting | None:
    """Return the factor by which all wrong outputs are off everywhere, if there is one."""
    factors = {_factor(got[name].double(), expected.truth[name]) for name in wrong}
    if len(wrong) != 1 or None in factors:
        return None
    (name,), (factor,) = wrong, factors
    assert factor is not None
    times = dataclasses.replace(
        expected,
        truth={name: factor * expected.truth[name]},
        honest={name: factor * expected.honest[name]},
    )
    if find_differences({name: got[name]}, times):
        return None
    words = _words(case, factor)
    return Sighting(
        "OUTPUT-SCALED",
        f"{name} is {words} times what it should be",
        f"seen: every element of {name} is {factor:.4g} times the right one",
        "which factor is there twice, or missing?",
        traced=False,
    )


def _factor(got: torch.Tensor, truth: torch.Tensor) -> float | None:
    """Return the factor that fits best, None where it is 1, next to 0, or none."""
    factor = float((got * truth).sum() / (truth * truth).sum())
    if not math.isfinite(factor) or abs(factor) < _SMALL or abs(factor - 1.0) < _ALIKE:
        return None
    return factor


def _words(case: Case, factor: float) -> str:
    named: dict[str, float] = {"-1": -1.0, "2": 2.0, "1/2": 0.5, "4": 4.0}
    if case.rows is None:
        scale = case.kwargs.get("softmax_scale") or 1.0 / math.sqrt(case.head_dim)
        group = case.num_q_heads // case.num_kv_heads
        named |= {"softmax_scale": scale, "1 / softmax_scale": 1.0 / scale}
        named |= {"log2(e)": 1.0 / math.log(2.0), "ln 2": math.log(2.0)}
        if group > 1:
            named |= {"the group size": group, "1 / the group size": 1.0 / group}
    for words, value in named.items():
        if abs(factor - value) <= _ALIKE * abs(value):
            return words
    return f"{factor:.4g}"
