"""Outputs that are right but for a factor, and lse that is made of other terms."""

from __future__ import annotations

import dataclasses
import math

import torch

from grader.causes.outputs import NEXT_TO_MINUS_INF, Outputs, factors_of
from grader.causes.rules.fitted_logits import other_logit
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.checks.correctness import find_differences
from grader.spec.cases import Case
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
_UNEXPLAINED_LSE = 1e-3  # of the error, where three factors are fitted to it
_UNEXPLAINED = 0.25  # of the error, which a factor takes away: rounding shifts the mean as well


def of_numbers(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Return what the numbers of a result, of which the outputs `names` are wrong, say alone."""
    return (
        infinite(wrong, names)
        or scaled(wrong, names)
        or other_products(wrong)
        or other_lse(wrong, names)
        or (other_logit(wrong) if wrong.case.sink_logits else None)
        or rows_scaled(wrong, names)
        or delta_scaled(wrong, names)
    )


def scaled(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Return the factor by which the one wrong output is off everywhere, if there is one."""
    name, expected = names[0], wrong.expected
    if len(names) != 1 or wrong.got[name].numel() < _FEWEST:
        return None
    out, truth, honest = wrong.got[name].double(), expected.truth[name], expected.honest[name]
    factor = float((out * truth).sum() / (truth * truth).sum())
    if not math.isfinite(factor) or abs(factor) < _NEXT_TO_NOTHING:
        return None
    times = dataclasses.replace(
        expected, truth={name: factor * truth}, honest={name: factor * honest}
    )
    apart = (out - factor * truth).norm()
    if find_differences({name: wrong.got[name]}, times) or apart > _LEFT_OVER * out.norm():
        return None
    if apart > _UNEXPLAINED * (out - truth).norm():
        return None
    return by_numbers("OUTPUT-SCALED", name=name, times=_words(wrong.case, factor), factor=factor)


def infinite(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Say that lse is infinite everywhere, or at the number that stands for -inf.

    A state that never changes gives that. Of the rows of a matrix also where lse is infinite or
    NaN: of others NaN was seen as it came.
    """
    lse, truth = wrong.got.get("lse"), wrong.expected.truth.get("lse")
    if "lse" not in names or not truth.isfinite().all():
        return None
    if (lse <= NEXT_TO_MINUS_INF).all():
        return by_numbers("LSE-INFINITE")
    if lse.isfinite().any():
        return None
    return by_numbers("LSE-INFINITE", variant="plus") if wrong.case.rows is not None else None


def other_products(wrong: Outputs) -> Sighting | None:
    """Say of which products of x and w, or of which of the two alone, y is the sum."""
    if wrong.case.rows is None or "y" not in wrong.got or wrong.case.rows < _FEWEST:
        return None
    if not {"x", "w"} <= wrong.inputs.all.keys():  # of another problem on rows
        return None
    x, w = (wrong.inputs.all[name].double() for name in ("x", "w"))
    y, truth = wrong.got["y"].double(), wrong.expected.truth["y"]
    sums = {"x * w": x @ w, "x": x.sum(1), "x * x": (x * x).sum(1), "w": w.sum() + 0.0 * x[:, 0]}
    if not y.isfinite().all():
        return None
    factors = factors_of(torch.stack([*sums.values()]), y, _LEFT_OVER * float((y - truth).norm()))
    if factors is None:
        return None
    if (factors - factors.round()).abs().max() > _LEFT_OVER:  # a number of no meaning
        return None
    terms = zip(factors.tolist(), sums, strict=True)
    made = [_times(factor) + name for factor, name in terms if abs(factor) > _LEFT_OVER]
    return by_numbers("OTHER-PRODUCTS", made=" + ".join(made) or "0") if made else None


def other_lse(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Return by which factors lse is made of the maximum of a row, its sum and their logarithm."""
    lse, truth = wrong.got.get("lse"), wrong.expected.truth.get("lse")
    if names != ("lse",) or wrong.case.rows is not None or not lse.isfinite().all():
        return None
    known = wrong.known
    largest = known.scores().masked_fill(~known.visible(), -math.inf).amax(-1)
    log_sum = truth - largest
    parts = {"maximum": largest, "ln(sum)": log_sum, "sum": log_sum.exp()}
    if lse.numel() < _FEWEST:
        return None
    most = _UNEXPLAINED_LSE * float((lse.double() - truth).norm())
    basis = torch.stack([part.flatten() for part in parts.values()])
    factors = factors_of(basis, lse.double().flatten(), most)
    if factors is None:
        return None
    terms = zip(factors.tolist(), parts, strict=True)
    made = [_times(factor, known.scale) + name for factor, name in terms if abs(factor) > _ALIKE]
    return by_numbers("OTHER-LSE", made=" + ".join(made) or "0")


def _times(factor: float, scale: float = 0.0) -> str:
    """Return the factor before a name, by its own name where it has one."""
    named = {"": 1.0, "ln(2) * ": math.log(2.0), "log2(e) * ": 1.0 / math.log(2.0)}
    if scale:  # of a maximum that nobody scaled, in one unit or the other
        named |= {f"1 / softmax_scale * {name}": value / scale for name, value in named.items()}
    near = (name for name, v in named.items() if abs(abs(factor) - v) < _ALIKE * v)
    found = next(near, None)
    return f"{factor:.4g} * " if found is None else "-" * (factor < 0.0) + found


def rows_scaled(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Say that each row of `out` is right but for a factor, another one in another row."""
    if names[0] != "out":
        return None
    out, truth = wrong.got["out"].double(), wrong.expected.truth["out"]
    if truth.dim() != 4 or min(truth.shape[2:]) < _FEWEST or not out.isfinite().all():
        return None
    factors = (out * truth).sum(-1, keepdim=True) / (truth * truth).sum(-1, keepdim=True)
    if not (factors.abs() > _NOTHING).all():
        return None
    of_out = dataclasses.replace(wrong.expected, truth={"out": truth})
    if find_differences({"out": out / factors}, of_out):
        return None
    if (out - factors * truth).norm() > _UNEXPLAINED * (out - truth).norm():
        return None
    least, most = (float(getattr(factors, which)()) for which in ("min", "max"))
    term = None if wrong.case.sink_logits else _one_term(wrong, factors[..., 0])
    variant = "" if term is None else "of_a_term"
    return by_numbers("ROWS-SCALED", variant=variant, least=least, most=most, term=term)


def _one_term(wrong: Outputs, factors: torch.Tensor) -> float | None:
    """Return what the sum of the weights holds beside them where that is one number in all rows."""
    known = wrong.known
    sums = known.scores().masked_fill(~known.visible(), -math.inf).exp().sum(-1)
    shares, per_term = 1.0 / factors - 1.0, 1.0 / sums
    term = float((shares * per_term).sum() / (per_term * per_term).sum())
    if not term > _ANY or (shares - term * per_term).norm() > _LEFT_OVER * shares.norm():
        return None
    return term


def delta_scaled(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Return how often delta counts in dS, where gradients are right but for that."""
    without = next((m for m in mistakes_for(wrong.problem_id) if m.id == "DELTA-MISSING"), None)
    if without is None or not set(names) <= {"dq", "dk"}:
        return None
    predicted = without.predict(dict(wrong.inputs.all), wrong.case.kwargs)
    if predicted is None:
        return None
    flat = [
        torch.cat([values[name].double().flatten() for name in names])
        for values in (predicted, wrong.got, wrong.expected.truth)
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
    are = " and ".join(names) + (" are those" if len(names) > 1 else " is that")
    inverse = 1.0 / wrong.case.head_dim
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
