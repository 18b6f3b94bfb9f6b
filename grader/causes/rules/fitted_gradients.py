"""Fits a few numbers to one head of wrong gradients.

dV = P^T dout, dQ = softmax_scale * dS k, dK = softmax_scale * dS^T q; dS = P * (dP - delta).
A wrong gradient may sum up other terms, another P, or other pairs. Each fit is linear in a few
unknowns, or has a handful of candidates, and must explain thousands of numbers. Fits are tried on a
few cases, when no other rule finds the cause.
"""

from __future__ import annotations

import math

from grader.causes.outputs import LOG2E, TILES, Outputs, names_of
from grader.causes.rules.fitted_pairs import other_heads, other_pairs, parts_of_dq
from grader.causes.rules.fitted_sinks import far_pairs, logits
from grader.causes.rules.fitted_weights import masks_of, other_delta, other_weights
from grader.causes.rules.head import DELTA_OF_TILE, NAMES, OPERANDS, ROWS, Head, head_of
from grader.causes.rules.sighting import Sighting, by_numbers
from grader.checks.correctness import are

_COLUMNS = 16  # of head_dim: enough for a few numbers of a whole head
_SAME = 1e-2  # of two factors
_SHARE = 1e-3  # of a product: a term that has less is left out
# Terms that dS may be the sum of, with numbers before them; the first that fit are named.
_OF_DS = (
    ("P * dP", "P * delta"),
    ("P * dP", "delta"),
    ("dP", "delta"),
    ("dP", "P * delta"),
    ("P * P * dP", "P * P * delta"),
    ("P * dP", "P * P * delta"),
    ("P * P * dP", "P * delta"),
    ("P",),
    *(("P * dP", f"P * {DELTA_OF_TILE} {tile}") for tile in TILES),
    *((f"P * {operands}", "P * delta") for operands in OPERANDS),
    ("S * dP", "S * delta"),
    ("P * dP", "P * delta", "P"),
    ("P * dP", "P * delta", "P * lse"),
)
_OF_P = (("P",), ("P * dP", "P * delta"), ("P * dP",), ("dP",), ("P * P",), ("S",))


def fitted(wrong: Outputs) -> Sighting | None:
    """Return what a wrong gradient is made of, if a few fitted numbers explain it."""
    there = [name for name in NAMES if name in wrong.got and name in wrong.expected.truth]
    heads = list(filter(None, (head_of(name, wrong) for name in there)))
    if not any(bool(head.got.any()) for head in heads):  # nothing can be read from zeros
        heads = []
    found = _scaled(heads)
    if found is not None:
        return found
    for head in heads:
        some = head.of_columns(_COLUMNS)
        found = _other_terms(some) or other_weights(some) or far_pairs(wrong.case, some)
        # Where rows see little more than one key each, factors and deltas look alike.
        found = found or _rows_scaled(some) or other_delta(some) or other_pairs(head)
        found = found or other_heads(wrong, some) or parts_of_dq(head)
        if found is not None:
            return found
    return logits(wrong)


# -- the terms ------------------------------------------------------------------------------------


def _other_terms(head: Head) -> Sighting | None:
    """Find a sum of other terms of P, dP and delta, or with other factors, that explains it."""
    masks = list(masks_of(head))
    for factor in ROWS[head.name]:
        for terms in _OF_P if head.name == "dv" else _OF_DS:
            # P is 0 where a key is hidden, whatever was masked.
            of_p = all(term.startswith("P") for term in terms)
            for of_mask, visible in masks[:1] if of_p else masks:
                products = [head.product(head.term(term) * visible, factor) for term in terms]
                numbers = head.solved(products)
                if numbers is None:
                    continue
                sizes = [abs(a) * float(p.norm()) for a, p in zip(numbers, products, strict=True)]
                kept = [
                    (a, term)
                    for a, term, size in zip(numbers, terms, sizes, strict=True)
                    if size > _SHARE * max(sizes)
                ]
                return _sighting(head, kept, factor, of_mask)
    return None


def _sighting(
    head: Head, kept: list[tuple[float, str]], factor: str, of_mask: str
) -> Sighting | None:
    if not kept:  # a gradient of 0, which any products times 0 explain
        return None
    name, made = head.name, "P" if head.name == "dv" else "dS"
    due = ["P"] if name == "dv" else ["P * dP", "P * delta"]
    if factor == ROWS[name][0] and [term for _, term in kept] == due:
        signs = [1.0, -1.0][: len(due)]
        if all(abs(a - sign) <= _SAME for (a, _), sign in zip(kept, signs, strict=True)):
            return None  # what is wrong is in other heads, or not of this kind
    # Write a factor of all terms before the sum, if it has a name.
    whole = _named(head, kept[0][0])
    sum_of = _sum_of(head, [(a / kept[0][0] if whole else a, term) for a, term in kept])
    before = [] if name == "dv" else ["softmax_scale"]
    outer = [*before, *([whole] if whole else [])]
    if before and whole.endswith("/softmax_scale"):
        outer = [] if whole.startswith("1/") else ["log2(e)"]
    made_of = f"({sum_of}{of_mask})" if " " in sum_of + of_mask else sum_of
    product = f"{made_of}{'' if name == 'dq' else '^T'} {factor}"
    due_product = {"dq": "dS k", "dk": "dS^T q", "dv": "P^T dout"}[name]
    return by_numbers(
        "OTHER-TERMS",
        name=name,
        got=" * ".join([*outer, product]),
        due=" * ".join([*before, due_product]),
        where=head.where,
        made=made,
        sum_of=f"{sum_of}{of_mask}",
    )


def _scaled(wrong: list[Head]) -> Sighting | None:
    """Find one factor but for which all wrong gradients are right."""
    factors = [float((h.got * h.truth).sum() / (h.truth * h.truth).sum()) for h in wrong]
    if not wrong or not math.isfinite(factors[0]):
        return None
    if max(factors) - min(factors) > _SAME * abs(factors[0]):
        return None
    if not all(head.explained(a * head.truth) for head, a in zip(wrong, factors, strict=True)):
        return None
    name = _named(wrong[0], factors[0])
    names = [name for name in ("dq", "dk", "dv") if name in {head.name for head in wrong}]
    times = f"{factors[0]:.4g}{f' ({name})' if name else ''}"
    return by_numbers(
        "GRADIENT-SCALED",
        are=are(names),
        times=times,
        they="they" if names[1:] else "it",
        where=wrong[0].where,
        name=wrong[0].name,
    )


def _sum_of(head: Head, numbers: list[tuple[float, str]]) -> str:
    text = ""
    for number, term in numbers:
        size = abs(number)
        if DELTA_OF_TILE in term:
            of_tile = term.rpartition(" ")[2]
            term = f"P * (sum of P * dP over each tile of {of_tile} keys)"
        if abs(size - 1.0) > _SAME:
            term = f"{_named(head, size) or f'{size:.3g}'} * {term}"
        if text:
            text += f" {'-' if number < 0 else '+'} {term}"
        else:
            text = ("-" if number < 0 else "") + term
    return text


def _named(head: Head, value: float) -> str:
    """Return what has this value in the case; "" where nothing or 1 has."""
    scale, group = head.scale, head.probs.shape[0]
    named = {"softmax_scale": scale, "1/softmax_scale": 1.0 / scale, "log2(e)": LOG2E}
    named |= {"ln(2)": 1.0 / LOG2E, "-1": -1.0, "softmax_scale * log2(e)": scale * LOG2E}
    named |= {"log2(e)/softmax_scale": LOG2E / scale, "head_dim": float(head.q.shape[-1])}
    named |= {"-softmax_scale": -scale, "1/head_dim": 1.0 / head.q.shape[-1]}
    if group > 1:
        named |= {"group_size": float(group), "1/group_size": 1.0 / group}
    return next(iter(names_of(value, named)), "") if abs(value - 1.0) > _SAME else ""


# -- the rows --------------------------------------------------------------------------------------


def _rows_scaled(head: Head) -> Sighting | None:
    """Find rows that are right but for a factor, which differs from row to row."""
    got, truth = head.got, head.truth
    size = (truth * truth).sum(-1, keepdim=True)
    factors = (got * truth).sum(-1, keepdim=True) / size.clamp(min=1e-300)
    if not head.explained(factors * truth) or float(factors.std()) < _SAME:
        return None
    least, most = float(factors.min()), float(factors.max())
    return by_numbers(
        "ROWS-SCALED",
        variant="of_dq" if head.name == "dq" else "of_dk_or_dv",
        name=head.name,
        least=least,
        most=most,
    )
