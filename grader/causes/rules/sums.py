"""Finds products that are summed over a wrong axis, or are dropped, doubled or exchanged."""

from __future__ import annotations

from grader.causes.rules.sighting import Result, Sighting
from grader.checks.counted_pairs import CountedPairs
from grader.kernel.observers.trace import MIXED, OPERANDS, PRODUCTS, SCORES, Counter, Trace
from grader.spec.cases import Case

_FACTORS = dict(zip(PRODUCTS, ("v", "dout", "q", "k"), strict=True))


def discarded(case: Case, counted: CountedPairs) -> Sighting | None:
    line = int(counted.of_product["discarded"])
    if not line:
        return None
    return Sighting("PRODUCT-DISCARDED", line, located=True, product=counted.product)


def doubled(case: Case, counted: CountedPairs) -> Sighting | None:
    line = int(counted.of_product["doubled"])
    if not line:
        return None
    return Sighting("ACCUMULATOR-ADDED-TWICE", line, located=True, product=counted.product)


def at_line(trace: Trace, counter: Counter) -> Sighting | None:
    """Return the mistake of which a counter has a line.

    A tile that is not transposed, a maximum or a sum over queries, or infinite weights.
    """
    line = trace.count(counter)
    id = {
        Counter.CROSSED_LINE: "TILE-NOT-TRANSPOSED",
        Counter.OVER_QUERIES_LINE: "REDUCED-OVER-QUERIES",
        Counter.INFINITE_LINE: "WEIGHTS-INFINITE",
    }[counter]
    return Sighting(id, line, located=counter != Counter.INFINITE_LINE) if line else None


def scores_left_out(trace: Trace) -> Sighting | None:
    for column, variant in (("discarded", ""), ("bare", "only_chooses")):
        if line := int(trace.arrays["products"][column][SCORES]):
            return Sighting("PRODUCT-LEFT-OUT", line, located=True, variant=variant)
    return None


def columns_apart(trace: Trace) -> Sighting | None:
    """Find a dot over head_dim, or a stored product, whose tiles begin at different columns."""
    for seen, variant in zip(trace.rows("columns"), ("", "stored"), strict=True):
        if seen["line"]:
            return Sighting(
                "COLUMNS-APART",
                seen["line"],
                located=True,
                variant=variant,
                one=seen["column"],
                other=seen["other_column"],
            )
    return None


def turned(case: Case, trace: Trace) -> Sighting | None:
    line, number = trace.count(Counter.TURNED_LINE), trace.count(Counter.TURNED)
    if not line or not 0 <= number < len(OPERANDS):
        return None
    values = OPERANDS[number]
    rows, axis = ("keys", "queries") if values in ("k", "v") else ("queries", "keys")
    return Sighting(
        "WEIGHTS-NOT-TRANSPOSED",
        line,
        located=values != "v",  # scores of k and q in that order look the same
        values=values,
        axis=axis,
        rows=rows,
    )


def mixed(case: Case, trace: Trace) -> Sighting | None:
    line = trace.count(Counter.MIXED_LINE)
    if not line or not 0 <= trace.count(Counter.MIXED) < len(MIXED):
        return None
    query_side, key_side = MIXED[trace.count(Counter.MIXED)]
    due = {"q": "k", "dout": "v"}[query_side]
    return Sighting(
        "WRONG-OPERAND", line, located=True, query_side=query_side, key_side=key_side, due=due
    )


def wrong_product(case: Case, trace: Trace, result: Result) -> Sighting | None:
    """Find an output to which the product of another one was stored."""
    seen = dict(zip(PRODUCTS, trace.rows("products"), strict=False))
    stored = {
        name: (PRODUCTS[row["stored"] - 1], row["stored_line"])
        for name, row in seen.items()
        if row["stored"] and name in result.wrong
    }
    lines = [row["stored_line"] for row in seen.values()]
    for name, (product, line) in stored.items():
        if name in (other for other, _ in stored.values()):
            continue  # two outputs are exchanged
        factor, due = _FACTORS[product], _FACTORS[name]
        return Sighting(
            "WRONG-PRODUCT",
            line,
            # Certain where no other output is wrong, and no other product is stored by the line.
            located=name != "out" and result.wrong == (name,) and lines.count(line) == 1,
            variant="of_out" if name == "out" else "",
            pointer=due if name == "out" else "",
            name=name,
            factor=factor,
            due=due,
        )
    return None
