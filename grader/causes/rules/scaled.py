"""Outputs that are right but for a factor, and lse that is made of other terms."""

from __future__ import annotations

import dataclasses
import math

import torch

from grader.causes.outputs import LOG2E, NEXT_TO_MINUS_INF, Outputs, factors_of, names_of
from grader.causes.rules.fitted_logits import other_logit
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.checks.correctness import find_differences
from grader.spec.cases import Case
from reference import mistakes_for

_FEWEST = 16  # elements: one or two always have some factor
_NEXT_TO_NOTHING = 1e-4  # a factor that leaves nothing to compare
_NOTHING = 1e-12  # the same for a factor of one row
# Relative distance to a named factor; one fitted to 16 or more elements of 11 bits is nearer.
_ALIKE = 1e-3
_PLAIN = 0.1  # how near to 1 or -1 a factor of delta counts as that
_ANY = 5e-3  # least distance of a factor from 0, which the 1/head_dim of a mean is near
_OF_PLAIN = 0.2  # of the distance of a factor from 0, 1 and -1, that may be left unexplained
_LEFT_OVER = 0.02  # of the result: with a small factor, the tolerance would hide more than that
_MOST_PARTS = 8  # of a row without a key: any factor is near to that of some large number
_UNEXPLAINED_LSE = 1e-3  # of the error, where three factors are fitted to it
_UNEXPLAINED = 0.25  # of the error, at most: rounding shifts the mean, too, and looks like a factor


def of_numbers(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Return the mistake that numbers alone show, in a result whose outputs `names` are wrong."""
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
    """Find an lse that is everywhere -inf, or the number that stands for it: no state was updated.

    In problems on rows of a matrix +inf and NaN count as well; in attention, a trace shows where
    NaN began.
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
    """Find the terms that y sums up in place of x * w: other products, or x or w alone."""
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
    if (factors - factors.round()).abs().max() > _LEFT_OVER:  # only whole factors mean something
        return None
    terms = zip(factors.tolist(), sums, strict=True)
    made = [_times(factor) + name for factor, name in terms if abs(factor) > _LEFT_OVER]
    return by_numbers("OTHER-PRODUCTS", made=" + ".join(made)) if made else None


def other_lse(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Find factors with which lse is made of a row's maximum, its sum, and the sum's logarithm."""
    lse, truth = wrong.got.get("lse"), wrong.expected.truth.get("lse")
    if names != ("lse",) or wrong.case.rows is not None or not lse.isfinite().all():
        return None
    known = wrong.known
    largest = known.masked().amax(-1)
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
    """Return a factor as text to write before a term, by name where it has one."""
    named = {"": 1.0, "ln(2) * ": math.log(2.0), "log2(e) * ": LOG2E}
    if scale:  # of a maximum of unscaled scores, in either unit
        named |= {f"1 / softmax_scale * {name}": value / scale for name, value in named.items()}
    found = names_of(abs(factor), named)
    return "-" * (factor < 0.0) + found[0] if found else f"{factor:.4g} * "


def rows_scaled(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Find rows of `out` that are right but for a factor, which differs from row to row."""
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
    term = number = 0.0
    if not wrong.case.sink_logits:
        term, number = _extra_terms(wrong, factors[..., 0])
    variant = "of_a_term" if term else "of_empty_parts" if number else ""
    return by_numbers(
        "ROWS-SCALED", variant=variant, least=least, most=most, term=term, number=number
    )


def _extra_terms(wrong: Outputs, factors: torch.Tensor) -> tuple[float, int]:
    """Return the extra term in the sum of the weights, if it is one number in all rows, else 0.

    And how many terms of 1 some rows have more, if that explains them: parts without any key.
    """
    sums = wrong.known.masked().exp().sum(-1)
    shares, per_term = 1.0 / factors - 1.0, 1.0 / sums
    term = float((shares * per_term).sum() / (per_term * per_term).sum())
    if term > _ANY and (shares - term * per_term).norm() <= _LEFT_OVER * shares.norm():
        return term, 0
    number = (shares / per_term).round()
    left = (shares - number * per_term).norm()
    explains = left <= _LEFT_OVER * shares.norm()
    explains &= 0 <= number.min() < number.max() <= _MOST_PARTS
    return 0.0, int(number.max()) if explains else 0


def delta_scaled(wrong: Outputs, names: tuple[str, ...]) -> Sighting | None:
    """Find a factor of delta in dS but for which the wrong gradients are right."""
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
    """Return a factor as text, with the names of all that has this value in the case."""
    named: dict[str, float] = {}
    if case.rows is None:
        scale = case.kwargs.get("softmax_scale") or 1.0 / math.sqrt(case.head_dim)
        group = case.num_q_heads // case.num_kv_heads
        named = {"softmax_scale": scale, "1 / softmax_scale": 1.0 / scale}
        named |= {"log2(e)": LOG2E, "ln 2": math.log(2.0)}
        if group > 1:
            named |= {"the group size": group, "1 / the group size": 1.0 / group}
    alike = names_of(factor, named)
    return f"{factor:.4g}" + (f" ({' or '.join(alike)})" if alike else "")
