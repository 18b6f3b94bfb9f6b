"""Finds what a wrong `out` has in its denominator in place of exp(sink_logits[h]).

Rows of `out` that are right but for a factor each are wrong in the denominator alone. That is the
known sum of the weights of visible keys plus one more term, which each row thus determines.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import torch

from grader.causes.outputs import LOG2E, Outputs, unexplained
from grader.causes.rules.sighting import Sighting, by_numbers
from reference.variants import attend

_SHARE = 1e-3  # of a denominator: a term that has less cannot be read from it
_SAME = 1e-2  # relative, of two terms
_FEWEST = 16  # rows of a head
_MOST_TIMES = 64
_sighting = functools.partial(by_numbers, "OTHER-SINK-LOGIT")


@dataclasses.dataclass(frozen=True)
class _Denominators:
    """Numbers of which denominators are made, (batch, heads, queries) in fp64 if not said else."""

    got: torch.Tensor  # (batch, heads, queries, head_dim)
    truth: torch.Tensor
    of_keys: torch.Tensor  # out without a sink logit
    lse: torch.Tensor  # of the visible keys
    top: torch.Tensor  # the largest visible score, scaled
    sinks: torch.Tensor  # (heads,)
    scale: float

    def explained(self, term: torch.Tensor) -> bool:
        """Whether `term` beside the sum over the keys explains the result."""
        return self.explained_by(self.of_keys / (1.0 + term * torch.exp(-self.lse))[..., None])

    def explained_by(self, made: torch.Tensor) -> bool:
        """Whether `made` explains the result."""
        return float((made - self.got).norm()) <= unexplained(self.got, self.truth)

    def found(self) -> torch.Tensor:
        """Return the term beside the keys in each row; NaN where it is too small to be read."""
        size = (self.of_keys * self.of_keys).sum(-1)
        factor = (self.got * self.of_keys).sum(-1) / size.clamp(min=1e-300)
        share = 1.0 - factor
        term = self.lse.exp() * share / factor
        return term.masked_fill(~(share.abs() > _SHARE) | ~term.isfinite(), math.nan)


def other_logit(wrong: Outputs) -> Sighting | None:
    """Say what stands in the denominator in place of exp(sink_logits[h])."""
    case, got, truth = wrong.case, wrong.got.get("out"), wrong.expected.truth.get("out")
    if got is None or truth is None or case.seqlen_q < _FEWEST:
        return None
    known = wrong.known
    if case.dtype != "fp32" or known.sink_logits is None or not bool(got.isfinite().all()):
        return None
    if not known.sink_logits.isfinite().all():
        return None
    alone = attend(known, sink_logits=torch.full_like(known.sink_logits, -math.inf))
    scores = known.masked()
    top, sinks = scores.amax(-1), known.sink_logits
    rows = _Denominators(got.double(), truth, alone["out"], alone["lse"], top, sinks, known.scale)
    scores[..., 0] += sinks[:, None]  # as in models that give one key more weight by it
    if rows.explained_by(scores.softmax(-1) @ known.values()):
        return _sighting(variant="on_key_zero")
    for text, factor in _factors(rows):
        if rows.explained_by(rows.of_keys * factor[..., None]):
            return _sighting(variant="other_factor", factor=text)
    for text, term in _candidates(rows):
        if rows.explained(term):
            return _sighting(variant="other_term", term=text)
    found = rows.found()
    known = ~found.isnan()
    if not bool((known.sum(-1) >= _FEWEST // 2).all()) or not rows.explained(found.nan_to_num(0.0)):
        return None
    return _one_number(rows, found) or _counted(rows, found)


def _factors(rows: _Denominators) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield factors, in words first, that may replace the keys' share of all weights."""
    sink = _whole(rows.sinks, rows.top)
    share, both = torch.sigmoid(rows.lse - sink), torch.logaddexp(rows.lse, sink)
    yield "the weight of the sink logit", 1.0 - share
    yield "their share of the weights, twice", share * share
    yield "sigmoid(lse - sink_logits[h]) of an lse with the sink logit", torch.sigmoid(both - sink)


def _candidates(rows: _Denominators) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield other terms: in words, and as numbers, (batch, heads, queries)."""
    sinks, top = rows.sinks, rows.top
    factors = {
        "exp(-sink_logits[h])": -1.0,
        "exp(2 * sink_logits[h])": 2.0,
        "exp(sink_logits[h] * log2(e))": LOG2E,
        "exp(sink_logits[h] * ln(2))": 1.0 / LOG2E,
        "exp(sink_logits[h] * softmax_scale * log2(e))": rows.scale * LOG2E,
        "exp(sink_logits[h] / softmax_scale)": 1.0 / rows.scale if rows.scale else 0.0,
    }
    for text, factor in factors.items():
        yield text, _whole((factor * sinks).exp(), top)
    yield "sink_logits[h] itself, not its exponential", _whole(sinks, top)
    yield "exp(0), whatever the sink logit is", torch.ones_like(top)
    sink, keys = _whole(sinks, top), rows.lse.exp()
    both = torch.maximum(top, sink)
    for maximum in (top, both):
        yield "1 beside weights exp(score - maximum): exp(-maximum) is missing", maximum.exp()
        yield (
            "exp(sink_logits[h]) beside weights exp(score - maximum): the maximum was not"
            " subtracted from it",
            torch.exp(sink + maximum),
        )
        yield (
            "exp(sink_logits[h] - maximum) with a maximum in units of log2",
            torch.exp(sink + maximum - maximum * LOG2E),
        )
        yield (
            "exp2(sink_logits[h] - maximum), both in natural units",
            torch.exp((sink - maximum) / LOG2E + maximum),
        )
        yield "sink_logits[h] itself, not its exponential", sink * maximum.exp()
    yield (
        "exp(sink_logits[h] - maximum) with the maximum from before the sink logit was met",
        torch.exp(sink - top + both),
    )
    yield (
        "a sum of keys that was not rescaled when the sink logit raised the maximum",
        keys * (torch.exp(both - top) - 1.0) + sink.exp(),
    )
    fewer = torch.exp(top - both)
    yield (
        "a sum that was rescaled when the sink logit raised the maximum, while acc was not",
        keys * (fewer - 1.0) + fewer * sink.exp(),
    )
    yield "sink_logits[h] * exp(sink_logits[h])", sink * sink.exp()


def _whole(of_heads: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return of_heads[:, None].expand_as(like)


def _counted(rows: _Denominators, found: torch.Tensor) -> Sighting | None:
    """Find exp(sink_logits[h]) that counts again with each tile of a row."""
    times = found / _whole(rows.sinks.exp(), found)
    known = ~found.isnan()
    near = times.round()
    if bool(((times - near).abs() > _SAME)[known].any()):
        return None
    if float(near[known].min()) < 1.0 or not 2.0 <= float(near[known].max()) <= _MOST_TIMES:
        return None
    counts = near[0, 0][known[0, 0]]
    if bool((counts.diff() < 0.0).any()):  # later rows see more tiles
        return None
    return _sighting(variant="once_a_tile", first=float(counts[0]), last=float(counts[-1]))


def _one_number(rows: _Denominators, found: torch.Tensor) -> Sighting | None:
    """Find one number in all rows of each head, or the heads whose logits rows use instead."""
    due, known = rows.sinks.exp(), ~found.isnan()
    owners = (found[..., None] - due).abs() <= _SAME * due  # (batch, heads, queries, owners)
    own = owners.diagonal(dim1=1, dim2=3).transpose(1, 2)  # (batch, heads, queries)
    if bool((owners.any(-1) | ~known).all()) and bool((known & ~own).any()):
        batch, head, query = (int(n) for n in (known & ~own).nonzero()[0])
        owner = int(owners[batch, head, query].int().argmax())
        return _sighting(variant="of_other_heads", head=head, batch=batch, owner=owner)
    middle = found.nanmedian(-1).values  # (batch, heads)
    apart = (found - middle[..., None]).abs() > _SAME * middle[..., None].abs()
    if bool((apart & known).any()):
        return None
    times = middle / due
    often = float(times[0, 0].round())
    if 2.0 <= often <= _MOST_TIMES and bool(((times - often).abs() <= _SAME).all()):
        how = "twice" if often == 2.0 else f"{often:.0f} times"
        return _sighting(variant="often", often=how)
    off = (middle - due).abs() / due
    batch, head = divmod(int(off.argmax()), len(due))
    return _sighting(found=float(middle[batch, head]), head=head, batch=batch, due=float(due[head]))
