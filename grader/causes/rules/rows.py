"""Finds rows, heads and elements of x that programs leave out or use more than once."""

from __future__ import annotations

import numpy as np

from grader.base.text import plural
from grader.causes.rules.pointers import stands_still
from grader.causes.rules.sighting import Result, Sighting, line_of, repeated
from grader.checks.correctness import ranges
from grader.checks.counted_pairs import CountedPairs, accesses
from grader.kernel.observers.trace import GRADIENTS, Counter, Trace
from grader.spec.cases import Case


def query_rows(case: Case, trace: Trace) -> Sighting | None:
    """Find rows of the output that no program stores, or that several store differently."""
    stores, programs = trace.arrays["stores"], trace.arrays["programs"]
    if not trace.count(Counter.PROGRAMS) and trace.count(Counter.LAUNCHES):
        return Sighting("EMPTY-GRID")
    if not stores.any():
        return _nothing_stored(trace)
    if not len(programs):
        return None
    out, length = ("out", case.seqlen_q) if case.rows is None else ("y", case.rows)
    nobody = (stores == 0).reshape(-1, length)
    # Rows that are computed twice, as indices wrap around, do no harm if the results are equal.
    harm = nobody.any() or trace.count(Counter.STORED_OTHERWISE) > 0
    twice = trace.count(Counter.STORED_TWICE) > 0 and harm
    line = int(programs["line"][0])
    firsts, sizes = programs["first"], programs["last"] - programs["first"] + 1
    tile = max(1, int(sizes.max()))
    heads = nobody.all(axis=1)
    ran = trace.count(Counter.PROGRAMS) if trace.count(Counter.LAUNCHES) == 1 else 0
    enough = ran >= heads.size * -(-length // tile)  # then the kernel is wrong, and not the grid
    if twice:
        for axis in "xyz":
            order = programs[programs[axis].argsort(kind="stable")]
            one, other = (order[a] == order[a][0] for a in "xyz" if a != axis)
            group = order[one & other & (order["kernel"] == 0)]
            steps = np.diff(group["first"])
            neighbours = len(group) > 1 and (np.diff(group[axis]) == 1).all()
            if neighbours and tile > 1 and (abs(steps) == 1).all():
                first = _first(group["first"])
                return Sighting("TILE-NUMBER-AS-ROW", line, tile=tile, first=first)
        again = trace.count(Counter.STORED_TWICE_LINE) or line
        left_out = _rows_of_one(nobody, case)
        return Sighting(
            "ROWS-STORED-TWICE",
            again,
            part="address" if enough else None,
            out=out,
            programs=_two_programs(programs, case, len(nobody)),
            nobody=f"; no program stores {left_out}" if left_out else "",
        )
    if heads.any() and not nobody[~heads].any():
        return Sighting(
            "HEADS-NEVER-COMPUTED",
            line,
            part="address" if enough else "grid" if ran else None,
            variant="in_the_kernel" if enough else "",
            number=int(heads.sum()),
            of=heads.size,
            stored=_planes(~heads, case),
            missing=_planes(heads, case),
            programs=ran,
        )
    if nobody.any():
        partial = length // tile * tile
        rest = np.zeros_like(nobody)
        rest[:, partial:] = True
        if 0 < partial < length and (nobody == rest).all() and (firsts % tile == 0).all():
            return _last_rows(out, tile, length)
        # Rows right behind a tile that is stored whole are in no tile, and no mask hides them.
        loaded = {row["size"] for row in accesses(trace) if row["name"] in ("q", "x")}
        behind = firsts[sizes == tile] + tile
        apart = loaded == {tile} and bool(nobody.any(0)[behind[behind < length]].all())
        return Sighting(
            "ROWS-NEVER-STORED",
            line,
            part="address" if enough and apart else None,
            out=out,
            rows=_rows_of_one(nobody, case),
            first=_first(np.unique(firsts)),
        )
    return None


def _nothing_stored(trace: Trace) -> Sighting | None:
    line, programs = trace.count(Counter.IDLE_STORE_LINE), trace.count(Counter.PROGRAMS)
    return Sighting("NOTHING-STORED", line, programs=plural(programs, "program")) if line else None


def rows_of_gradient(counted: CountedPairs, result: Result) -> Sighting | None:
    """Find the last rows of a gradient, if nothing is stored to them and nothing read for them."""
    if counted.product not in GRADIENTS or not result.nan:
        return None
    axis, tile = (2, counted.tile[1]) if counted.over_queries else (3, counted.tile[0])
    untouched = ~counted.visited.any(axis)  # (batch, q head, row)
    length = untouched.shape[-1]
    partial = length // tile * tile
    rest = np.arange(length) >= partial
    if not 0 < partial < length or not (untouched == rest).all():
        return None
    if (counted.missing.any(axis) != rest).any():
        return None
    return _last_rows(counted.product, tile, length)


def _last_rows(name: str, tile: int, length: int) -> Sighting:
    partial = length // tile * tile
    return Sighting(
        "LAST-ROWS-LEFT-OUT",
        missing=length - partial,
        name=name,
        tile=tile,
        last=partial - 1,
        length=length,
    )


def _planes(hit: np.ndarray, case: Case) -> str:
    """Name query heads, by batch * num_q_heads + head where there are several batches."""
    what = "query head" if case.batch == 1 else "batch * num_q_heads + head"
    return f"{what}{'s' if hit.sum() > 1 and case.batch == 1 else ''} {ranges(hit)}"


def _rows_of_one(hit: np.ndarray, case: Case) -> str:
    """Name the hit rows of the first head that has any, and that head; "" if none has."""
    heads = np.flatnonzero(hit.any(axis=1))
    if not heads.size:
        return ""
    return f"rows {ranges(hit[heads[0]])}{_of_head(int(heads[0]), case, len(hit))}"


def _of_head(head: int, case: Case, of: int) -> str:
    return f" of {_planes(np.arange(of) == head, case)}" if case.rows is None else ""


def _first(rows: np.ndarray) -> str:
    return ", ".join(map(str, sorted(rows.tolist())[:3])) + (", ..." if len(rows) > 3 else "")


def _two_programs(programs: np.ndarray, case: Case, heads: int) -> str:
    seen: dict[tuple[int, int], tuple[int, ...]] = {}
    for _, *place, head, first, last, _ in programs.tolist():
        key, place = (head, first), tuple(place)
        if key in seen and seen[key] != place:
            rows = f"rows {first}-{last}{_of_head(head, case, heads)}"
            return f"programs {seen[key]} and {place} both store {rows}"
        seen.setdefault(key, place)
    return "programs overlap"


def elements_of_x(case: Case, trace: Trace) -> Sighting | None:
    """Find elements of x that are not read once, or a pointer to x that stands still."""
    reads = trace.arrays["visits"].sum(axis=0, dtype=np.int64)
    if (reads == 1).all():
        return None
    if not reads.any():
        return _nothing_read(trace)
    for row in repeated(trace, "x"):
        if row["step"] == 0 and not reads.all():
            return stands_still(row, "tile", "columns", "column stride")
    columns, rows = (reads == 0).all(axis=0), (reads == 0).all(axis=1)
    if columns.any() and not columns.all() and (reads[:, ~columns] == 1).all():
        first, end = np.flatnonzero(columns)[[0, -1]].tolist()
        together = bool(columns[first : end + 1].all())
        last = together and columns[-1]
        variant = "apart" if not together else "first" if columns[0] else ""
        return Sighting(
            "LAST-COLUMNS-NEVER-READ" if last else "COLUMNS-NEVER-READ",
            line_of(trace, "x"),
            variant=variant,
            columns=ranges(columns),
            of=case.cols,
        )
    if rows.any() and not rows.all():
        return Sighting("ROWS-NEVER-READ", line_of(trace, "x"), rows=ranges(rows), of=case.rows)
    return None


def elements_of_w(case: Case, trace: Trace) -> Sighting | None:
    """Find a pointer to w that stands still while the one to x moves."""
    reads = trace.arrays["visits"].sum(axis=0, dtype=np.int64)
    for row in repeated(trace, "w"):
        if row["step"] == 0 and row["size"] < case.cols and (reads == 1).all():
            what = "element" if row["size"] == 1 else f"{row['size']} elements"
            return stands_still(row, what, "columns", "stride of w")
    return None


def _nothing_read(trace: Trace) -> Sighting | None:
    """Find programs that end before they have read x."""
    programs = trace.count(Counter.PROGRAMS)
    if not programs or trace.count(Counter.UNKNOWN_READS):
        return None
    if line_of(trace, "w"):  # its loop over columns did run
        return Sighting("INPUT-NEVER-READ", name="x", others="w")
    text = plural(programs, "program")
    return Sighting("COLUMNS-NEVER-READ", variant="none_read", programs=text)
