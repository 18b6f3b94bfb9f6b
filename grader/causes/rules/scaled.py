"""Outputs that are right but for a factor."""

from __future__ import annotations

import dataclasses
import math

import torch

from grader.causes.rules.fitted_logits import other_logit
from grader.causes.rules.fitted_lse import other_lse
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.checks.correctness import Expected, find_differences
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from reference import mistakes_for

_FEWEST = 16  # elements: of one or two any number is a factor
_NEXT_TO_NOTHING = 1e-4  # a factor of which nothing is left to compare
_NOTHING = 1e-12  # the same of a row, which rounding leaves as it is
# Of the named factors; a sum over 16 or more elements rounded to 11 bits is nearer than that.
_ALIKE = 1e-3
_PLAIN = 0.1  # how far from once delta counts otherwise
_ANY = 5e-3  # how far from not at all: a mean over head_dim is near that
_OF_PLAIN = 0.2  # of that distance, which may be left unexplained
_LEFT_OVER = 0.02  # of what came out: a small factor hides more than that in the tolerance
_UNEXPLAINED = 0.25  # of the error, which a factor takes away: rounding shifts the mean as well


def of_numbers(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    wrong: tuple[str, ...],
    got: dict[str, torch.Tensor],
    expected: Expected,
) -> Sighting | None:
    """Return what the numbers of a wrong result say alone, if they say anything."""
    return (
        scaled(case, wrong, got, expected)
        or other_lse(problem_id, case, inputs, wrong, got, expected)
        or (case.sink_logits and other_logit(problem_id, case, inputs, got, expected))
        or rows_scaled(wrong, got, expected)
        or delta_scaled(problem_id, case, inputs, wrong, got, expected)
        or None
    )


def scaled(
    case: Case, wrong: tuple[str, ...], got: dict[str, torch.Tensor], expected: Expected
) -> Sighting | None:
    """Return the factor by which the one wrong output is off everywhere, if there is one."""
    if len(wrong) != 1 or got[wrong[0]].numel() < _FEWEST:
        return None
    (name,) = wrong
    truth, honest = expected.truth[name], expected.honest[name]
    factor = float((got[name].double() * truth).sum() / (truth * truth).sum())
    if not math.isfinite(factor) or abs(factor) < _NEXT_TO_NOTHING:
        return None
    times = dataclasses.replace(
        expected, truth={name: factor * truth}, honest={name: factor * honest}
    )
    apart = (got[name].double() - factor * truth).norm()
    if find_differences({name: got[name]}, times) or apart > _LEFT_OVER * got[name].double().norm():
        return None
    if apart > _UNEXPLAINED * (got[name].double() - truth).norm():
        return None
    return by_numbers("OUTPUT-SCALED", name=name, times=_words(case, factor), factor=factor)


def rows_scaled(
    wrong: tuple[str, ...], got: dict[str, torch.Tensor], expected: Expected
) -> Sighting | None:
    """Say that each row of `out` is right but for a factor, another one in another row."""
    if wrong[0] != "out":
        return None
    out, truth = got["out"].double(), expected.truth["out"]
    if truth.dim() != 4 or min(truth.shape[2:]) < _FEWEST or not out.isfinite().all():
        return None
    factors = (out * truth).sum(-1, keepdim=True) / (truth * truth).sum(-1, keepdim=True)
    if not (factors.abs() > _NOTHING).all():
        return None
    of_out = dataclasses.replace(expected, truth={"out": truth})
    if find_differences({"out": out / factors}, of_out):
        return None
    if (out - factors * truth).norm() > _UNEXPLAINED * (out - truth).norm():
        return None
    least, most = (float(getattr(factors, which)()) for which in ("min", "max"))
    return by_numbers("ROWS-SCALED", least=least, most=most)


def delta_scaled(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    wrong: tuple[str, ...],
    got: dict[str, torch.Tensor],
    expected: Expected,
) -> Sighting | None:
    """Return how often delta counts in dS, where gradients are right but for that."""
    without = next((m for m in mistakes_for(problem_id) if m.id == "DELTA-MISSING"), None)
    if without is None or not set(wrong) <= {"dq", "dk"}:
        return None
    predicted = without.predict(dict(inputs.all), case.kwargs)
    if predicted is None:
        return None
    flat = [
        torch.cat([values[name].double().flatten() for name in wrong])
        for values in (predicted, got, expected.truth)
    ]
    missing, given, truth = flat
    share = missing - truth
    times = float(((missing - given) * share).sum() / (share * share).sum())
    plain = min(abs(times), abs(times - 1.0), abs(times + 1.0))
    near_once = abs(abs(times) - 1.0) < _PLAIN
    if not math.isfinite(times) or plain < _ANY or near_once:
        return None
    most = min(_LEFT_OVER * abs(times - 1.0), _OF_PLAIN * plain)
    if (missing - times * share - given).norm() > most * share.norm():
        return None
    are = " and ".join(wrong) + (" are those" if len(wrong) > 1 else " is that")
    inverse = 1.0 / case.head_dim
    mean = " (1/head_dim: a mean, not a sum)" if abs(times - inverse) < _ALIKE * inverse else ""
    return by_numbers("DELTA-SCALED", times=times, mean=mean, are=are)


def _words(case: Case, factor: float) -> str:
    """Return the factor, and what has that value in this case; several things may have."""
    named: dict[str, float] = {}
    if case.rows is None:
        scale = case.kwargs.get("softmax_scale") or 1.0 / math.sqrt(case.head_dim)
        group = case.num_q_heads // case.num_kv_heads
        named = {"softmax_scale": scale, "1 / softmax_scale": 1.0 / scale}
        named |= {"log2(e)": 1.0 / math.log(2.0), "ln 2": math.log(2.0)}
        if group > 1:
            named |= {"the group size": group, "1 / the group size": 1.0 / group}
    alike = [w for w, value in named.items() if abs(factor - value) <= _ALIKE * abs(value)]
    return f"{factor:.4g}" + (f" ({' or '.join(alike)})" if alike else "")
