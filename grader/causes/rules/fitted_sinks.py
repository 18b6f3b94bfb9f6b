"""What the gradients of sinks are made of: those of sink tokens, and that of the sink logits."""

from __future__ import annotations

import torch

from grader.causes.rules.head import Head
from grader.causes.rules.sighting import Sighting
from grader.spec.cases import Case
from grader.spec.inputs import Inputs
from reference.variants import attend, case_of
from reference.variants_backward import row_delta

_SAME = 1e-3  # relative, of two gradients of the logits: each is one number
_APART = 5e-2  # of two counts


def far_pairs(case: Case, head: Head) -> Sighting | None:
    """Pairs of a sink and a query beyond its window count otherwise than once in dk or dv."""
    window, sinks = case.kwargs.get("window_size"), case.kwargs.get("num_sink_tokens")
    if head.name == "dq" or not window or not sinks:
        return None
    queries, keys = head.visible.shape
    weights = head.probs
    if head.name == "dk":
        weights = head.probs * (head.dprobs - head.delta[..., None])
    far = torch.arange(queries)[:, None] - torch.arange(keys)[None, :] >= window
    rows = "dout" if head.name == "dv" else "q"
    parts = [head.product(weights * part, rows) for part in (far, ~far)]
    numbers = head.solved(parts) if bool((far & head.visible).any()) else None
    if numbers is None or abs(numbers[1] - 1.0) > _APART or abs(numbers[0] - 1.0) <= _APART:
        return None
    return Sighting(
        "SINK-PAIRS",
        traced=False,
        figures={"times": numbers[0], "name": head.name, "where": head.where},
    )


def logits(
    problem_id: str,
    case: Case,
    inputs: Inputs,
    got: dict[str, torch.Tensor],
    truth: torch.Tensor,
) -> Sighting | None:
    """The gradient of the sink logits is another sum, of those that are known by name."""
    known = case_of(problem_id, inputs.all, case.kwargs)
    grad = got["dsink_logits"].double()
    if known.sink_logits is None or known.dout is None or bool(_alike(grad, truth)):
        return None
    sink, lse, delta = known.sink_column(), attend(known)["lse"], row_delta(known)
    weights = torch.exp(sink - lse)
    whole = -weights * delta
    others = {
        "the mean of {} over the rows": whole.mean(2).sum(0),
        "the mean of {} over batch and rows": whole.mean((0, 2)),
        "the sum of {} over the last row of each batch entry": whole[:, :, -1].sum(0),
        "the sum of {} over the first row of each batch entry": whole[:, :, 0].sum(0),
        "the sum of {} over all heads": whole.sum().expand(len(grad)),
        "softmax_scale times the sum of {}": known.scale * whole.sum((0, 2)),
        "1/softmax_scale times the sum of {}": whole.sum((0, 2)) / known.scale,
        "the sum of {} of another head": whole.sum((0, 2)).roll(1),
    }
    if known.group_size > 1:  # what each head adds, at the place of another number
        heads = torch.arange(len(grad))
        for name, place in (
            ("the sum of {} over a group, at the place of its kv head", known.kv_heads),
            ("the sum of {} at the place head % group_size", heads % known.group_size),
            ("the sum of {} at the place head % num_kv_heads", heads % known.num_kv_heads),
        ):
            of_heads = whole.sum((0, 2))
            others[name] = torch.zeros_like(of_heads).index_add_(0, place, of_heads)
    terms = {
        "-P * (sink_logits - delta)": -weights * (sink - delta),
        "-P * (delta - sink_logits)": -weights * (delta - sink),
        "-delta": -delta,
        "-P * (1 - P) * delta": -weights * (1.0 - weights) * delta,
        "-P * (delta - P)": -weights * (delta - weights),
        "-exp(sink_logits * softmax_scale - lse) * delta": -torch.exp(known.scale * sink - lse)
        * delta,
        "-P / (1 + P) * delta": -weights / (1.0 + weights) * delta,
        "-P**2 * delta": -(weights**2) * delta,
        "-(sink_logits - lse) * delta": -(sink - lse) * delta,
    }
    told = [(name.format("-P * delta"), value) for name, value in others.items()]
    told += [(f"the sum of {name}", value.sum((0, 2))) for name, value in terms.items()]
    name = next((name for name, value in told if _alike(grad, value)), None)
    if name is None:
        return None
    return Sighting("OTHER-SINK-GRADIENT", traced=False, figures={"name": name, "heads": len(grad)})


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= _SAME * other.norm())
