"""Names the cause of a wrong result: which known mistake gives exactly what the submission gave."""

from __future__ import annotations

import torch

import reference
from grader.checks.correctness import Expected, element_errors
from grader.checks.inputs import Inputs
from grader.manifest import Case, Problem
from grader.model import Diagnosis

_CLOSE = 3.0  # times the tolerance within which the submission must follow the mistake
_APART = 20.0  # times the tolerance by which the mistake must differ from the truth
_MUCH_CLOSER = 1e-5  # or this much closer to the mistake than the mistake is to the truth
_MOST = 0.75  # of what the mistake changes must be as the mistake has it; the rest may be right


def candidates(
    problem: Problem,
    case: Case,
    inputs: Inputs,
    got: dict[str, torch.Tensor],
    expected: Expected,
) -> list[Diagnosis]:
    """Return the known mistakes that explain `got` on this case, none when nothing fits.

    A mistake explains a result when every element is either as the mistake has it or right, and
    most of what the mistake changes is as the mistake has it: a kernel that makes it may still
    get the last rows of a tile right. Mistakes that explain everything go before such ones.
    """
    whole: dict[str, Diagnosis] = {}
    partly: dict[str, Diagnosis] = {}
    for mistake in reference.mistakes_for(problem.id):
        id = f"{problem.id.upper()}-{mistake.id}"
        if id in whole:
            continue  # the same mistake with another tile size
        try:
            wrong = mistake.fn(dict(inputs.all), case.kwargs)
        except (ValueError, RuntimeError, IndexError):
            continue  # this mistake has no meaning on this case
        share = _share_explained(wrong, got, expected, case.dtype, problem.tolerance_factor)
        diagnosis = Diagnosis(id, mistake.title, mistake.note, mistake.help)
        if share == 1.0:
            whole[id] = diagnosis
        elif share >= _MOST:
            partly[id] = diagnosis
    return list((whole or partly).values())


def _share_explained(
    wrong: dict[str, torch.Tensor],
    got: dict[str, torch.Tensor],
    expected: Expected,
    dtype: str,
    factor: float,
) -> float:
    """Return how much of what a mistake changes `got` has as the mistake does; 0 if it differs."""
    changed = followed = 0
    for name in wrong.keys() & expected.truth.keys():
        truth, mistaken = expected.truth[name], wrong[name].double()
        # NaN in a prediction means that the mistake leaves this element undetermined.
        undetermined = mistaken.isnan()
        mistaken = torch.where(undetermined, truth, mistaken)
        # The honest error stays what it is: shift it to the mistaken values.
        honest = mistaken + (expected.honest[name].double() - truth)
        as_mistake = Expected({}, {name: honest}, expected.magnitude)
        right = element_errors(name, got[name], truth, expected, dtype, factor) <= 1.0
        distance = element_errors(name, got[name], mistaken, as_mistake, dtype, factor)
        moved = element_errors(name, mistaken, truth, expected, dtype, factor)
        follows = (distance <= _CLOSE) | (distance <= _MUCH_CLOSER * moved)
        apart = moved > _APART
        if not bool((right | follows | undetermined).all()):
            return 0.0
        changed += int(apart.sum())
        followed += int((apart & follows).sum())
    return followed / changed if changed else 0.0
