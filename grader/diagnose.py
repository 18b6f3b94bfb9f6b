"""Names the cause of a wrong result: which known mistake gives exactly what the submission gave."""

from __future__ import annotations

import dataclasses

import torch

import reference
from grader.checks.correctness import Expected, margins
from grader.checks.inputs import Inputs
from grader.manifest import Case, Problem
from grader.model import Diagnosis

_CLOSE = 3.0  # times the tolerance within which the submission must follow the mistake
_APART = 20.0  # times the tolerance by which the mistake must differ from the truth


def candidates(
    problem: Problem,
    case: Case,
    inputs: Inputs,
    got: dict[str, torch.Tensor],
    expected: Expected,
) -> list[Diagnosis]:
    """Return the known mistakes that explain `got` on this case, none when nothing fits.

    A mistake explains a result when every output it defines is as close to the mistake's own
    result as rounding allows, while that result is far from the truth.
    """
    found: dict[str, Diagnosis] = {}
    factor = problem.tolerance_factor
    for mistake in reference.mistakes_for(problem.id):
        id = f"{problem.id.upper()}-{mistake.id}"
        if id in found:
            continue  # the same mistake with another tile size
        try:
            wrong = mistake.fn(dict(inputs.all), case.kwargs)
        except (ValueError, RuntimeError, IndexError):
            continue  # this mistake has no meaning on this case
        names = [name for name in wrong if name in expected.truth]
        wrong = {name: wrong[name].double() for name in names}
        truth = {name: expected.truth[name] for name in names}
        # NaN in a prediction means that the mistake leaves this element undetermined.
        open_ = {name: wrong[name].isnan() for name in names}
        if not names or all(bool(mask.all()) for mask in open_.values()):
            continue
        wrong = {n: torch.where(open_[n], truth[n], wrong[n]) for n in names}
        claimed = {n: torch.where(open_[n], truth[n], got[n].double()) for n in names}
        apart = margins(wrong, dataclasses.replace(expected, truth=truth), case, factor)
        if not max(apart.values()) > _APART:
            continue
        # The honest error stays what it is: shift it to the mistaken values.
        honest = {n: wrong[n] + (expected.honest[n].double() - truth[n]) for n in names}
        as_mistake = Expected(wrong, honest, expected.magnitude)
        close = margins(claimed, as_mistake, case, factor)
        if max(close.values()) <= _CLOSE:
            found[id] = Diagnosis(id, mistake.title, mistake.note, mistake.help)
    return list(found.values())
