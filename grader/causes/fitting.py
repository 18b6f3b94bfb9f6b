"""How a known mistake agrees with a wrong result.

Most mistakes make no difference in most cases: they return the very tensors that are right, and so
do many others. Each tensor is therefore compared once, and its comparison stored while it lives.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

import torch

import reference
from grader.causes.outputs import NEXT_TO_MINUS_INF, Outputs
from grader.checks.correctness import Expected, element_errors
from grader.spec.cases import Case
from grader.spec.inputs import Inputs

# A result follows a mistake within this many times the tolerance. In fp32 a mistake may make scores
# 1 / softmax_scale**2 times as large, and their rounding as well.
_CLOSE, _CLOSE_FP32 = 3.0, 64.0
# A mistake changes an element that it moves by this many times the tolerance; by fewer where the
# result follows it to fp32 rounding.
_APART, _APART_IF_EXACT = 20.0, 3.0
# A result also follows a mistake that it is this much closer to than the mistake is to the truth.
_MUCH_CLOSER = 1e-5
_FAR_TOO_LARGE = 1e3  # times the largest right number of a head
_NEXT_TO_IT = 0.1  # of the distance between a mistake and the truth
# An output of few numbers may be within the tolerance of a mistake by chance: it must be as near as
# this share of the mistake, and of its distance from the truth. So must all that is wrong where a
# mistake changes no element by much.
_FEW, _NEXT_TO_MISTAKE = 16, 0.03
_MOST = 0.75  # of what the mistake changes must be as the mistake has it; the rest may be right
# Where nearly all elements stop short of a mistake by the same share of the way, it is another one:
# delta / head_dim is not delta left out.
_SHORT, _SHORT_SPREAD, _SHORT_ELEMENTS = 4e-3, 0.5, 64


class Fit(enum.IntEnum):
    """How a known mistake agrees with a result, from worst to best."""

    CONTRADICTED = 0  # it would have changed what is not changed so
    SILENT = 1  # it makes no difference on this case
    INFINITE = 2  # what it changes grows out of all proportion, as many mistakes have it
    PARTLY = 3  # most of what it changes is as it has it, the rest is right; or it changes little
    WHOLE = 4  # all is as the mistake has it
    EXACTLY = 5  # the same, to fp32 rounding


class _Comparison(NamedTuple):
    """One output of a result beside one that a mistake predicts."""

    consistent: bool  # every element is right, as the mistake has it, or cannot be compared with it
    changed: int  # elements that the mistake makes plainly wrong
    followed: int  # of these, how many are as it has them
    explains: bool  # whether all that is wrong is next to what it has there
    is_infinite: bool  # whether it makes elements infinite, or so large that rounding decides


def best_fit(variants: list[reference.Mistake], result: Outputs) -> tuple[Fit, reference.Mistake]:
    """Return how well the best of a mistake's variants agrees with a result, and that variant."""
    best, shown = Fit.CONTRADICTED, variants[0]
    for mistake in variants:
        wrong = mistake.predict(dict(result.inputs.all), result.case.kwargs)
        fit = Fit.SILENT if wrong is None else _fit(wrong, result)
        if fit > best:
            best, shown = fit, mistake
        if best is Fit.EXACTLY:
            break
    return best, shown


def _fit(wrong: dict[str, torch.Tensor], result: Outputs) -> Fit:
    if result.tight is not None:
        # Try first whether the result follows the mistake to fp32 rounding, and not only to TF32's.
        share = _share_explained(wrong, result, result.tight)
        if share == 1.0:
            return Fit.EXACTLY
    share = _share_explained(wrong, result, result.expected)
    if share == 1.0:
        return Fit.EXACTLY if result.expected.precision == "fp32" else Fit.WHOLE
    if share is not None and share >= _MOST:
        return Fit.PARTLY
    names = result.expected.truth.keys() & wrong
    compared = {n: _compared(n, wrong[n], result, result.expected) for n in names}
    if not all(c.consistent for c in compared.values()):
        return Fit.SILENT if share is None else Fit.CONTRADICTED
    if any(c.is_infinite for c in compared.values()):
        return Fit.INFINITE
    if share is not None:
        return Fit.CONTRADICTED
    bad = [name for name, right in result.right.items() if not right.all()]
    explains = bool(bad) and all(n in compared and compared[n].explains for n in bad)
    return Fit.PARTLY if explains else Fit.SILENT


def _share_explained(
    wrong: dict[str, torch.Tensor], result: Outputs, close: Expected
) -> float | None:
    """Return how much of what a mistake changes a result has as the mistake does.

    0 if an element is neither right nor as the mistake has it; None if the mistake changes nothing.
    `close` has the tolerance for following the mistake.
    """
    changed = followed = 0
    consistent = True
    for name in result.expected.truth:
        if name not in wrong:
            continue
        compared = _compared(name, wrong[name], result, close)
        consistent &= compared.consistent
        changed += compared.changed
        followed += compared.followed
        if changed and not consistent:
            return 0.0
    return followed / changed if changed else None


def _compared(name: str, wrong: torch.Tensor, result: Outputs, close: Expected) -> _Comparison:
    """Compare one output with the one that a mistake predicts: once for a tensor."""
    found = result.compared.setdefault(wrong, {})
    key = name, close.precision
    if key not in found:
        found[key] = _compare(name, wrong, result, close)
    return found[key]


def _compare(name: str, wrong: torch.Tensor, result: Outputs, close: Expected) -> _Comparison:
    expected, got, truth = result.expected, result.got[name], result.expected.truth[name]
    near = _CLOSE_FP32 if close.precision == "fp32" else _CLOSE
    # NaN in a prediction means that the mistake leaves this element undetermined.
    undetermined = wrong.isnan()
    mistaken = torch.where(undetermined, truth, wrong.double())
    beyond = mistaken.abs() > torch.finfo(got.dtype).max  # the output has infinity there
    mistaken = torch.where(beyond, mistaken.sign() * torch.inf, mistaken)
    got = got.double()
    distance = element_errors(name, got, close, around=mistaken)
    moved_close = element_errors(name, mistaken, close)
    moved = moved_close if close is expected else element_errors(name, mistaken, expected)
    rounding = mistaken.abs().mul_(2.0 * torch.finfo(result.got[name].dtype).eps)
    much_closer = distance <= _MUCH_CLOSER * moved_close
    off = (got - mistaken).abs_()
    # Where a mistake makes numbers of a head far too large, all of them are rounded as the largest.
    far, largest = _FAR_TOO_LARGE * _largest_of_head(truth), _largest_of_head(mistaken)
    blown_up = (largest > far) & largest.isfinite()
    much_closer |= off <= rounding
    much_closer |= blown_up & (off <= _MUCH_CLOSER * largest)
    # An element that a mistake leaves at 0 must be 0: a small number is one that was computed.
    follows = much_closer | (distance <= near) & ((mistaken != 0.0) | (got == 0.0))
    next_to = off <= _NEXT_TO_MISTAKE * torch.minimum((mistaken - truth).abs(), mistaken.abs())
    # Not in 16 bits, where sums are no nearer to a mistake than the tolerance.
    if got.numel() <= _FEW and close.precision in ("fp32", "tf32"):
        follows &= much_closer | next_to
    infinite = mistaken.isinf()
    if infinite.any():
        # Very negative numbers stand for -inf, too.
        as_far = (got == mistaken) | (mistaken < 0.0) & (got <= NEXT_TO_MINUS_INF)
        follows = torch.where(infinite, as_far, follows)
    apart = moved > (_APART if close is expected else _APART_IF_EXACT)
    # Many mistakes lead to infinity, so it counts for none of them. A number in place of it counts
    # against them.
    apart &= (moved_close > 5.0 * near) & (~infinite | got.isfinite() & ~follows)
    # Rounding may change numbers so large by any factor: these neither follow nor contradict.
    too_large = blown_up & ~(got.abs() <= far)
    consistent = bool((result.right[name] | follows | undetermined | too_large).all())
    consistent = consistent and not _plainly_right(got, truth, mistaken, moved)
    consistent = consistent and not _stops_short(got, truth, mistaken, apart & follows)
    changed, followed = int(apart.sum()), int((apart & follows).sum())
    explains = bool((result.right[name] | next_to).all())
    is_infinite = bool((infinite | too_large & ~follows).any())
    return _Comparison(consistent, changed, followed, explains, is_infinite)


def _plainly_right(
    got: torch.Tensor, truth: torch.Tensor, mistaken: torch.Tensor, moved: torch.Tensor
) -> bool:
    """Whether an output that a mistake makes wrong is right, element by element.

    `moved` is error / allowed of the mistake. Where the tolerance is wide, as for sums that cancel,
    none of it need be far apart.
    """
    clear = (moved > _APART_IF_EXACT) & mistaken.isfinite() & got.isfinite()
    off = (got - truth).abs() < _NEXT_TO_IT * (mistaken - truth).abs()
    return bool(clear.any()) and bool(off[clear].all())


def _stops_short(
    got: torch.Tensor, truth: torch.Tensor, mistaken: torch.Tensor, followed: torch.Tensor
) -> bool:
    """Whether a result lies between the truth and a mistake, or beyond it, by one share everywhere.

    Rounding takes each element another way; what is within the tolerance all the same is a factor.
    """
    way = (mistaken - truth)[followed]
    if len(way) < _SHORT_ELEMENTS or not bool(way.isfinite().all()):
        return False
    far = way.abs() >= way.abs().median()  # where rounding counts least
    shares = ((got - mistaken)[followed][far] / way[far]).sort().values
    low, middle, high = (float(shares[int(q * (len(shares) - 1))]) for q in (0.05, 0.5, 0.95))
    return abs(middle) > _SHORT and high - low < _SHORT_SPREAD * abs(middle)


def _largest_of_head(values: torch.Tensor) -> torch.Tensor:
    """Return the largest absolute number of each head, which broadcasts over its elements."""
    dims = tuple(range(min(2, max(values.dim() - 1, 0)), values.dim()))
    return values.abs().amax(dims, keepdim=True)


def moves(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    expected: Callable[[], Expected],
    mistake: reference.Mistake,
) -> bool:
    """Whether a mistake would have made a result wrong by a wide margin.

    `expected` is asked only if the mistake changes anything.
    """
    wrong = mistake.predict(dict(inputs.all), case.kwargs) or {}
    right = reference.shared_answer(problem_id, dict(inputs.all), case.kwargs)
    changed = {name: value for name, value in wrong.items() if value is not right.get(name)}
    for name, truth in expected().truth.items() if changed else ():
        if name in changed:
            mistaken = changed[name].double()
            mistaken = torch.where(mistaken.isnan(), truth, mistaken)
            if bool((element_errors(name, mistaken, expected()) > _APART).any()):
                return True
    return False
