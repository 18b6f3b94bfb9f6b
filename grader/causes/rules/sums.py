"""Finds products that are summed over a wrong axis, or are dropped, doubled or exchanged."""

from __future__ import annotations

from grader.causes.rules.sighting import Result, Sighting, operand_at
from grader.checks.counted_pairs import CountedPairs
from grader.kernel.observers.trace import MIXED, PRODUCTS, SCORES, Counter, Trace

# Counters of a line in which the mistake itself lies.
_LOCATED = (Counter.CROSSED_LINE, Counter.OVER_QUERIES_LINE, Counter.ACROSS_LINE)
_FACTORS = dict(zip(PRODUCTS, ("v", "dout", "q", "k"), strict=True))


def of_product(counted: CountedPairs) -> Sighting | None:
    """Find a product that is dropped, or an accumulator that is added to itself."""
    ids = {"discarded": "PRODUCT-DISCARDED", "doubled": "ACCUMULATOR-ADDED-TWICE"}
    for table, id in ids.items():
        if line := counted.line_in(table):
            return Sighting(id, line, located=True, product=counted.product)
    return None


def at_line(trace: Trace, counter: Counter) -> Sighting | None:
    """Return the mistake of which a counter has a line.

    A load of what nobody stored, on which all later numbers depend; a tile that is not transposed;
    a maximum or a sum over queries; infinite weights; a number per query along another axis.
    """
    line = trace.count(counter)
    id = {
        Counter.UNWRITTEN_LINE: "UNWRITTEN-READ",
        Counter.CROSSED_LINE: "TILE-NOT-TRANSPOSED",
        Counter.OVER_QUERIES_LINE: "REDUCED-OVER-QUERIES",
        Counter.INFINITE_LINE: "WEIGHTS-INFINITE",
        Counter.ACROSS_LINE: "ALONG-ANOTHER-AXIS",
    }[counter]
    return Sighting(id, line, located=counter in _LOCATED) if line else None


def unwritten(trace: Trace, result: Result) -> Sighting | None:
    """Find where elements that nobody wrote are read, if a wrong result was made from them.

    It was if it is NaN and no operation made a NaN of numbers, though a conversion took its mark.
    """
    forms = (Counter.UNWRITTEN_ELEMENT_LINE, "element"), (Counter.UNWRITTEN_OPERAND_LINE, "operand")
    made_from = result.left_over or (result.nan and not trace.count(Counter.NAN_KINDS))
    for counter, variant in forms if made_from else ():
        if line := trace.count(counter):
            return Sighting("UNWRITTEN-READ", line, part="", variant=variant)
    return None


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


def turned(trace: Trace) -> Sighting | None:
    line, values = operand_at(trace, Counter.TURNED_LINE, Counter.TURNED)
    if not values:
        return None
    rows, axis = ("keys", "queries") if values in ("k", "v") else ("queries", "keys")
    return Sighting(
        "WEIGHTS-NOT-TRANSPOSED",
        line,
        located=values != "v",  # scores of k and q in that order look the same
        values=values,
        axis=axis,
        rows=rows,
    )


def mixed(trace: Trace) -> Sighting | None:
    line = trace.count(Counter.MIXED_LINE)
    if not line or not 0 <= trace.count(Counter.MIXED) < len(MIXED):
        return None
    query_side, key_side = MIXED[trace.count(Counter.MIXED)]
    due = {"q": "k", "dout": "v"}[query_side]
    return Sighting(
        "WRONG-OPERAND", line, located=True, query_side=query_side, key_side=key_side, due=due
    )


def wrong_product(trace: Trace, result: Result) -> Sighting | None:
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
