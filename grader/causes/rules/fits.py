"""Chooses the fits that are tried on a wrong result, by what the problem returns."""

from __future__ import annotations

from collections.abc import Iterable

from grader.causes.outputs import Outputs
from grader.causes.rules import fitted_gradients, fitted_rows, fitted_sums
from grader.causes.rules.fitted_logits import other_logit
from grader.causes.rules.fitted_places import in_other_places, of_other_parts
from grader.causes.rules.head import NAMES
from grader.causes.rules.sighting import Sighting

_FEWEST_ROWS = 4  # of x
_MOST_KEYS = 1024
_GRADIENTS = (*NAMES, "dsink_logits")


def fittable(wrong: Outputs) -> bool:
    """Whether a wrong result has enough finite numbers, with enough digits, for a fit."""
    case = wrong.case
    if case.dtype != "fp32":
        return False
    if case.rows is not None:
        there = _are_there(wrong, ["y"]) and bool(wrong.got["y"].any())  # zeros fit anything
        return there and case.rows >= _FEWEST_ROWS
    enough = 2 <= case.seqlen_k <= _MOST_KEYS
    return enough and any(_are_there(wrong, names) for names in (["out"], ["lse"], _GRADIENTS))


def fitted(wrong: Outputs) -> Sighting | None:
    """Return what a wrong result is made of, if a few fitted numbers explain it."""
    if wrong.case.rows is not None:
        return fitted_sums.fitted(wrong) or of_other_parts(wrong)
    found = in_other_places(wrong) or of_other_parts(wrong)
    if found is None and _are_there(wrong, ["out"]):
        found = other_logit(wrong) or fitted_rows.fitted(wrong)
    if found is None and _are_there(wrong, _GRADIENTS):
        found = fitted_gradients.fitted(wrong)
    return found


def _are_there(wrong: Outputs, names: Iterable[str]) -> bool:
    there = [wrong.got[name] for name in names if name in wrong.got]
    return bool(there) and all(bool(values.isfinite().all()) for values in there)
