"""Compares what a submission returned with the reference, under a derived tolerance.

Allowed error = c x the error of an honest computation of the same precision (reference, the same
case) + a floor. The floor is a small multiple of the unit roundoff times the sum of the absolute
values of the terms that an output adds up: what rounding P, the output and, backward, delta and dS
to the working precision can do at worst, and nothing a wrong rule could hide in. fp32 counts as
TF32 where the problem says so and the case is not about precision: `tl.dot` computes TF32 on a GPU
unless asked otherwise, and that is one mistake, not one in every check.
Comparisons are written so that NaN fails.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch

import reference
from grader.base.dtypes import UNIT_ROUNDOFF, as_tf32
from grader.spec.cases import Case
from grader.spec.grade_record import ErrorMap
from grader.spec.inputs import Inputs
from grader.spec.problem import Problem

# In units of the unit roundoff. P, the output, and backward delta and dS are rounded once each (4,
# worst case; the norm averages, so 2). fp32: exp2 is good to 2**-22 and the scaled logit is rounded
# (16, and 8 for the norm).
_NORM_FLOOR = {"fp16": 2.0, "bf16": 2.0, "tf32": 2.0, "fp32": 8.0}
_ELEMENT_FLOOR = {"fp16": 4.0, "bf16": 4.0, "tf32": 4.0, "fp32": 16.0}
# Careful answers divide by running_sum + 1e-6. The sum is at least 1, the weight of the maximum; in
# the backward pass that error is in P, by way of lse, and in delta.
_DENOMINATOR = 1e-6
# A score is the rounded sum of head_dim products, scaled, and rounded again as a difference from
# the maximum or from lse: a relative error of its roundoff times |score| in every P. The honest
# result has it too, but on a few rows it may come out near 0.
_SCORE_FLOOR = 3.0
# In the backward pass, lse was rounded to fp32 as well: its roundoff times |lse|, once in natural
# and once in log2 units.
_LSE_FLOOR = 3.0
# The honest row sum is the truth rounded once, and so is every right answer. A sum of n products
# one by one, as in a loop over columns or `tl.dot` on a GPU, rounds n times: a random walk, of
# which sqrt(n) units are about three standard deviations.
_ROW_SUM_FLOOR = 0.1
# Cosine of the angle between two errors that are called alike. Dots in TF32 come to 0.5 and more;
# weights or inputs that are rounded to fp16 or bf16 instead stay below 0.15 (tests/test_tf32.py).
_ALIKE = 0.4
_PLURALS = {"batch": "batches", "query": "queries"}


@dataclasses.dataclass(frozen=True)
class Expected:
    """What the judge knows of one case: per output the fp64 truth, the honest result, the scale.

    `precision` is fp32, tf32, fp16 or bf16; `factor` the c of the tolerance; `num_cols` how many
    products a row sum adds up.
    """

    truth: dict[str, torch.Tensor]
    honest: dict[str, torch.Tensor]
    magnitude: dict[str, torch.Tensor]
    precision: str
    factor: float
    num_cols: int = 1

    @functools.cached_property
    def allowed(self) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Per output the allowed error of every element, and of the norm over each head."""
        return {name: _allowed(name, self, truth) for name, truth in self.truth.items()}


@dataclasses.dataclass(frozen=True)
class Difference:
    """One output that is outside its tolerance; `margin` is error / allowed, at its worst.

    `place` is the index of the worst element.
    """

    name: str
    margin: float
    first: str
    worst: str | None
    extent: str
    wrong: torch.Tensor
    errors: ErrorMap | None
    place: tuple[int, ...]


def expect(
    problem: Problem, case: Case, inputs: Inputs, names: tuple[str, ...], *, tf32: bool = False
) -> Expected:
    """Return truth, honest result and magnitudes of `names`, computed from the judge's inputs.

    With `tf32`, dots of fp32 may cut their operands to TF32 where the case does not let them.
    """
    oracle = getattr(reference, problem.oracle)
    options = case.kwargs

    def run(tensors: dict[str, torch.Tensor], dout: torch.Tensor | None) -> dict[str, Any]:
        if any(name in problem.gradients for name in names):
            return reference.gradients(oracle, tensors, dout, **options)
        returned = oracle(**tensors, **options)
        values = returned if isinstance(returned, tuple) else (returned,)
        return dict(zip(problem.returns, values, strict=True))

    precision = case.dtype
    tensors, dout = inputs.tensors, inputs.dout
    if case.dtype == "fp32" and (tf32 or not problem.asks_ieee(case)):
        precision = "tf32"
        tensors = {n: as_tf32(t) if t.dim() > 1 else t for n, t in tensors.items()}
        dout = None if dout is None else as_tf32(dout)
    exact = {name: t.double() for name, t in inputs.tensors.items()}
    truth = run(exact, None if inputs.dout is None else inputs.dout.double())
    honest = run(tensors, dout)
    magnitude = reference.magnitudes(problem.id, inputs.tensors, inputs.dout, **options)
    present = [name for name in names if name in truth]
    return Expected(
        truth={name: truth[name] for name in present},
        honest={name: honest[name] for name in present},
        magnitude=magnitude,
        precision=precision,
        factor=problem.tolerance.factor,
        num_cols=case.cols or 1,
    )


def find_differences(got: dict[str, torch.Tensor], expected: Expected) -> list[Difference]:
    """Return every output that is outside its tolerance."""
    found = (_difference(name, got[name], expected) for name in expected.truth)
    return [difference for difference in found if difference is not None]


def is_of_tf32(got: torch.Tensor, name: str, expected: Expected, cut: Expected) -> bool:
    """Whether the error of one output is that of operands cut to TF32, as `cut` expects them.

    It is then small for TF32 and has about the direction of the error of cut inputs; not exactly,
    as the weights are cut as well, and q only after it is scaled.
    """
    truth = expected.truth[name].double()
    error, of_cut = got.double() - truth, cut.honest[name].double() - truth
    size = _norm(error, tuple(range(error.dim()))) * _norm(of_cut, tuple(range(error.dim())))
    alike = (error * of_cut).sum() / size.clamp_min(torch.finfo(torch.float32).tiny)
    return alike.item() >= _ALIKE and _difference(name, got, cut) is None


def right_without_kernels(
    names: Iterable[str], idle: dict[str, torch.Tensor], expected: Expected, earlier: Expected
) -> tuple[str, ...]:
    """Return the outputs of a call that are right though its kernels did nothing.

    Args:
        names: the outputs that are judged.
        idle: outputs of a call whose kernels did nothing, by name.
        expected: what is right for that call.
        earlier: what was right for an earlier call of the same sizes with other values. An output
            for which this, or zero, would be right as well says nothing: it may be what was there
            before.
    """

    def is_right(name: str, value: torch.Tensor) -> bool:
        alone = dataclasses.replace(expected, truth={name: expected.truth[name]})
        return not find_differences({name: value.to(idle[name].dtype)}, alone)

    return tuple(
        name
        for name in names
        if is_right(name, idle[name])
        and not is_right(name, earlier.truth[name])
        and not is_right(name, torch.zeros_like(idle[name]))
    )


def element_errors(
    name: str, got: torch.Tensor, expected: Expected, around: torch.Tensor | None = None
) -> torch.Tensor:
    """Return error / allowed of every element of one output; infinite where it is not finite.

    The error is the distance from the truth or, if given, from the numbers `around`, with the error
    that is allowed there.
    """
    wanted, (allowed, _) = expected.truth[name], expected.allowed[name]
    if around is not None:
        wanted = around
        if name == "y":
            allowed, _ = _allowed(name, expected, around)
    return _over_allowed(_error(got, wanted), allowed, got)


def _error(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    got, wanted = got.double(), wanted.double()
    error = (got - wanted).abs_()
    if not _is_finite(error):  # equal infinities are no error
        error.masked_fill_(got == wanted, 0.0)
    return error


def _over_allowed(error: torch.Tensor, allowed: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
    by_element = error / allowed
    if _is_finite(by_element):  # so is all that went into it
        return by_element
    bad = ~torch.isfinite(got) & (error != 0.0)
    return by_element.masked_fill_(bad | by_element.isnan(), torch.inf)


def _is_finite(errors: torch.Tensor) -> bool:
    """Whether numbers that are not negative are all finite, in one pass."""
    return not errors.numel() or errors.max().item() < math.inf


def _allowed(
    name: str, expected: Expected, around: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the allowed error of every element around some numbers, and of each head's norm."""
    precision, factor = expected.precision, expected.factor
    unit = UNIT_ROUNDOFF[precision]
    truth, magnitude = expected.truth[name].double(), expected.magnitude[name].double()
    honest_error = (expected.honest[name].double() - truth).abs().nan_to_num(0.0, 0.0, 0.0)
    dims = _dims_of_a_head(truth)
    worst_honest = honest_error.amax(dims, keepdim=True) if dims else honest_error
    largest = 0.0  # of the scores, as lse shows it
    if "lse" in expected.magnitude:
        largest = expected.magnitude["lse"].nan_to_num(0.0, 0.0, 0.0).max().item()
    relative = _DENOMINATOR
    floor, norm_floor = _ELEMENT_FLOOR[precision], _NORM_FLOOR[precision]
    if name.startswith("d"):
        relative *= 2.0
        relative += (_SCORE_FLOOR + _LSE_FLOOR) * UNIT_ROUNDOFF["fp32"] * largest
    elif name == "out":
        relative += _SCORE_FLOOR * UNIT_ROUNDOFF["fp32"] * largest
    elif name == "y":  # a sum of fp32 products, rounded once: the terms carry fp32 roundoff only
        relative, walk = 0.0, math.sqrt(expected.num_cols)
        floor, norm_floor = max(floor, walk), max(norm_floor, walk / 2.0)
        magnitude = UNIT_ROUNDOFF["fp32"] / unit * magnitude + _ROW_SUM_FLOOR * around.abs()
    allowed = factor * worst_honest + (floor * unit + relative) * magnitude
    norm_allowed = factor * _norm(honest_error, dims)
    norm_allowed += (norm_floor * unit + relative) * _norm(magnitude, dims)
    tiny = torch.finfo(torch.float32).tiny
    return allowed.clamp_min(tiny).expand_as(truth), norm_allowed.clamp_min(tiny)


def _dims_of_a_head(values: torch.Tensor) -> tuple[int, ...]:
    return tuple(range(min(2, max(values.dim() - 1, 0)), values.dim()))


def _norm(values: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    return values.square().sum(dims).sqrt() if dims else values


def _worst(ratio: torch.Tensor) -> float:
    worst = ratio.max().item() if ratio.numel() else 0.0
    return worst if math.isfinite(worst) else math.inf


def _difference(name: str, got: torch.Tensor, expected: Expected) -> Difference | None:
    truth = expected.truth[name]
    error, (allowed, norm_allowed) = _error(got, truth), expected.allowed[name]
    by_element = _over_allowed(error, allowed, got)
    by_head = _norm(error, _dims_of_a_head(truth)) / norm_allowed
    if bool((by_element <= 1.0).all()) and bool((by_head <= 1.0).all()):
        return None
    wrong = ~(by_element <= 1.0)
    if not wrong.any():  # small everywhere, too large as a whole: show the largest
        wrong = by_element == by_element.max()

    def shown(index: tuple[int, ...]) -> str:
        values = got[index].item(), truth[index].item(), allowed[index].item()
        return _element(name, index, *values, by_element[index].item())

    first = tuple(torch.nonzero(wrong)[0].tolist())
    largest = int(by_element.argmax())
    worst = tuple(int(i) for i in np.unravel_index(largest, tuple(truth.shape)))
    return Difference(
        name=name,
        margin=max(_worst(by_element), _worst(by_head)),
        first=shown(first),
        worst=None if worst == first else shown(worst),
        extent=_extent(name, got, wrong),
        wrong=wrong,
        errors=_error_map(name, by_element, worst),
        place=worst,
    )


def _error_map(name: str, by_element: torch.Tensor, worst: tuple[int, ...]) -> ErrorMap | None:
    """Return error / allowed of the head in which the element `worst` is, a letter per cell.

    None where each element is within its tolerance, and only the head as a whole is not.
    """
    heads = worst[: min(2, by_element.dim() - 1)]
    head = by_element[heads]
    if bool((head <= 1.0).all()):
        return None
    head = head.reshape(head.shape[0], -1)
    sides = [math.ceil(length / ErrorMap.MOST_CELLS) for length in head.shape]
    # A cell at the lower or right edge may be cut: its missing part counts as right.
    missing = [-length % side for length, side in zip(head.shape, sides, strict=True)]
    padded = torch.nn.functional.pad(head, (0, missing[1], 0, missing[0]))
    cells = padded.unflatten(1, (-1, sides[1])).unflatten(0, (-1, sides[0])).amax((1, 3))
    return ErrorMap(
        output=name,
        batch=heads[0] if heads else None,
        head=heads[1] if len(heads) > 1 else None,
        num_rows=head.shape[0],
        num_columns=head.shape[1],
        cell_rows=sides[0],
        cell_columns=sides[1],
        rows=tuple("".join(map(_letter, row)) for row in cells.tolist()),
    )


def _letter(ratio: float) -> str:
    if not math.isfinite(ratio):
        return ErrorMap.NOT_FINITE
    return ErrorMap.OK if ratio <= 1.0 else str(min(9, 1 + int(2.0 * math.log10(ratio))))


def _element(
    name: str, index: tuple[int, ...], got: float, truth: float, allowed: float, ratio: float
) -> str:
    place = ", ".join(map(str, index))
    shown_got, shown_truth = distinct(got, truth)
    text = f"{name}[{place}]   got {shown_got}   expected {shown_truth}   allowed {allowed:.2g}"
    if not math.isfinite(ratio):
        return text
    return text + (f"   ({ratio:,.0f}x)" if ratio >= 10 else f"   ({ratio:.2g}x)")


def distinct(got: float, expected: float, most: int = 16) -> tuple[str, str]:
    """Write two numbers with as many digits, from six to `most`, as make them differ."""
    for digits in range(6, most + 1):
        texts = f"{got:.{digits}g}", f"{expected:.{digits}g}"
        if texts[0] != texts[1]:
            break
    return texts


def _extent(name: str, got: torch.Tensor, wrong: torch.Tensor) -> str:
    """Say how far an error reaches: share of elements, and the rows, heads, batches it spares."""
    parts = [f"{_percent(wrong.sum().item(), wrong.numel())} of {name} is outside the tolerance"]
    labels = {4: ("batch", "head", "row"), 3: ("batch", "head", "row"), 1: ("row",)}
    for axis, label in enumerate(labels.get(wrong.dim(), ())):
        others = tuple(d for d in range(wrong.dim()) if d != axis)
        hit = wrong.any(others) if others else wrong
        if hit.numel() > 1 and not hit.all():
            parts.append(f"{named_ranges(label, hit)} of {hit.numel()}")
    nan = int(got.isnan().sum())
    infinite = int(got.isinf().sum())
    parts.append(f"{nan} NaN" if nan else "no NaN")
    if infinite:
        parts.append(f"{infinite} infinite")
    return "; ".join(parts)


def _percent(part: int, whole: int) -> str:
    share = 100.0 * part / max(whole, 1)
    return "less than 0.1 %" if 0 < share < 0.1 else f"{share:.3g} %"


def are(names: Sequence[str]) -> str:
    """Write "out is", "out and lse are" or "dq, dk and dv are"."""
    *first, last = names
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"


def ranges(hit: torch.Tensor | np.ndarray) -> str:
    """Write the true positions of a 1-D mask as ranges, three at the most."""
    return ranges_of(_positions(hit))


def named_ranges(what: str, hit: torch.Tensor | np.ndarray) -> str:
    """Write "row 3", "rows 0-50, 52" or "batches 0, 1" for the true positions of a 1-D mask."""
    return named(what, _positions(hit))


def named(what: str, positions: Collection[int]) -> str:
    """Write positions as ranges after what they number: "query 3", "queries 0-50, 52"."""
    many = _PLURALS.get(what, f"{what}s")
    return f"{what if len(positions) == 1 else many} {ranges_of(positions)}"


def _positions(hit: torch.Tensor | np.ndarray) -> list[int]:
    return torch.nonzero(torch.as_tensor(hit)).flatten().tolist()


def ranges_of(positions: Iterable[int]) -> str:
    """Write positions as ranges, three at the most."""
    found: list[list[int]] = []
    for position in sorted(set(positions)):
        if found and position == found[-1][1] + 1:
            found[-1][1] = position
        else:
            found.append([position, position])
    texts = [f"{a}" if a == b else f"{a}-{b}" for a, b in found[:3]]
    return ", ".join(texts) + (", ..." if len(found) > 3 else "")
