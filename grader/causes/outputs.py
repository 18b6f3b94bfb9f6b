"""Outputs of which some numbers are wrong, and the sums of terms that give such numbers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping

import torch
from torch.utils.weak import WeakIdKeyDictionary

from grader.checks.correctness import Expected, element_errors
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from reference.variants import Case as Known
from reference.variants import case_of

LOG2E = 1.0 / math.log(2.0)
TILES = (128, 64, 32, 16)  # sizes in rows that fits try
_UNEXPLAINED = 1e-2  # of an error, at most, where a fit explains it
_ALIKE = 1e-3  # relative, of two numbers of which one is fitted
NEXT_TO_MINUS_INF = -1e4  # some kernels begin a maximum below it, where no right number is


@dataclasses.dataclass(frozen=True, eq=False)
class Outputs:
    """What came out of one call of a problem's entry point, and what should have."""

    problem_id: str
    case: Case
    inputs: Inputs
    got: dict[str, torch.Tensor]
    expected: Expected
    # What a known mistake predicts, and how this compares with it: see `grader.causes.fitting`.
    compared: WeakIdKeyDictionary = dataclasses.field(default_factory=WeakIdKeyDictionary)

    @property
    def known(self) -> Known:
        """The inputs in fp64 and what is derived from them, for problems of attention alone."""
        return case_of(self.problem_id, self.inputs.all, self.case.kwargs)

    @functools.cached_property
    def tight(self) -> Expected | None:
        """What is expected where fp32 is computed exactly and TF32 would do, else None."""
        if self.expected.precision != "tf32":
            return None
        return dataclasses.replace(self.expected, honest=self.expected.truth, precision="fp32")

    @functools.cached_property
    def right(self) -> dict[str, torch.Tensor]:
        """Which elements of each output are right all the same."""
        names, expected = self.expected.truth, self.expected
        return {name: element_errors(name, self.got[name], expected) <= 1.0 for name in names}


def factors_of(parts: torch.Tensor, got: torch.Tensor, most: float) -> torch.Tensor | None:
    """Return the factors, (..., parts), with which `parts` add up to `got`, by least squares.

    None where the residual has a norm above `most`.

    Args:
        parts: (..., parts, numbers).
        got: (..., numbers).
    """
    size = parts.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    basis = (parts / size).mT
    found = torch.linalg.lstsq(basis, got[..., None], driver="gelsd").solution
    left = float((basis @ found - got[..., None]).norm())
    if not found.isfinite().all() or not left <= most:
        return None
    return found[..., 0] / size[..., 0]


def unexplained(got: torch.Tensor, truth: torch.Tensor | float) -> float:
    """Return the largest norm that the residual of a fit to a wrong result may have."""
    return _UNEXPLAINED * float((got - truth).norm())


def names_of(value: float, named: Mapping[str, float]) -> list[str]:
    """Return the names of the numbers that have this value."""
    return [name for name, number in named.items() if abs(value - number) <= _ALIKE * abs(number)]


def tiles_of(length: int, tile: int) -> torch.Tensor:
    """Return a mask of the rows or keys of each tile, (tiles, length)."""
    return torch.arange(-(-length // tile))[:, None] == torch.arange(length) // tile
