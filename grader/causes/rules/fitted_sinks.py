"""Fits other sums to wrong gradients of sinks: of sink tokens, and of the sink logits."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

import torch

from grader.causes.outputs import LOG2E, TILES, Outputs
from grader.causes.rules.head import Head
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.checks.correctness import ranges
from grader.spec.cases import Case
from reference.variants import Case as Known
from reference.variants import attend
from reference.variants_backward import row_delta

_SAME = 1e-3  # relative, of two gradients of the logits: each is one number
_APART = 5e-2  # of two counts

_far = functools.partial(by_numbers, "SINK-PAIRS")
Sum = Callable[[torch.Tensor], torch.Tensor]


def far_pairs(case: Case, head: Head) -> Sighting | None:
    """Find pairs of a sink and a query beyond its window that do not count once in dk or dv.

    Their share may also be added to the other of the two, or be left out in some tiles of queries.
    """
    window, sinks = case.kwargs.get("window_size"), case.kwargs.get("num_sink_tokens")
    if head.name == "dq" or not window or not sinks:
        return None
    queries, keys = head.visible.shape
    query, key = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    far = (query - key >= window) & head.visible
    if not bool(far.any()):
        return None
    slopes = head.probs * (head.dprobs - head.delta[..., None])
    products = {"dv": (head.probs, "dout", "P^T dout"), "dk": (slopes, "q", "dS^T q")}
    weights, rows, due = products[head.name]
    where = head.where
    near = head.product(weights * ~far, rows)
    for name, (others, of, made) in products.items():
        numbers = head.solved([head.product(others * far, of), near])
        if numbers is None or abs(numbers[1] - 1.0) > _APART:
            continue
        if name != head.name:
            return _far(variant="of_another", name=head.name, where=where, got=made, due=due)
        if abs(numbers[0] - 1.0) > _APART:
            return _far(name=head.name, where=where, times=numbers[0])
    for tile in TILES[1:]:
        parts = [far & (query // tile == t) for t in range(-(-queries // tile))]
        parts = [part for part in parts if bool(part.any())]
        numbers = head.solved([*(head.product(weights * part, rows) for part in parts), near])
        if numbers is None or len(parts) < 2:
            continue
        gone = [part for part, n in zip(parts, numbers, strict=False) if abs(n) <= _APART]
        if gone and all(min(abs(n), abs(n - 1.0)) <= _APART for n in numbers):
            left_out = ranges(torch.stack(gone).any(0).any(1).numpy())
            return _far(variant="left_out", name=head.name, where=where, queries=left_out)
    return None


def logits(wrong: Outputs) -> Sighting | None:
    """Find another sum of terms, each a weight times a factor, that gives dsink_logits.

    At most two of its parts differ from the right ones, with one head one: more fit by chance.
    """
    grad, truth = wrong.got.get("dsink_logits"), wrong.expected.truth.get("dsink_logits")
    known = wrong.known
    if grad is None or truth is None or known.sink_logits is None or known.dout is None:
        return None
    grad = grad.double()
    if _alike(grad, truth):
        return None
    sink, lse, delta = known.sink_column(), attend(known)["lse"], row_delta(known)
    weights, factors = _weights(sink, lse, known.scale), _factors(sink, lse, delta)
    parts = [list(part.items()) for part in (weights, factors, _sums(known), _numbers(known))]
    tried = itertools.product(*(range(len(part)) for part in parts))
    most = min(2, len(grad))
    for at in sorted((at for at in tried if _differing(at) <= most), key=_differing):
        (weight, p), (factor, f), (sum_of, add), (number, times) = (
            part[n] for part, n in zip(parts, at, strict=True)
        )
        made = times * add(-p * f)
        if made.shape == grad.shape and _alike(grad, made):
            term = " * ".join(filter(None, (weight, factor))) or "1"
            name = number.replace("-", "") + sum_of.format(f"-{term}" if times > 0.0 else term)
            name += ", with P = exp(sink_logits - lse)" if "P" in weight else ""
            return by_numbers("OTHER-SINK-GRADIENT", name=name, heads=len(grad))
    return None


def _differing(at: tuple[int, ...]) -> int:
    """Return how many parts of an expression are not the first of their kind, the right one."""
    return sum(map(bool, at))


def _weights(sink: torch.Tensor, lse: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
    """Return P, and what is mistaken for it, by name: (batch, heads, rows)."""
    p = torch.exp(sink - lse)
    found = {"P": p, "": torch.ones_like(p), "(1 - P)": 1.0 - p, "P * (1 - P)": p * (1.0 - p)}
    found |= {"P / (1 + P)": p / (1.0 + p), "P**2": p * p, "(sink_logits - lse)": sink - lse}
    found["softmax(sink_logits)"] = torch.softmax(sink, -2).expand_as(p)
    units = {"": 1.0, " * softmax_scale": scale, " * log2(e)": LOG2E, " * ln(2)": 1.0 / LOG2E}
    of_sink, of_lse = (
        {name + unit: number * value for unit, number in units.items()}
        for name, value in (("sink_logits", sink), ("lse", lse))
    )
    for one, other in ((of_sink, of_lse), (of_lse, of_sink)):
        for (text, a), (minus, b) in itertools.product(one.items(), other.items()):
            found[f"exp({text} - {minus})"] = torch.exp(a - b)
    found |= {f"exp({text})": torch.exp(a).expand_as(p) for text, a in of_sink.items()}
    return {name: weights for name, weights in found.items() if bool(weights.isfinite().all())}


def _factors(sink: torch.Tensor, lse: torch.Tensor, delta: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return delta, and what is mistaken for it, by name."""
    found = {"delta": delta, "": torch.ones_like(delta), "delta**2": delta * delta}
    found |= {"abs(delta)": delta.abs(), "(delta - P)": delta - torch.exp(sink - lse)}
    return found | {"(sink_logits - delta)": sink - delta, "lse": lse}


def _sums(known: Known) -> dict[str, Sum]:
    """Return the sum over batch and rows, and what is mistaken for it, by name."""
    heads = torch.arange(known.num_q_heads)
    found: dict[str, Sum] = {
        "the sum of {}": lambda terms: terms.sum((0, 2)),
        "the mean of {} over the rows": lambda terms: terms.mean(2).sum(0),
        "the mean of {} over batch and rows": lambda terms: terms.mean((0, 2)),
        "the mean of {} over the batch": lambda terms: terms.sum(2).mean(0),
        "the sum of {} over the first batch entry": lambda terms: terms[0].sum(1),
        "the sum of {} over the last row of each batch entry": lambda terms: terms[:, :, -1].sum(0),
        "the sum of {} over the first row of each batch entry": lambda terms: terms[:, :, 0].sum(0),
        "the sum of {} over all heads": lambda terms: terms.sum().expand(len(heads)),
        "the sum of {} over batch and heads, at row h": lambda terms: terms.sum((0, 1))[heads],
        "the sum of {} of another head": lambda terms: terms.sum((0, 2)).roll(1),
    }
    for tile in filter(lambda tile: tile < known.seqlen_q and known.seqlen_q % tile, TILES):
        rows = known.seqlen_q // tile * tile
        name = f"the sum of {{}} over the first {rows} rows alone (whole tiles of {tile})"
        found[name] = functools.partial(_of_first, rows)
    if known.seqlen_q < len(heads):
        del found["the sum of {} over batch and heads, at row h"]
    if known.group_size > 1:  # the sum of each head at the place of another one
        for name, place in (
            ("the sum of {} over a group, at the place of its kv head", known.kv_heads),
            ("the sum of {} at the place head % group_size", heads % known.group_size),
            ("the sum of {} at the place head % num_kv_heads", heads % known.num_kv_heads),
        ):
            found[name] = functools.partial(_added_at, place)
    return found


def _of_first(rows: int, terms: torch.Tensor) -> torch.Tensor:
    return terms[:, :, :rows].sum((0, 2))


def _added_at(place: torch.Tensor, terms: torch.Tensor) -> torch.Tensor:
    of_heads = terms.sum((0, 2))
    return torch.zeros_like(of_heads).index_add_(0, place, of_heads)


def _numbers(known: Known) -> dict[str, float]:
    """Return factors of the sum by name, 1 first; names of negative ones begin with a minus."""
    scale = known.scale
    found = {"": 1.0, "softmax_scale times ": scale, "1/softmax_scale times ": 1.0 / (scale or 1.0)}
    found |= {"log2(e) times ": LOG2E, "ln(2) times ": 1.0 / LOG2E, "twice ": 2.0}
    return found | {f"-{name}": -number for name, number in found.items()}


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= _SAME * other.norm())
