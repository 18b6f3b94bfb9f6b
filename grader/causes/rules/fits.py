"""Chooses the fits that are tried on a wrong result, by what the problem returns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch

from grader.causes.outputs import Outputs
from grader.causes.rules import fitted_gradients, fitted_rows, fitted_sums
from grader.causes.rules.fitted_logits import other_logit
from grader.causes.rules.head import NAMES
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.checks.correctness import element_errors

_FEWEST_ROWS = 4  # of x
_MOST_KEYS = 1024
_SAME = 1e-4  # relative, of two numbers that fp32 computes
_GRADIENTS = (*NAMES, "dsink_logits")
_AXES = ("batch", "heads", "seqlen", "head_dim")


def fittable(wrong: Outputs) -> bool:
    """Whether a wrong result has enough finite numbers, with enough digits, for a fit."""
    case = wrong.case
    if case.dtype != "fp32":
        return False
    if case.rows is not None:
        there = _are_there(wrong, ["y"]) and bool(wrong.got["y"].any())  # zeros fit anything
        return there and case.rows >= _FEWEST_ROWS
    enough = 2 <= case.seqlen_k <= _MOST_KEYS
    return enough and (_are_there(wrong, ["out"]) or _are_there(wrong, _GRADIENTS))


def fitted(wrong: Outputs) -> Sighting | None:
    """Return what a wrong result is made of, if a few fitted numbers explain it."""
    if wrong.case.rows is not None:
        return fitted_sums.fitted(wrong)
    found = _in_other_places(wrong)
    if found is None and _are_there(wrong, ["out"]):
        found = other_logit(wrong) or fitted_rows.fitted(wrong)
    if found is None and _are_there(wrong, _GRADIENTS):
        found = fitted_gradients.fitted(wrong)
    return found


def _in_other_places(wrong: Outputs) -> Sighting | None:
    """Find a result whose numbers are the right ones, in another order."""
    for name in ("out", *NAMES):
        if name not in wrong.expected.truth or not _are_there(wrong, [name]):
            continue
        got, truth = wrong.got[name], wrong.expected.truth[name]
        if bool(wrong.right[name].all()):
            continue
        for axes in itertools.permutations(range(len(_AXES))):
            if _is_right(wrong, name, truth.permute(axes).reshape(truth.shape)):
                return by_numbers(
                    "OUTPUT-REORDERED",
                    variant="permuted",
                    name=name,
                    memory=", ".join(_AXES[axis] for axis in axes),
                    read=", ".join(_AXES),
                )
        # Other numbers of the same distribution, sorted, are within the tolerance of TF32.
        values, due = (one.double().flatten().sort().values for one in (got, truth))
        if torch.allclose(values, due, rtol=_SAME, atol=0.1 * _SAME * float(truth.abs().max())):
            moved, number = int((~wrong.right[name]).sum()), got.numel()
            return by_numbers("OUTPUT-REORDERED", name=name, moved=moved, number=number)
    return None


def _is_right(wrong: Outputs, name: str, expected: torch.Tensor) -> bool:
    errors = element_errors(name, wrong.got[name], wrong.expected, around=expected)
    return not bool((errors > 1.0).any())


def _are_there(wrong: Outputs, names: Iterable[str]) -> bool:
    there = [wrong.got[name] for name in names if name in wrong.got]
    return bool(there) and all(bool(values.isfinite().all()) for values in there)
