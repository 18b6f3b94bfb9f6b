"""What a wrong lse is made of: the maximum of a row, the sum of its weights and their logarithm."""

from __future__ import annotations

import math

import torch

from grader.causes.rules.sighting import Sighting, by_numbers
from grader.checks.correctness import Expected
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from reference.variants import case_of

_FEWEST = 16  # rows that three numbers are fitted to
_UNEXPLAINED = 1e-3  # of the error
_NOTHING = 1e-3  # a number next to it adds nothing
_NAMED = {"": 1.0, "ln(2) * ": math.log(2.0), "log2(e) * ": 1.0 / math.log(2.0)}


def other_lse(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    wrong: tuple[str, ...],
    got: dict[str, torch.Tensor],
    expected: Expected,
) -> Sighting | None:
    """Return by which three factors lse is made of these, where that gives all of its rows."""
    if wrong != ("lse",) or case.rows is not None or not got["lse"].isfinite().all():
        return None
    known = case_of(problem_id, inputs.all, case.kwargs)
    largest = known.scores().masked_fill(~known.visible(), -math.inf).amax(-1)
    log_sum = expected.truth["lse"] - largest
    parts = {"maximum": largest, "ln(sum)": log_sum, "sum": log_sum.exp()}
    basis = torch.stack([part.flatten() for part in parts.values()], 1)
    if len(basis) < _FEWEST:
        return None
    lse = got["lse"].double().flatten()
    factors = torch.linalg.lstsq(basis, lse[:, None], driver="gelsd").solution[:, 0]
    error = (lse - expected.truth["lse"].flatten()).norm()
    if not bool((basis @ factors - lse).norm() <= _UNEXPLAINED * error):
        return None
    terms = zip(factors.tolist(), parts, strict=True)
    made = [_times(factor) + name for factor, name in terms if abs(factor) > _NOTHING]
    return by_numbers("OTHER-LSE", made=" + ".join(made) or "0")


def _times(factor: float) -> str:
    """Return the factor before a name, by its own name where it has one."""
    near = (name for name, v in _NAMED.items() if abs(abs(factor) - v) < _NOTHING * v)
    found = next(near, None)
    return f"{factor:.4g} * " if found is None else "-" * (factor < 0.0) + found
