"""Asks what numbers can be fitted to a wrong result, by what the problem returns."""

from __future__ import annotations

import torch

from grader.causes.rules import fitted as of_rows
from grader.causes.rules import fitted_gradients, fitted_sums
from grader.causes.rules.fitted_logits import other_logit
from grader.causes.rules.sighting import Sighting
from grader.checks.correctness import Expected
from grader.spec.cases import Case
from grader.spec.inputs import Inputs


def fittable(case: Case, got: dict[str, torch.Tensor]) -> bool:
    """Whether there are enough numbers, and digits of them."""
    if case.rows is not None:
        return fitted_sums.fittable(case, got)
    return of_rows.fittable(case, got) or fitted_gradients.fittable(case, got)


def fitted(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    got: dict[str, torch.Tensor],
    expected: Expected,
) -> Sighting | None:
    """Return what a wrong result is made of, if few numbers say it."""
    if case.rows is not None:
        return fitted_sums.fitted(case, inputs, got, expected)
    found = None
    if of_rows.fittable(case, got):
        found = other_logit(problem_id, case, inputs, got, expected)
    if found is None and of_rows.fittable(case, got):
        found = of_rows.fitted(problem_id, case, inputs, got, expected)
    if found is None and fitted_gradients.fittable(case, got):
        found = fitted_gradients.fitted(problem_id, case, inputs, got, expected)
    return found
