"""Which rows, heads and elements of x the programs took on."""

from __future__ import annotations

import numpy as np

from grader.causes.rules.sighting import Result, Sighting, accesses, line_of, operand_of
from grader.checks.correctness import ranges
from grader.checks.walk import Walk
from grader.kernel.observers.trace import GRADIENTS, Counter, Trace
from grader.spec.cases import Case


def query_rows(case: Case, trace: Trace) -> Sighting | None:
    """Which program stores which rows of out."""
    stores, programs = trace.arrays["stores"], trace.arrays["programs"]
    if not trace.count(Counter.PROGRAMS) and trace.count(Counter.LAUNCHES):
        return Sighting(
            "EMPTY-GRID",
            "the grid is empty: no program runs",
            "seen: a kernel was launched, and not one program of it ran",
            "the grid needs triton.cdiv(rows, BLOCK_M) programs, not rows // BLOCK_M",
            of_grid=True,
        )
    if not len(programs) or not stores.any():
        return None
    out, length = ("out", case.seqlen_q) if case.rows is None else ("y", case.rows)
    nobody = (stores == 0).reshape(-1, length)
    # Rows that are computed twice, by indices that wrap around, are right if they are alike.
    harm = nobody.any() or trace.count(Counter.STORED_OTHERWISE) > 0
    twice = trace.count(Counter.STORED_TWICE) > 0 and harm
    line = int(programs[0][7])
    firsts, sizes = programs[:, 5], programs[:, 6] - programs[:, 5] + 1
    tile = max(1, int(sizes.max()))
    if twice:
        for axis in (1, 2, 3):
            order = programs[programs[:, axis].argsort(kind="stable")]
            same = [a for a in (1, 2, 3) if a != axis]
            group = order[(order[:, same] == order[0, same]).all(axis=1) & (order[:, 0] == 0)]
            steps = np.diff(group[:, 5])
            neighbours = len(group) > 1 and (np.diff(group[:, axis]) == 1).all()
            if neighbours and tile > 1 and (abs(steps) == 1).all():
                return Sighting(
                    "TILE-NUMBER-AS-ROW",
                    f"tiles of {tile} rows begin one row apart",
                    f"seen: programs begin at rows {_first(group[:, 5])}; each stores {tile} rows",
                    "a tile's first row is its number times the tile's size",
                    line,
                )
        again = trace.count(Counter.STORED_TWICE_LINE) or line
        where = f"; no program stores rows {ranges(nobody.any(0))}" if nobody.any() else ""
        return Sighting(
            "ROWS-STORED-TWICE",
            f"two programs store the same rows of {out}",
            f"seen: {_two_programs(programs)}{where}",
            "each program needs rows of its own: look at program_id and its axis",
            again,
        )
    heads = nobody.all(axis=1)
    ran = trace.count(Counter.PROGRAMS) if trace.count(Counter.LAUNCHES) == 1 else 0
    enough = ran >= heads.size * -(-length // tile)  # what is wrong is in the kernel
    if heads.any() and not nobody[~heads].any():
        return Sighting(
            "HEADS-OF-NOBODY",
            f"no program computes {int(heads.sum())} of {heads.size} query heads",
            f"seen: out is stored for {_planes(~heads, case)} and not for {_planes(heads, case)}"
            + (f", by a grid of {ran} programs" if enough else ""),
            "the grid is large enough: how does a program find its batch, head and tile in"
            " program_id?"
            if enough
            else "the grid needs batch * num_q_heads programs on its axis of heads",
            line,
            of_grid=True,
        )
    if nobody.any():
        partial = length // tile * tile
        rest = np.zeros_like(nobody)
        rest[:, partial:] = True
        if 0 < partial < length and (nobody == rest).all() and (firsts % tile == 0).all():
            return _last_rows(out, tile, length)
        head = int(np.flatnonzero(nobody.any(axis=1))[0])
        one = np.arange(nobody.shape[0]) == head
        where = f" of {_planes(one, case)}" if case.rows is None else ""
        return Sighting(
            "ROWS-OF-NOBODY",
            f"no program stores some rows of {out}",
            f"seen: rows {ranges(nobody[head])}{where} are not stored; programs"
            f" begin at rows {_first(np.unique(firsts))}",
            "which rows does each program_id get, does the mask of tl.store let them pass, and does"
            " the grid have a program for each tile?",
            line,
            of_grid=True,
        )
    return None


def rows_of_gradient(case: Case, walk: Walk, result: Result) -> Sighting | None:
    """The last rows of a gradient, which are left as they were and for which nothing was read."""
    if walk.product not in GRADIENTS or not result.nan:
        return None
    axis, tile = (2, walk.tile[1]) if walk.over_queries else (3, walk.tile[0])
    untouched = ~walk.visited.any(axis)  # (batch, q head, row)
    length = untouched.shape[-1]
    partial = length // tile * tile
    rest = np.arange(length) >= partial
    if not 0 < partial < length or not (untouched == rest).all():
        return None
    if (walk.missing.any(axis) != rest).any():
        return None
    return _last_rows(walk.product, tile, length)


def _last_rows(name: str, tile: int, length: int) -> Sighting:
    partial = length // tile * tile
    return Sighting(
        "LAST-ROWS-LEFT-OUT",
        f"no program computes the last {length - partial} rows of {name}",
        f"seen: tiles of {tile} rows are stored up to row {partial - 1} of {length}",
        "the grid needs triton.cdiv(rows, BLOCK_M) programs, not rows // BLOCK_M",
        of_grid=True,
    )


def _planes(hit: np.ndarray, case: Case) -> str:
    """Name query heads; over all batches, where there are several, in order."""
    what = "query head" if case.batch == 1 else "batch * num_q_heads + head"
    return f"{what}{'s' if hit.sum() > 1 and case.batch == 1 else ''} {ranges(hit)}"


def _first(rows: np.ndarray) -> str:
    return ", ".join(map(str, sorted(rows.tolist())[:3])) + (", ..." if len(rows) > 3 else "")


def _two_programs(programs: np.ndarray) -> str:
    seen: dict[tuple[int, int], tuple[int, ...]] = {}
    for row in programs.tolist():
        key = (row[4], row[5])
        place = tuple(row[1:4])
        if key in seen and seen[key] != place:
            rows = f"rows {row[5]}-{row[6]}" + (f" of head {row[4]}" if row[4] else "")
            return f"programs {seen[key]} and {place} both store {rows}"
        seen.setdefault(key, place)
    return "programs overlap"


def elements_of_x(case: Case, trace: Trace) -> Sighting | None:
    """Which elements of x were read, and how its pointer moves."""
    reads = trace.arrays["visits"].sum(axis=0, dtype=np.int64)
    if (reads == 1).all():
        return None
    if not reads.any():
        return _nothing_read(trace)
    for row in accesses(trace):
        repeated = row["count"] > row["programs"] and operand_of(row) == "x"
        if repeated and row["step"] == 0 and not reads.all():
            return Sighting(
                "POINTER-STANDS-STILL",
                "the pointer to x does not move from tile to tile",
                "seen: a program loads the same tile of x again and again",
                "move it by the tile's columns times the column stride in each iteration",
                row["line"],
            )
    columns, rows = (reads == 0).all(axis=0), (reads == 0).all(axis=1)
    if columns.any() and not columns.all() and (reads[:, ~columns] == 1).all():
        first, end = np.flatnonzero(columns)[[0, -1]].tolist()
        together = bool(columns[first : end + 1].all())
        last = together and columns[-1]
        return Sighting(
            "LAST-COLUMNS-NEVER-READ" if last else "COLUMNS-NEVER-READ",
            f"{'the last' if last else 'some'} columns of x are never read",
            f"seen: columns {ranges(columns)} of {case.cols} are read by no program",
            "the loop over columns begins at column 0"
            if together and columns[0]
            else "the loop over columns goes to cols, and so does the mask of each tile"
            if together
            else "each tile, and each program's share, begins where the one before it ends",
            line_of(trace, "x"),
        )
    if rows.any() and not rows.all():
        return Sighting(
            "ROWS-NEVER-READ",
            "some rows of x are never read",
            f"seen: rows {ranges(rows)} of {case.rows} are read by no program",
            "which rows does each program_id get, and by which stride does a row follow another?",
            line_of(trace, "x"),
        )
    return None


def elements_of_w(case: Case, trace: Trace) -> Sighting | None:
    """A pointer to w that stays where it is while the one to x moves."""
    reads = trace.arrays["visits"].sum(axis=0, dtype=np.int64)
    for row in accesses(trace):
        repeated = row["count"] > row["programs"] and operand_of(row) == "w"
        if repeated and row["step"] == 0 and row["size"] < case.cols and (reads == 1).all():
            return Sighting(
                "POINTER-STANDS-STILL",
                "the pointer to w does not move from tile to tile",
                f"seen: a program loads the same {_elements(row['size'])} of w again and again",
                "move it by the tile's columns times the stride of w in each iteration",
                row["line"],
            )
    return None


def _nothing_read(trace: Trace) -> Sighting | None:
    """Programs that end before they have read x."""
    programs = trace.count(Counter.PROGRAMS)
    if not programs or trace.count(Counter.UNKNOWN_READS):
        return None
    return Sighting(
        "COLUMNS-NEVER-READ",
        "no element of x is read",
        f"seen: {programs} program{'s' if programs > 1 else ''} ran, and none read x",
        "where does the loop over columns begin and end, and which elements does the mask let"
        " pass?",
    )


def _elements(size: int) -> str:
    return f"{size} elements" if size > 1 else "element"
