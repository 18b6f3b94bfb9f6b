"""Fits another P or another delta to a wrong gradient.

P may be another function of scores and lse, or have another mask.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from grader.causes.outputs import LOG2E, TILES
from grader.causes.rules.head import Head
from grader.causes.rules.sighting import Sighting, by_numbers

_LARGEST = 300.0  # exponent
_SAME = 1e-2  # relative, of two vectors


def other_weights(head: Head) -> Sighting | None:
    """Find another P, of other scores or another lse; of those that fit, the nearest."""
    best, least = None, math.inf
    for text, of_mask, probs in _candidates(head):
        made = head.product(head.weights(probs))
        if not head.explained(made):
            continue
        # Large rows decide what fits; all rows, relative to their size, decide what is nearest.
        off = (made - head.got).norm(dim=1) / head.got.norm(dim=1).clamp(min=1e-300)
        if (distance := float(off.clamp(max=1.0).sum())) < least:
            best, least = (text, of_mask), distance
    if best is None:
        return None
    return by_numbers(
        "OTHER-PROBABILITIES", name=head.name, text=best[0], of_mask=best[1], where=head.where
    )


def _candidates(head: Head) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yield other ways to compute P: the formula, the mask in words, and P."""
    scores, lse, visible = head.scores, head.lse[..., None], head.visible
    seen = scores.masked_fill(~visible, -math.inf)
    units = {"S": 1.0, "S * log2(e)": LOG2E, "S * ln(2)": 1.0 / LOG2E, "q k^T": 1.0 / head.scale}
    units |= {"q k^T * log2(e)": LOG2E / head.scale, "S * softmax_scale": head.scale}
    factors = {" - lse": 1.0, "": 0.0, " - lse * log2(e)": LOG2E, " - lse * ln(2)": 1.0 / LOG2E}
    factors |= {" - 2 * lse": 2.0, " + lse": -1.0, " - lse * softmax_scale": head.scale}
    of_lse = {text: factor * lse for text, factor in factors.items()}
    largest = seen.amax(-1, keepdim=True)
    others = {
        " - exp(lse)": lse.exp(),
        " - maximum of the query": largest,
        " + maximum of the query - lse": lse - largest,
        " - lse of the query before": lse.roll(1, -2),
        " - lse of query 0": lse[:, :1],
        " - lse of the first head of the group": lse[:1],
    }
    if scores.shape[1] == scores.shape[2]:
        others[" - lse of the query with the number of the key"] = lse.mT
    shifts = [(unit, shift) for unit in units for shift in of_lse][1:]
    for unit, shift in [*shifts, *(("S", shift) for shift in others)]:
        exponent = units[unit] * seen - (of_lse | others)[shift]
        if float(exponent.amax()) <= _LARGEST:
            yield f"exp({unit}{shift})", "", exponent.exp()
    yield "exp(S) / lse", "", seen.clamp(max=_LARGEST).exp() / lse
    yield "exp(S) / (sum of exp(S) over the queries)", "", seen.softmax(1).nan_to_num(0.0)
    everything = scores - lse
    shown = dict(list(masks_of(head))[1:])
    if scores.shape[1] == scores.shape[2]:
        shown[", with the mask transposed"] = visible.mT
    filled = {text: everything.masked_fill(~mask, -math.inf) for text, mask in shown.items()}
    filled[", with P = 1 for hidden pairs"] = torch.where(visible, everything, 0.0)
    zeros = torch.where(visible, everything, -lse)
    for text, mask in masks_of(head):
        if text:  # not the right mask
            where = text.replace("without the mask", "with S = 0 for hidden pairs")
            filled[where] = zeros.masked_fill(~mask, -math.inf)
    for of_mask, exponent in filled.items():
        if float(exponent.amax()) <= _LARGEST:
            yield "exp(S - lse)", of_mask, exponent.exp()


def masks_of(head: Head) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield masks of visible pairs, each after its words; the right one first."""
    yield "", head.visible
    yield ", without the mask", torch.ones_like(head.visible)
    queries, keys = head.visible.shape
    for tile in TILES:
        same = torch.arange(queries)[:, None] // tile == torch.arange(keys)[None, :] // tile
        if tile < keys:
            yield f", without the mask in tiles of {tile} on the diagonal", head.visible | same


def other_delta(head: Head) -> Sighting | None:
    """Find other numbers than delta, one for each query, that are subtracted from a right dP."""
    if head.name == "dv":
        return None
    if head.name == "dk":
        return _by_name(head)
    part = head.product(head.probs)  # the share of a delta of 1, (queries, head_dim)
    whole = head.product(head.probs * head.dprobs)
    size = (part * part).sum(-1)
    found = ((whole - head.got) * part).sum(-1) / size.clamp(min=1e-300)
    if not head.explained(whole - found[:, None] * part):
        return None
    # Of a query that sees one key dS is 0 with delta alone, and else anything.
    delta = head.delta[0]
    wrong = (found - delta).abs() > _SAME * delta.abs().max()
    if not wrong.any():
        return None
    name = next((n for n, d in _other_deltas(head).items() if _alike(found, d[0], size > 0.0)), "")
    query = int(((found - delta).abs() * wrong).argmax())
    return _with_delta(
        head,
        name,
        f"; for query {query} it is {float(found[query]):.4g}, and delta is"
        f" {float(delta[query]):.4g}",
    )


def _by_name(head: Head) -> Sighting | None:
    """Try named deltas on dk: each of its rows sums up all queries, so that none is solved for."""
    for name, delta in _other_deltas(head).items():
        weights = head.probs * (head.dprobs - delta[..., None])
        if head.explained(head.product(weights)):
            return _with_delta(head, name, "")
    return None


def _other_deltas(head: Head) -> dict[str, torch.Tensor]:
    """Return what may stand in place of delta, (heads, queries), by name."""
    dout, out, q = head.dout, head.out, head.q
    half = dout.shape[-1] // 2
    rolled = head.delta.roll(1, -1)
    return {
        "sum(out * out)": (out * out).sum(-1),
        "sum(dout * dout)": (dout * dout).sum(-1),
        "sum(dout)": dout.sum(-1),
        "sum(out)": out.sum(-1),
        "sum(dout * q)": (dout * q).sum(-1),
        "sum(out * q)": (out * q).sum(-1),
        "sum(dout * out) over the first half of head_dim": (dout * out)[..., :half].sum(-1),
        "delta of the query before": rolled,
        "lse": head.lse,
        "max(dout * out)": (dout * out).amax(-1),
        "delta of the first query": head.delta[..., :1].expand_as(head.delta),
        "the sum of delta over all queries": head.delta.sum(-1, keepdim=True).expand_as(rolled),
    }


def _alike(found: torch.Tensor, other: torch.Tensor, known: torch.Tensor) -> bool:
    off = (found - other)[known]
    return bool(off[1:].norm() <= _SAME * other[known][1:].norm())


def _with_delta(head: Head, name: str, example: str) -> Sighting:
    return by_numbers(
        "OTHER-DELTA",
        variant="named" if name else "",
        where=head.where,
        name=head.name,
        delta=name,
        example=example,
    )
