"""Which heads and strides the loads used, and how their pointers moved."""

from __future__ import annotations

import numpy as np

from grader.causes.rules.sighting import Result, Sighting, accesses, line_of, operand_of
from grader.checks.walk import Walk
from grader.kernel.observers.trace import OPERANDS, Counter, Trace
from grader.spec.cases import Case


def heads(case: Case, trace: Trace, result: Result) -> Sighting | None:
    group = case.num_q_heads // case.num_kv_heads
    for operand in ("k", "v"):
        if any(row["misaligned"] for row in accesses(trace) if operand_of(row) == operand):
            continue
        read = trace.arrays[f"{operand}_heads"].astype(bool)
        for q_plane in range(read.shape[0]):
            batch, q_head = divmod(q_plane, case.num_q_heads)
            due = batch * case.num_kv_heads + q_head // group
            got = np.flatnonzero(read[q_plane])
            if not got.size or set(got.tolist()) == {due}:
                continue
            wrong = next(int(g) for g in got if g != due)
            wrong_batch, wrong_head = divmod(wrong, case.num_kv_heads)
            readers = {row["kernel"] for row in accesses(trace) if operand_of(row) == operand}
            line = line_of(trace, operand) if len(readers) == 1 else 0  # else: of which kernel?
            if wrong_batch != batch:
                return Sighting(
                    "WRONG-BATCH",
                    f"queries of batch {batch} are paired with {operand} of batch {wrong_batch}",
                    f"seen: query head {q_head} of batch {batch} took {operand} of batch"
                    f" {wrong_batch}, kv head {wrong_head}",
                    f"the offset of {operand} is batch * {operand}_strides[0]"
                    f" + head * {operand}_strides[1], of the kv head",
                    line,
                )
            return Sighting(
                "WRONG-KV-HEAD",
                f"query head {q_head} reads {operand} of kv head {wrong_head},"
                f" not of kv head {q_head // group}"
                if "out" in result.wrong  # else a program of kv heads may have read the query head
                else f"query head {q_head} is paired with {operand} of kv head {wrong_head},"
                f" not of kv head {q_head // group}",
                f"{case.num_q_heads} query heads share {case.num_kv_heads} kv heads:"
                f" {group} to a group"
                if group > 1
                else f"seen: {operand} of kv head {wrong_head} was loaded for query head {q_head}",
                "kv_head = q_head // group_size; a kv head's query heads are kv_head * group_size"
                " and those after it"
                if group > 1
                else f"{operand} moves to its head by strides of its own: {operand}.stride()",
                line,
            )
    return None


def strides(case: Case, trace: Trace) -> Sighting | None:
    rows = accesses(trace)
    strides = {operand_of(row): row["stride"] for row in rows}
    width = case.head_dim if case.rows is None else case.cols
    # A tile may hold rows of several heads: then those of q and dout are both walked so.
    one_head = any(operand_of(row) == "q" and row["across"] == row["stride"] for row in rows)
    together = ("k", "v", "x", *(("dout",) if one_head else ()))
    for row in rows:
        name, across, stride = operand_of(row), row["across"], row["stride"]
        what, got, due = "elements" if name == "w" else "rows", across, stride
        if row["size"] < 2:
            continue
        owners = [other for other, own in strides.items() if own == across and other != name]
        if row["along"] != row["column_stride"] and row["along"] == 1 and row["misaligned"]:
            what, got, due = "columns", 1, row["column_stride"]
            title = f"{name} is read as if its columns lay side by side"
        elif across in (stride, 0) or row["along"] != row["column_stride"]:
            continue
        elif owners and row["misaligned"]:
            title = f"{name} is read with the row stride of {' and '.join(owners)}"
        elif name == "w" and across == 1:
            title = "w is read as if its elements lay side by side"
        elif across == width and (row["misaligned"] or name in together):
            title = f"{name} is read as if its rows lay side by side"
        else:
            continue
        return Sighting(
            "WRONG-STRIDE",
            title,
            f"seen: from one to the next the pointer to {name} moves by"
            f" {got} element{'s'[: got != 1]}; its {what} are {due} apart",
            f"{name} has strides of its own, {name}.stride(): use them wherever its pointer moves",
            row["line"],
        )
    return _between_tiles(rows, strides)


def _between_tiles(rows: list[dict[str, int]], strides: dict[str, int]) -> Sighting | None:
    """A pointer that moves from tile to tile by as many rows of another tensor."""
    for row in rows:
        name, step, size, stride = operand_of(row), row["step"], row["size"], row["stride"]
        owners = [o for o, own in strides.items() if step == size * own != size * stride]
        if size > 1 and owners and row["misaligned"]:
            return Sighting(
                "WRONG-STRIDE",
                f"{name} is read with the row stride of {' and '.join(owners)}",
                f"seen: from tile to tile the pointer to {name} moves by {step} elements; {size}"
                f" rows of {name} are {size * stride}",
                f"{name} has strides of its own, {name}.stride(): use them wherever its pointer"
                " moves",
                row["line"],
            )
    return None


def astray(case: Case, trace: Trace) -> Sighting | None:
    """A pointer that is so far off that it reads another tensor, or what lies between rows."""
    line, number = trace.count(Counter.ASTRAY_LINE), trace.count(Counter.ASTRAY)
    if not line or not 0 <= number < len(OPERANDS):
        return None
    name = OPERANDS[number]
    return Sighting(
        "READ-ASTRAY",
        f"the pointer to {name} leaves the elements of {name}",
        f"seen: this line reads addresses that no element of {name} has, by the pointer to {name}",
        f"the offsets of batch, head, row and tile are counted in the strides of {name} itself:"
        f" {name}.stride()",
        line,
    )


def heads_apart(case: Case, trace: Trace) -> Sighting | None:
    """A product of the weights of one head with the rows of another."""
    line, number = trace.count(Counter.HEADS_APART_LINE), trace.count(Counter.HEADS_APART)
    if not line or not 0 <= number < len(OPERANDS):
        return None
    name = OPERANDS[number]
    return Sighting(
        "HEADS-APART",
        f"the weights of one head are multiplied by {name} of another",
        f"seen: the rows of {name} in this product are not of the head that the weights are of",
        f"{name} moves to its batch and head by strides of its own: {name}.stride()",
        line,
    )


def pointers(case: Case, walk: Walk) -> Sighting | None:
    """A pointer that stands still between tiles, or moves by rows and not by their stride."""
    if not walk.missing.any() and not walk.trace.count(Counter.MISMATCHED):
        return None
    for row in accesses(walk.trace):
        name, step, size, stride = operand_of(row), row["step"], row["size"], row["stride"]
        if name not in ("k", "v") or row["count"] <= row["programs"] or not size:
            continue
        if step == 0:
            return Sighting(
                "POINTER-STANDS-STILL",
                f"the pointer to {name} does not move from tile to tile",
                f"seen: a program loads the same {size} rows of {name} again and again",
                "move it by the tile's rows times the row stride in each iteration",
                row["line"],
            )
        if step == size != size * stride:
            return Sighting(
                "POINTER-WITHOUT-STRIDE",
                f"the pointer to {name} moves by {size} elements, not by {size} rows",
                f"seen: rows of {name} are {stride} elements apart; a tile has {size} of them",
                f"move it by {size} * stride: pointers count elements",
                row["line"],
            )
    return None
