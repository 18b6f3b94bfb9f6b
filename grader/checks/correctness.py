"""Compares what a submission returned with the oracle, under a derived tolerance.

Allowed error = c x the error of an honest computation of the same dtype (reference, the same
case) + a rounding floor. The floor is a small multiple of the unit roundoff times the sum of the
absolute values of the terms that an output adds up: what rounding P, the output and, backward,
delta and dS to the working dtype can do at worst, and nothing a wrong rule could hide in.
Comparisons are written so that NaN fails.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from grader.manifest import Case

# In units of the unit roundoff. Half types: P, the output, and backward delta and dS are rounded
# once each (4, worst case; the norm averages, so 2). fp32: exp2 is good to 2**-22 and the scaled
# logit is rounded (16, and 8 for the norm).
_NORM_FLOOR = {"fp16": 2.0, "bf16": 2.0, "fp32": 8.0}
_ELEMENT_FLOOR = {"fp16": 4.0, "bf16": 4.0, "fp32": 16.0}
# Backward, P is recomputed from an lse that is stored in fp32: a relative error of its roundoff
# times |lse| in every P, once in natural and once in log2 units.
_LSE_FLOOR = 3.0
# The honest row sum is the truth rounded once, and so is every right answer.
_ROW_SUM_FLOOR = 0.1
UNIT_ROUNDOFF = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-24}


@dataclasses.dataclass(frozen=True)
class Expected:
    """What the judge knows of one case: per output the fp64 truth, the honest result, the scale."""

    truth: dict[str, torch.Tensor]
    honest: dict[str, torch.Tensor]
    magnitude: dict[str, torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Difference:
    """One output that is outside its tolerance; `margin` is error / allowed, at its worst."""

    name: str
    margin: float
    first: str
    extent: str
    unwritten: bool


def find_difference(
    got: dict[str, torch.Tensor], expected: Expected, case: Case, factor: float
) -> Difference | None:
    """Return the first output that is outside its tolerance, or None when all are inside."""
    for name, truth in expected.truth.items():
        difference = _difference(name, got[name], truth, expected, case, factor)
        if difference is not None:
            return difference
    return None


def element_errors(
    name: str,
    got: torch.Tensor,
    truth: torch.Tensor,
    expected: Expected,
    dtype: str,
    factor: float,
) -> torch.Tensor:
    """Return error / allowed of every element of one output; infinite where it is not finite."""
    return _errors(name, got, truth, expected, dtype, factor)[0]


def _worst(ratio: torch.Tensor) -> float:
    worst = ratio.max().item() if ratio.numel() else 0.0
    return worst if math.isfinite(worst) else math.inf


def _errors(
    name: str,
    got: torch.Tensor,
    truth: torch.Tensor,
    expected: Expected,
    dtype: str,
    factor: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return error / allowed per element and per (batch, head), and the allowed error."""
    unit = UNIT_ROUNDOFF["fp32" if name == "lse" and dtype == "fp32" else dtype]
    got, truth = got.double(), truth.double()
    magnitude = expected.magnitude[name].double()
    honest_error = (expected.honest[name].double() - truth).abs().nan_to_num(0.0, 0.0, 0.0)
    error = (got - truth).abs()
    same = got == truth  # equal infinities have no difference
    error = torch.where(same, torch.zeros_like(error), error)

    dims = tuple(range(min(2, max(truth.dim() - 1, 0)), truth.dim()))
    worst_honest = honest_error.amax(dims, keepdim=True) if dims else honest_error
    recomputed = 0.0
    if name.startswith("d") and "lse" in expected.magnitude:
        largest = expected.magnitude["lse"].nan_to_num(0.0, 0.0, 0.0).max().item()
        recomputed = _LSE_FLOOR * UNIT_ROUNDOFF["fp32"] * largest
    if name == "y":  # a sum of fp32 products, rounded once: the terms carry fp32 roundoff only
        magnitude = UNIT_ROUNDOFF["fp32"] / unit * magnitude + _ROW_SUM_FLOOR * truth.abs()
    allowed = factor * worst_honest + (_ELEMENT_FLOOR[dtype] * unit + recomputed) * magnitude
    norm_allowed = factor * _norm(honest_error, dims)
    norm_allowed += (_NORM_FLOOR[dtype] * unit + recomputed) * _norm(magnitude, dims)
    tiny = torch.finfo(torch.float32).tiny
    by_element = error / allowed.clamp_min(tiny)
    by_head = _norm(error, dims) / norm_allowed.clamp_min(tiny)
    bad = ~torch.isfinite(got) & ~same
    by_element = torch.where(bad | by_element.isnan(), torch.inf, by_element)
    return by_element, by_head, allowed.expand_as(truth)


def _norm(values: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return values.square().sum(dims).sqrt() if dims else values


def _difference(
    name: str,
    got: torch.Tensor,
    truth: torch.Tensor,
    expected: Expected,
    case: Case,
    factor: float,
) -> Difference | None:
    by_element, by_head, allowed = _errors(name, got, truth, expected, case.dtype, factor)
    inside = bool((by_element <= 1.0).all()) and bool((by_head <= 1.0).all())
    if inside:
        return None
    wrong = ~(by_element <= 1.0)
    if not wrong.any():  # small everywhere, too large as a whole: show the largest
        wrong = by_element == by_element.max()
    index = tuple(torch.nonzero(wrong)[0].tolist())
    place = ", ".join(map(str, index))
    first = (
        f"{name}[{place}]   got {got[index].item():.6g}   expected {truth[index].item():.6g}"
        f"   allowed {allowed[index].item():.2g}"
    )
    return Difference(
        name=name,
        margin=max(_worst(by_element), _worst(by_head)),
        first=first,
        extent=_extent(name, got, wrong, case),
        unwritten=bool(got.isnan().any()),
    )


def _extent(name: str, got: torch.Tensor, wrong: torch.Tensor, case: Case) -> str:
    """Say how far an error reaches: share of elements, and the rows, heads, batches it spares."""
    parts = [f"{_percent(wrong.sum().item(), wrong.numel())} of {name} is outside the tolerance"]
    labels = {4: ("batch", "head", "row"), 3: ("batch", "head", "row"), 1: ("row",)}
    for axis, label in enumerate(labels.get(wrong.dim(), ())):
        others = tuple(d for d in range(wrong.dim()) if d != axis)
        hit = wrong.any(others) if others else wrong
        if hit.numel() > 1 and not hit.all():
            parts.append(f"{label} {_ranges(hit)} of {hit.numel()}")
    nan = int(got.isnan().sum())
    infinite = int(got.isinf().sum())
    parts.append(f"{nan} NaN" if nan else "no NaN")
    if infinite:
        parts.append(f"{infinite} infinite")
    return "; ".join(parts)


def _percent(part: int, whole: int) -> str:
    share = 100.0 * part / max(whole, 1)
    return "less than 0.1 %" if 0 < share < 0.1 else f"{share:.3g} %"


def _ranges(hit: torch.Tensor) -> str:
    """Write the true positions of a 1-D mask as ranges, three at the most."""
    positions = torch.nonzero(hit).flatten().tolist()
    ranges: list[list[int]] = []
    for position in positions:
        if ranges and position == ranges[-1][1] + 1:
            ranges[-1][1] = position
        else:
            ranges.append([position, position])
    texts = [f"{a}" if a == b else f"{a}-{b}" for a, b in ranges[:3]]
    return ", ".join(texts) + (", ..." if len(ranges) > 3 else "")
