"""Finds rows that meet rows of another place, and results stored where others belong."""

from __future__ import annotations

import dataclasses
from collections.abc import Container

from grader.causes.decide import Kind
from grader.causes.rules import sums
from grader.causes.rules.sighting import Result, Sighting, line_of
from grader.checks.outcome import CaseOutcome
from grader.kernel.observers.trace import (
    GRADIENTS,
    OUTPUTS,
    PRODUCTS,
    SCRATCH,
    STATISTIC,
    TAGGED,
    Counter,
    Trace,
)
from grader.spec.cases import Case


def misplaced(case: Case, trace: Trace, result: Result) -> Sighting | None:
    """Find an output whose rows are made of other rows of q, or of k."""
    wrong = [name for name in OUTPUTS if name in result.wrong]
    if {"dq", "dk", "dv"} & set(wrong):
        wrong.append(SCRATCH)
    for name in wrong:
        seen = trace.rows("misplaced")[OUTPUTS.index(name)]
        if not all(seen.values()):
            continue
        side = "k" if name in ("dk", "dv") else "q"
        if seen["place"] in _met_apart(trace, side):
            continue  # it is also made of a row in its place: the load of the other one is wrong
        shown = "lse or delta" if name == SCRATCH else name
        made, of = (_Row.of(case, side, seen[key]) for key in ("place", "row"))
        line = seen["line"]
        variant = "number_per_query" if name in ("lse", SCRATCH) else ""
        if name in ("out", "lse") and _takes_rows_again(trace):
            line, variant = line_of(trace, "q"), "loaded"
        of_heads = (of.batch, of.head) != (made.batch, made.head)
        return Sighting(
            "STORED-ELSEWHERE",
            line,
            part="pointer|address" if of_heads else "offset|address",
            variant=variant,
            name=shown,
            row=of.beside(made),
            place=made.beside(of),
            whole_row=of.whole,
            whole_place=made.whole,
        )
    return None


def _met_apart(trace: Trace, side: str) -> Container[int]:
    """Return the numbers, from 1, of rows of q or k that met others as if they were one row.

    All, where what was made of two rows of q met: a state was left over from the tile before.
    """
    (seen,) = trace.rows("apart")
    kinds = [TAGGED[seen[which]] for which in ("one", "other")]
    if seen["other_row"] and kinds == [side, side] == ["q", "q"]:
        return range(1, trace.shape.queries + 1)
    of_keys = kinds[0] in ("k", "v")
    return {seen["row"], seen["other_row"]} - {0} if of_keys == (side == "k") else set()


def _takes_rows_again(trace: Trace) -> bool:
    """Whether each row of `out` is stored once, though no program uses some rows of q.

    Then the loads are misplaced, and not the stores.
    """
    once = bool((trace.arrays["stores"] == 1).all()) and not trace.count(Counter.STORED_TWICE)
    return once and not trace.arrays["visits"].any(axis=(0, 2)).all()


def overwritten(case: Case, trace: Trace, result: Result) -> Sighting | None:
    """Find a gradient to whose rows several programs of one launch store."""
    for name, seen in zip(GRADIENTS, trace.rows("overwritten"), strict=True):
        if name not in result.wrong or not seen["line"] or not seen["first_row"]:
            continue
        if name == "dsink_logits":
            where = f"the element of query head {seen['first_row'] - 1}"
        else:
            side = "q" if name == "dq" else "k"
            first = _Row.of(case, side, seen["first_row"])
            where = first.up_to(seen["last_row"] - seen["first_row"])
        one, other = (tuple(seen[f"{of}{axis}"] for axis in "xyz") for of in ("", "other_"))
        of_group = name in ("dk", "dv") and case.num_q_heads > case.num_kv_heads
        whole = "loop over the query heads of a group" if of_group else "compute the whole sum"
        return Sighting(
            "LAST-STORE-WINS",
            seen["line"],
            kind=Kind.PROVED,
            name=name,
            one=one,
            other=other,
            where=where,
            whole=whole,
        )
    return None


def raced(remark: CaseOutcome, *, of_sum: bool = False, symptom: bool = False) -> Sighting:
    """Return the race of programs that a call remarks; with `of_sum` they store shares of a sum.

    Where they load and change the elements before, no wrong offset needs to explain that.
    """
    line, name, changes = remark.line, remark.headline.rpartition(" ")[2], remark.does == "changes"
    if of_sum or changes:
        kind, what = Kind.PROVED if changes else Kind.SEEN, remark.extent
        return Sighting(
            "LAST-STORE-WINS", line, kind=kind, variant="of_programs", name=name, what=what
        )
    variant = "of_reads" if remark.does == "reads" else ""
    return Sighting("PROGRAMS-RACE", line, symptom=symptom, variant=variant, name=name)


def apart(case: Case, trace: Trace, result: Result) -> Sighting | None:
    """Find rows of one head or tile that meet lse, delta or dout of another."""
    (seen,) = trace.rows("apart")
    if not seen["row"] or not seen["other_row"]:
        return None
    kinds = TAGGED[seen["one"]], TAGGED[seen["other"]]
    if kinds == ("k", "k") and {"out", "lse"} & set(result.wrong):
        # One number per key meets that of another key: a maximum or a sum along the wrong axis.
        return sums.at_line(trace, Counter.OVER_QUERIES_LINE)
    delta = seen["weights"] or "dout" in kinds
    names = ["delta" if delta else "lse"] if STATISTIC in kinds else []
    names = [(names[0] if kind == STATISTIC else kind) for kind in kinds]
    side = "k" if kinds[0] in ("k", "v") else "q"
    rows = [_Row.of(case, side, seen[key]) for key in ("row", "other_row")]
    note = ""
    if side == "q" and seen["kv_plane"]:
        batch, kv_head = divmod(seen["kv_plane"] - 1, case.num_kv_heads)
        group = case.num_q_heads // case.num_kv_heads
        due = [row.batch == batch and row.head // group == kv_head for row in rows]
        if due == [True, False]:  # the message begins with the row that does not belong here
            names, rows, due = names[::-1], rows[::-1], due[::-1]
        if due == [False, True]:
            note = f"; k and v are of kv head {kv_head}{_of_batch(case, batch)}"
    first, second = rows
    heads = (first.batch, first.head) != (second.batch, second.head)
    return Sighting(
        "HEADS-APART" if heads else "ROWS-APART",
        seen["line"],
        variant="left_over" if kinds[0] == kinds[1] != STATISTIC else "",  # lse and delta are two
        pointer=names[0],
        one=names[0],
        other=names[1],
        row=first.beside(second),
        other_row=second.beside(first),
        whole_row=first.whole,
        whole_other=second.whole,
        note=note,
    )


def along_keys(trace: Trace, result: Result) -> Sighting | None:
    """Find lse or delta, one number per query, that meets keys."""
    (seen,) = trace.rows("apart")
    keys = TAGGED[seen["other"]]
    if not seen["row"] or not seen["other_row"] or TAGGED[seen["one"]] != STATISTIC:
        return None
    if keys not in ("k", "v"):
        return None
    exchanged = _exchanged(trace, result, seen["line"])
    if exchanged is not None:
        return exchanged
    down = seen["weights"] == 1  # keys are columns, so queries are rows
    return Sighting(
        "ALONG-THE-KEYS",
        seen["line"],
        located=True,
        name="lse" if keys == "k" else "delta",
        rows="rows" if down else "columns",
        index="[:, None]" if down else "[None, :]",
    )


def _exchanged(trace: Trace, result: Result, line: int) -> Sighting | None:
    """Find a kernel that reads k for q, and q for k.

    Its scores are transposed, so that lse meets keys, and it sums over the wrong rows as well.
    """
    for name, other in (("dq", "dk"), ("dk", "dq")):
        product = int(trace.arrays["products"]["stored"][PRODUCTS.index(name)])
        if name in result.wrong and product and PRODUCTS[product - 1] == other:
            due, taken = ("k", "q") if name == "dq" else ("q", "k")
            return Sighting("Q-AND-K-EXCHANGED", line, pointer="q", name=name, taken=taken, due=due)
    return None


@dataclasses.dataclass(frozen=True)
class _Row:
    """A row of q or k: its batch, head and place."""

    batch: int
    head: int
    row: int
    what: str
    whole: str

    @classmethod
    def of(cls, case: Case, side: str, number: int) -> _Row:
        """Return the row of a number, which counts from 1 over batch, heads and rows."""
        heads, length = case.num_q_heads, case.seqlen_q
        if side == "k":
            heads, length = case.num_kv_heads, case.seqlen_k
        plane, row = divmod(number - 1, length)
        batch, head = divmod(plane, heads)
        what = "query head" if side == "q" else "kv head"
        whole = f"row {row} of {what} {head}{_of_batch(case, batch)}"
        return cls(batch, head, row, what, whole)

    def up_to(self, more: int) -> str:
        """Name this row and the `more` rows after it."""
        rows = f"rows {self.row}-{self.row + more}" if more > 0 else f"row {self.row}"
        return rows + self.whole.removeprefix(f"row {self.row}")

    def beside(self, other: _Row) -> str:
        """Name what differs from another row: the batch, else the head, else the row."""
        if self.batch != other.batch:
            return f"batch {self.batch}"
        return f"{self.what} {self.head}" if self.head != other.head else f"row {self.row}"


def _of_batch(case: Case, batch: int) -> str:
    return f" of batch {batch}" if case.batch > 1 else ""
