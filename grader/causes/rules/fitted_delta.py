"""What dS subtracts from dP, where that is one number for each query and not delta."""

from __future__ import annotations

import torch

from grader.causes.rules.head import Head
from grader.causes.rules.sighting import Sighting, by_numbers

_SAME = 1e-2  # relative, of two vectors


def other_delta(head: Head) -> Sighting | None:
    """P and dP are right, and what is subtracted is another number for each query."""
    if head.name == "dv":
        return None
    if head.name == "dk":
        return _by_name(head)
    part = head.product(head.probs, "k")  # what delta of 1 gives, (queries, head_dim)
    whole = head.product(head.probs * head.dprobs, "k")
    size = (part * part).sum(-1)
    found = ((whole - head.got) * part).sum(-1) / size.clamp(min=1e-300)
    if not head.explained(whole - found[:, None] * part):
        return None
    # Of a query that sees one key dS is 0 with delta alone, and else anything.
    delta = head.delta[0]
    wrong = (found - delta).abs() > _SAME * delta.abs().max()
    if not wrong.any():
        return None
    name = next((n for n, d in _others(head).items() if _alike(found, d[0], size > 0.0)), "")
    query = int(((found - delta).abs() * wrong).argmax())
    return _told(
        head,
        name,
        f"; for query {query} it is {float(found[query]):.4g}, and delta is"
        f" {float(delta[query]):.4g}",
    )


def _by_name(head: Head) -> Sighting | None:
    """The same of dk, to which all queries add: of what is known by name alone."""
    for name, delta in _others(head).items():
        weights = head.probs * (head.dprobs - delta[..., None])
        if head.explained(head.product(weights, "q")):
            return _told(head, name, "")
    return None


def _others(head: Head) -> dict[str, torch.Tensor]:
    """Return what may be taken for delta, (heads, queries), by name."""
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


def _told(head: Head, name: str, example: str) -> Sighting:
    return by_numbers(
        "OTHER-DELTA",
        variant="named" if name else "",
        where=head.where,
        name=head.name,
        delta=name,
        example=example,
    )
