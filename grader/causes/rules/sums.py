"""How products became sums: over which axis, and whether each round's was added."""

from __future__ import annotations

from grader.causes.rules.sighting import Result, Sighting
from grader.checks.walk import Walk
from grader.kernel.observers.trace import COLUMNS, MIXED, OPERANDS, PRODUCTS, SCORES, Counter, Trace
from grader.spec.cases import Case

_FACTORS = dict(zip(PRODUCTS, ("v", "dout", "q", "k"), strict=True))


def discarded(case: Case, walk: Walk) -> Sighting | None:
    line = int(walk.trace.arrays["discarded"][PRODUCTS.index(walk.product)])
    if not line:
        return None
    return Sighting(
        "PRODUCT-DISCARDED",
        f"part of what this line adds to {walk.product} is lost",
        "seen: this line computes several products, and nothing uses the earlier ones",
        "add to the accumulator instead of replacing it, tl.dot(a, b, accumulator), and set it to"
        " zero once, before all loops that add to it",
        line,
        located=True,
    )


def scores_left_out(trace: Trace) -> Sighting | None:
    line = max(int(trace.arrays[name][SCORES]) for name in ("discarded", "left_out"))
    if not line:
        return None
    return Sighting(
        "PRODUCT-LEFT-OUT",
        "a product over head_dim is computed and not used",
        "seen: nothing uses what this line computes",
        "where scores are the sum of several products, add them up: tl.dot(q, k, scores)",
        line,
        located=True,
    )


def columns_apart(trace: Trace) -> Sighting | None:
    """Parts of head_dim that do not belong together."""
    for row, text in zip(trace.arrays["columns"].tolist(), _COLUMNS_APART, strict=True):
        seen = dict(zip(COLUMNS, row, strict=True))
        if seen["line"]:
            return Sighting(
                "COLUMNS-APART",
                "columns of head_dim that do not belong together are combined",
                "seen: " + text.format(**seen),
                "a part of head_dim of q goes with the same part of k, and one of v with that of"
                " out",
                seen["line"],
                located=True,
            )
    return None


_COLUMNS_APART = (
    "this tl.dot multiplies the columns from {one} on of one tile with those from {other} on of"
    " the other",
    "what is made of the columns from {one} on is stored to the columns from {other} on",
)


def turned(case: Case, trace: Trace) -> Sighting | None:
    line, number = trace.count(Counter.TURNED_LINE), trace.count(Counter.TURNED)
    if not line or not 0 <= number < len(OPERANDS):
        return None
    values = OPERANDS[number]
    rows, axis = ("keys", "queries") if values in ("k", "v") else ("queries", "keys")
    return Sighting(
        "WEIGHTS-NOT-TRANSPOSED",
        f"the weights that are multiplied with {values} are not the right way round",
        f"seen: this tl.dot sums over {axis} in the weights, and over rows of {values}, which are"
        f" {rows}",
        "out = P v and dQ = dS k sum over keys; dV = P^T dout and dK = dS^T q over queries:"
        " tl.trans",
        line,
        located=True,
    )


def left_out(case: Case, walk: Walk) -> Sighting | None:
    line = int(walk.trace.arrays["left_out"][PRODUCTS.index(walk.product)])
    if not line:
        return None
    return Sighting(
        "PRODUCT-LEFT-OUT",
        f"what a loop adds up for {walk.product} does not reach the output",
        "seen: nothing uses what this line has computed by the end of the loop",
        "where there are several accumulators, each has its part in the result",
        line,
    )


def over_queries(trace: Trace) -> Sighting | None:
    line = trace.count(Counter.OVER_QUERIES_LINE)
    if not line:
        return None
    return Sighting(
        "REDUCED-OVER-QUERIES",
        "scores are reduced over queries, not over keys",
        "seen: this line takes a maximum or a sum along the axis of the queries",
        "each query has a maximum and a sum of its own: reduce over the axis of the keys",
        line,
        located=True,
    )


def mixed(case: Case, trace: Trace) -> Sighting | None:
    line = trace.count(Counter.MIXED_LINE)
    if not line or not 0 <= trace.count(Counter.MIXED) < len(MIXED):
        return None
    query_side, key_side = MIXED[trace.count(Counter.MIXED)]
    due = {"q": "k", "dout": "v"}[query_side]
    return Sighting(
        "WRONG-OPERAND",
        f"{query_side} is multiplied with {key_side}, not with {due}",
        f"seen: this tl.dot takes rows of {query_side} and rows of {key_side}",
        "scores are q @ k^T, and dP is dout @ v^T",
        line,
        located=True,
    )


def not_transposed(case: Case, trace: Trace) -> Sighting | None:
    line = trace.count(Counter.CROSSED_LINE)
    if not line:
        return None
    return Sighting(
        "TILE-NOT-TRANSPOSED",
        "this tl.dot does not sum over head_dim: its second tile is not transposed",
        "seen: columns of the first tile are multiplied with rows of the second, both as loaded",
        "a product of queries and keys is tl.dot(q, tl.trans(k))",
        line,
        located=True,
    )


def wrong_product(case: Case, trace: Trace, result: Result) -> Sighting | None:
    """A gradient to which a product was stored that belongs to another."""
    stored = {
        name: (PRODUCTS[int(product) - 1], int(line))
        for name, (product, line) in zip(PRODUCTS, trace.arrays["stored_products"], strict=True)
        if product and name in result.wrong
    }
    for name, (product, line) in stored.items():
        if name in (other for other, _ in stored.values()):
            continue  # they are exchanged
        factor, due = _FACTORS[product], _FACTORS[name]
        return Sighting(
            "WRONG-PRODUCT",
            f"{name} is computed with {factor} instead of {due}",
            f"seen: what is stored to {name} is a sum of products with {factor}",
            "out = P v: look at the pointer from which this tile is loaded"
            if name == "out"
            else "dV = P^T dout, dK = dS^T q, dQ = dS k",
            line,
        )
    return None
