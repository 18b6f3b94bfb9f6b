"""Finds wrong heads, strides and steps of pointers, and why accesses are outside of a tensor."""

from __future__ import annotations

from typing import Any

import numpy as np

from grader.base.text import plural
from grader.causes.decide import Kind
from grader.causes.rules.sighting import Result, Sighting, line_of, operand_at, repeated
from grader.checks.counted_pairs import CountedPairs, accesses
from grader.kernel.machine.outside import Outside
from grader.kernel.observers.trace import Counter, Trace
from grader.spec.cases import Case


def elsewhere(
    line: int, operand: str, q_head: int, there: tuple[int, int], due: tuple[int, int]
) -> Sighting:
    """Name the wrong batch or head of K or V that a function of PyTorch used for a query head."""
    id = "WRONG-KV-HEAD" if there[0] == due[0] else "WRONG-BATCH"
    return Sighting(
        id,
        line,
        variant="indexed",
        operand=operand,
        q_head=q_head,
        batch=due[0],
        wrong_batch=there[0],
        wrong_head=there[1],
        due=due[1],
    )


def heads(case: Case, trace: Trace, result: Result, *, alone: bool = False) -> Sighting | None:
    """Find a query head that reads K or V of a wrong head; `alone`: of wrong heads only.

    A pointer that runs past the end of its head is at the next one, too.
    """
    group = case.num_q_heads // case.num_kv_heads
    for operand in ("k", "v"):
        if any(row["misaligned"] for row in accesses(trace) if row["name"] == operand):
            continue
        read = trace.arrays[f"{operand}_heads"].astype(bool)
        for q_plane in range(read.shape[0]):
            batch, q_head = divmod(q_plane, case.num_q_heads)
            due = batch * case.num_kv_heads + q_head // group
            got = np.flatnonzero(read[q_plane])
            if not got.size or set(got.tolist()) == {due} or (alone and due in got):
                continue
            wrong = next(int(g) for g in got if g != due)
            wrong_batch, wrong_head = divmod(wrong, case.num_kv_heads)
            line = line_of(trace, operand)
            if wrong_batch != batch:
                return Sighting(
                    "WRONG-BATCH",
                    line,
                    batch=batch,
                    operand=operand,
                    wrong_batch=wrong_batch,
                    q_head=q_head,
                    wrong_head=wrong_head,
                )
            # In a backward pass, a program of the kv head may be the one that reads a wrong head.
            reads = "reads" if "out" in result.wrong else "is paired with"
            return Sighting(
                "WRONG-KV-HEAD",
                line,
                variant="" if group > 1 else "ungrouped",
                q_head=q_head,
                reads=reads,
                operand=operand,
                wrong_head=wrong_head,
                due=q_head // group,
                q_heads=case.num_q_heads,
                kv_heads=case.num_kv_heads,
                group=group,
            )
    return None


def strides(case: Case, trace: Trace) -> Sighting | None:
    """Find a stride of another tensor, or none, where a pointer moves in a tile or to the next."""
    rows = accesses(trace)
    several = [row for row in rows if _length_of(row["name"], case) > 1]
    strides = {row["name"]: row["stride"] for row in several}
    width = case.head_dim if case.rows is None else case.cols
    # Where a tile holds rows of several heads, rows of q and of dout are apart by other strides.
    one_head = any(row["name"] == "q" and row["across"] == row["stride"] for row in rows)
    together = ("k", "v", "x", *(("dout",) if one_head else ()))
    for row in rows:
        name, across, stride = row["name"], row["across"], row["stride"]
        what, got, due = "elements" if name == "w" else "rows", across, stride
        if row["size"] < 2:
            continue
        owners = [other for other, own in strides.items() if own == across and other != name]
        if (
            row["along"] != row["column_stride"]
            and row["along"] in (1, stride)
            and row["misaligned"]
        ):
            what, got, due = "columns", row["along"], row["column_stride"]
            variant = "" if got == 1 else "of_rows"
        elif row["along"] == 0 != row["column_stride"] or (name == "w" and across == 0 != stride):
            variant = "of_one_column"
        elif across == 0 != stride and case.seqlen_q % row["size"] != 1 and name == "q":
            variant = "of_one_row"  # and no tile whose rows are all clamped to the last row
        elif across in (stride, 0) or row["along"] != row["column_stride"] or row not in several:
            continue
        elif owners and row["misaligned"]:
            variant = "of_another" if across != 1 else ""  # a stride of 1 is no tensor's own
        else:
            of_width = across == width and (row["misaligned"] or name in together)
            if not of_width and (name != "w" or across != 1):
                continue
            variant = ""
        return Sighting(
            "WRONG-STRIDE",
            row["line"],
            variant=variant,
            name=name,
            owners=" and ".join(owners),
            moves=plural(got, "element"),
            what=what,
            due=due,
        )
    return _between_tiles(several, strides) or _between_rows(several)


def _length_of(name: str, case: Case) -> int:
    """Return how many rows an operand has in a head; one row has no distance to a next one."""
    if case.rows is not None:
        return case.cols if name == "w" else case.rows
    return case.seqlen_k if name in ("k", "v") else case.seqlen_q


def _between_tiles(rows: list[dict[str, int]], strides: dict[str, int]) -> Sighting | None:
    """Find a pointer that moves from tile to tile by the row stride of another tensor."""
    for row in rows:
        name, step, size, stride = row["name"], row["step"], row["size"], row["stride"]
        owners = [o for o, own in strides.items() if step == size * own != size * stride]
        if size > 1 and owners and row["misaligned"]:
            return Sighting(
                "WRONG-STRIDE",
                row["line"],
                variant="between_tiles",
                part="address+stride+launch",  # the pointer itself is moved by the stride
                name=name,
                owners=" and ".join(owners),
                step=step,
                size=size,
                due=size * stride,
            )
    return None


def _between_rows(rows: list[dict[str, int]]) -> Sighting | None:
    """Find a pointer whose tiles begin inside a row, though the strides in a tile are right."""
    for row in rows:
        due = row["across"] == row["stride"] and row["along"] == row["column_stride"]
        if row["misaligned"] and due and row["size"] > 1 and row["name"] in ("q", "k", "v", "dout"):
            name, line = row["name"], row["line"]
            return _without_stride(row) or Sighting(
                "READ-OUTSIDE", line, variant="between_rows", part="pointer", name=name
            )
    return None


def _without_stride(row: dict[str, int]) -> Sighting | None:
    """Find a pointer that moves from tile to tile by as many elements as a tile has rows."""
    name, size, stride = row["name"], row["size"], row["stride"]
    if not size or abs(row["step"]) != size or stride == 1:
        return None
    return Sighting("POINTER-WITHOUT-STRIDE", row["line"], name=name, size=size, stride=stride)


def never_read(case: Case, trace: Trace) -> Sighting | None:
    """Find q or k that no program reads though tiles are multiplied: another input replaces it.

    v may be unread because its product goes nowhere, which is another mistake. A forward pass that
    reads as many elements as there are of all three reads a copy of the one.
    """
    lines: dict[str, set[int]] = {name: set() for name in ("q", "k", "v")}
    names = set()
    for row in accesses(trace):
        names.add(row["name"])
        lines.get(row["name"], set()).add(row["line"])
    missing = [name for name, of in lines.items() if not of]
    again = [min(of) for of in lines.values() if len(of) > 1]
    if missing not in (["q"], ["k"]) or not trace.count(Counter.MULTIPLY_ADDS):
        return None
    rows = case.num_q_heads * case.seqlen_q + 2 * case.num_kv_heads * case.seqlen_k
    every = case.batch * rows * case.head_dim
    if "dout" not in names and trace.count(Counter.DISTINCT_READ) >= every:
        return None
    others = " and ".join(name for name, of in lines.items() if of)
    return Sighting("INPUT-NEVER-READ", min(again, default=0), name=missing[0], others=others)


def astray(trace: Trace) -> Sighting | None:
    """Find a pointer so far off that it reads another tensor, or what lies between rows."""
    line, name = operand_at(trace, Counter.ASTRAY_LINE, Counter.ASTRAY)
    return Sighting("READ-OUTSIDE", line, name=name) if name else None


def heads_apart(trace: Trace) -> Sighting | None:
    """Find a product of the weights of one head with the rows of another."""
    line, name = operand_at(trace, Counter.HEADS_APART_LINE, Counter.HEADS_APART)
    return Sighting("HEADS-APART", line, variant="weights", name=name) if name else None


def pointers(counted: CountedPairs) -> Sighting | None:
    """Find a pointer that stands still between tiles, or moves by rows without their stride."""
    if not counted.missing.any() and not counted.trace.count(Counter.MISMATCHED):
        return None
    for row in repeated(counted.trace, "k", "v"):
        if row["size"] and row["step"] == 0:
            return stands_still(row, f"{row['size']} rows", "rows", "row stride")
        if found := _without_stride(row):
            return found
    return None


def stands_still(row: dict[str, Any], what: str, along: str, stride: str) -> Sighting:
    """Say that a pointer does not move between tiles of `what`, nor by its `stride`."""
    line, name, id = row["line"], row["name"], "POINTER-STANDS-STILL"
    return Sighting(id, line, name=name, what=what, along=along, stride=stride)


def outside(how: str, line: int, of: str) -> Sighting | None:
    """Return the cause of an access outside of its tensor; `how` is a value of `Outside`."""
    if how == Outside.EDGE:
        return Sighting("EDGE-NOT-MASKED", line, pointer=of)
    if how == Outside.BLOCK:
        return Sighting("EDGE-NOT-MASKED", line, variant="of_blocks", pointer=of)
    if how == Outside.MASK:
        return Sighting("MASK-TOO-WIDE", line, pointer=of)
    if how == Outside.STRIDE:
        return Sighting("WRONG-STRIDE", line, variant="outside", pointer=of)
    if how == Outside.SHIFT:
        return Sighting("TILE-OUTSIDE", line, variant="shifted", pointer=of)
    if how == Outside.POINTER:
        return Sighting("TILE-OUTSIDE", line, pointer=of, part="pointer")
    if how == Outside.BEFORE:  # where a loop over tiles begins, or an offset
        return Sighting("TILE-OUTSIDE", line, pointer=of, part="offset+before")
    if how == Outside.TILE:
        return Sighting("TILE-OUTSIDE", line, pointer=of, part="offset+after")
    if how == Outside.WRAPS:
        return Sighting("OFFSET-OVERFLOWS", line, kind=Kind.PROVED, pointer=of)
    return None
