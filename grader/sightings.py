"""Names a cause from what the judge saw a kernel do: which pairs, rows, heads and strides.

Every rule here states what was seen, in its own words, with the line; it is asked only about a call
whose result is wrong. What leaves the walk as it should be (scale, rescale, lse, delta, signs) is
not seen here: see `grader.diagnose`. No name is better than a wrong one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from grader.cases import Case
from grader.checks.correctness import ranges
from grader.checks.walk import Walk, walk_of
from grader.running.trace import ACCESS, OPERANDS, PRODUCTS, Counter, Trace

_SUBTRACTION = 1  # see grader.running.tracer


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A cause that was seen: `id` without the problem's prefix, where, and what to do.

    `line` is where it shows. Only where that is also where the mistake lies (`located`) is its step
    known: a loop shows what is wrong with limits that were computed elsewhere.
    """

    id: str
    title: str
    note: str
    help: str
    line: int = 0
    located: bool = False


@dataclasses.dataclass(frozen=True)
class Result:
    """What is wrong with a call: names of outputs, whether one holds NaN, whether all are close.

    Close is a wrong result that rounding can explain: an error of a few hundredths of the values.
    """

    wrong: tuple[str, ...]
    nan: bool
    close: bool


def look(problem_id: str, case: Case, trace: Trace, result: Result) -> Sighting | None:
    """Return why the outputs of a traced call are wrong, None where that was not seen."""
    rules = _OF_ROW_SUMS if case.rows is not None else _BEFORE
    for rule in rules:
        found = rule(case, trace)
        if found is not None:
            return found
    if case.rows is not None:
        return None
    for name in result.wrong:
        walk = walk_of(problem_id, case, trace, name) if name in PRODUCTS else None
        if walk is None:
            continue
        for judge in _RULES:
            found = judge(case, walk)
            if found is not None:
                return found
    if result.nan:
        return _nan(trace)
    if result.close:
        return _narrow(case, trace)
    return _over_queries(trace) if "out" in result.wrong else None


# -- heads, strides, pointers -------------------------------------------------------------------


def _heads(case: Case, trace: Trace) -> Sighting | None:
    group = case.num_q_heads // case.num_kv_heads
    for operand in ("k", "v"):
        if any(row["misaligned"] for row in _accesses(trace) if _operand(row) == operand):
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
            line = _line_of(trace, operand)
            if wrong_batch != batch:
                return Sighting(
                    "WRONG-BATCH",
                    f"the queries of batch {batch} read {operand} of batch {wrong_batch}",
                    f"seen: query head {q_head} of batch {batch} took {operand} of batch"
                    f" {wrong_batch}, kv head {wrong_head}",
                    f"the offset of {operand} is batch * stride_{operand}b"
                    f" + kv_head * stride_{operand}h",
                    line,
                )
            return Sighting(
                "WRONG-KV-HEAD",
                f"query head {q_head} reads {operand} of kv head {wrong_head},"
                f" not of kv head {q_head // group}",
                f"{case.num_q_heads} query heads share {case.num_kv_heads} kv heads:"
                f" {group} to a group",
                "kv_head = q_head // (num_q_heads // num_kv_heads)",
                line,
            )
    return None


def _strides(case: Case, trace: Trace) -> Sighting | None:
    rows = _accesses(trace)
    strides = {_operand(row): row["stride"] for row in rows}
    width = case.head_dim if case.rows is None else case.cols
    for row in rows:
        name, across, stride = _operand(row), row["across"], row["stride"]
        what, got, due = "rows", across, stride
        if row["size"] < 2:
            continue
        owners = [other for other, own in strides.items() if own == across and other != name]
        if row["along"] != row["column_stride"] and row["along"] == 1 and row["misaligned"]:
            what, got, due = "columns", 1, row["column_stride"]
            title = f"{name} is walked as if its columns lay side by side"
        elif across in (stride, 0) or row["along"] != row["column_stride"]:
            continue
        elif owners and row["misaligned"]:
            title = f"{name} is walked with the row stride of {' and '.join(owners)}"
        elif across == width and (row["misaligned"] or name in ("k", "v", "x")):
            title = f"{name} is walked as if its rows lay side by side"
        else:
            continue
        return Sighting(
            "WRONG-STRIDE",
            title,
            f"seen: from one to the next the pointer to {name} moves by {got} elements; its"
            f" {what} are {due} apart",
            f"{name} has strides of its own: pass {name}.stride() to the kernel and use it",
            row["line"],
        )
    return None


def _pointers(case: Case, walk: Walk) -> Sighting | None:
    """A pointer that stands still between tiles, or moves by rows and not by their stride."""
    if not walk.missing.any() and not walk.trace.count(Counter.MISMATCHED):
        return None
    for row in _accesses(walk.trace):
        name, step, size, stride = _operand(row), row["step"], row["size"], row["stride"]
        if name not in ("k", "v") or row["count"] <= row["programs"] or not size:
            continue
        if step == 0:
            return Sighting(
                "POINTER-STANDS-STILL",
                f"the pointer to {name} does not move from tile to tile",
                f"seen: a program loads the same {size} rows of {name} again and again",
                "move it by the tile's rows times the row stride in each round of the loop",
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


# -- queries ------------------------------------------------------------------------------------


def _query_rows(case: Case, trace: Trace) -> Sighting | None:
    """Which program stores which rows of out."""
    stores, programs = trace.arrays["stores"], trace.arrays["programs"]
    if not trace.count(Counter.PROGRAMS) and trace.count(Counter.LAUNCHES):
        return Sighting(
            "EMPTY-GRID",
            "the grid has no program",
            "seen: a kernel was launched, and not one program of it ran",
            "the grid needs triton.cdiv(rows, BLOCK_M) programs, not rows // BLOCK_M",
        )
    if not len(programs) or not stores.any():
        return None
    out, length = ("out", case.seqlen_q) if case.rows is None else ("y", case.rows)
    nobody = (stores == 0).reshape(-1, length)
    twice = trace.count(Counter.STORED_TWICE) > 0
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
        where = f"; rows {ranges(nobody.any(0))} are stored by none" if nobody.any() else ""
        return Sighting(
            "ROWS-STORED-TWICE",
            f"two programs store the same rows of {out}",
            f"seen: {_two_programs(programs)}{where}",
            "each program needs rows of its own: look at program_id and its axis",
            again,
        )
    heads = nobody.all(axis=1)
    if heads.any() and not nobody[~heads].any():
        return Sighting(
            "HEADS-OF-NOBODY",
            f"no program computes {int(heads.sum())} of {heads.size} query heads",
            f"seen: out is stored for {_planes(~heads, case)} and not for {_planes(heads, case)}",
            "the grid needs batch * num_q_heads programs on its axis of heads",
            line,
        )
    if nobody.any():
        partial = length // tile * tile
        rest = np.zeros_like(nobody)
        rest[:, partial:] = True
        if 0 < partial < length and (nobody == rest).all() and (firsts % tile == 0).all():
            return Sighting(
                "LAST-ROWS-LEFT-OUT",
                f"no program computes the last {length - partial} rows of {out}",
                f"seen: tiles of {tile} rows are stored up to row {partial - 1} of {length}",
                "the grid needs triton.cdiv(rows, BLOCK_M) programs, not rows // BLOCK_M",
            )
        head = int(np.flatnonzero(nobody.any(axis=1))[0])
        one = np.arange(nobody.shape[0]) == head
        where = f" of {_planes(one, case)}" if case.rows is None else ""
        return Sighting(
            "ROWS-OF-NOBODY",
            f"no program stores some rows of {out}",
            f"seen: rows {ranges(nobody[head])}{where} are not stored; programs"
            f" begin at rows {_first(np.unique(firsts))}",
            "which rows does each program_id get, and does the grid have a program for each tile?",
            line,
        )
    return None


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


def _elements_of_x(case: Case, trace: Trace) -> Sighting | None:
    """Which elements of x were read, and how its pointer moves."""
    reads = trace.arrays["visits"].sum(axis=0, dtype=np.int64)
    if not reads.any() or (reads == 1).all():
        return None
    for row in _accesses(trace):
        repeated = row["count"] > row["programs"] and _operand(row) == "x"
        if repeated and row["step"] == 0 and not reads.all():
            return Sighting(
                "POINTER-STANDS-STILL",
                "the pointer to x does not move from tile to tile",
                "seen: a program loads the same tile of x again and again",
                "move it by the tile's columns times the column stride in each round of the loop",
                row["line"],
            )
    columns, rows = (reads == 0).all(axis=0), (reads == 0).all(axis=1)
    if columns.any() and not columns.all() and (reads[:, ~columns] == 1).all():
        last = not columns[: int(np.flatnonzero(columns)[0])].any() and columns[-1]
        return Sighting(
            "LAST-COLUMNS-NEVER-READ" if last else "COLUMNS-NEVER-READ",
            f"the {'last ' if last else ''}columns of x are never read",
            f"seen: columns {ranges(columns)} of {case.cols} are read by no program",
            "the loop over columns goes to cols, the last tile masked",
            _line_of(trace, "x"),
        )
    if rows.any() and not rows.all() and not (reads[~rows] == 0).any():
        return Sighting(
            "ROWS-NEVER-READ",
            "some rows of x are never read",
            f"seen: rows {ranges(rows)} of {case.rows} are read by no program",
            "which rows does each program_id get?",
            _line_of(trace, "x"),
        )
    return None


# -- pairs --------------------------------------------------------------------------------------


def _mismatched(case: Case, walk: Walk) -> Sighting | None:
    if not walk.trace.count(Counter.MISMATCHED) or walk.product != "out":
        return None
    return Sighting(
        "K-AND-V-APART",
        "the weights of one tile of keys meet the values of another",
        "seen: the rows of k and of v in one round of the loop are not the same",
        "k and v of a tile begin at the same row and move together",
        walk.trace.count(Counter.MISMATCHED_LINE),
    )


def _padding(case: Case, walk: Walk) -> Sighting | None:
    if not walk.trace.count(Counter.PADDING_TAKEN) or walk.product != "out":
        return None
    return Sighting(
        "PADDING-TAKEN",
        "keys beyond the end of the sequence take part",
        f"seen: the last tile reaches past key {case.seqlen_k - 1}; its empty lanes have weights"
        " other than zero",
        "their scores are to be -inf before the maximum is taken: tl.where(keys < seqlen_k, ..., "
        'float("-inf"))',
        walk.trace.count(Counter.PADDING_LINE),
    )


def _positions_in_the_tile(case: Case, walk: Walk) -> Sighting | None:
    """A causal mask that compares positions inside the tiles."""
    if "window_size" in case.kwargs or walk.due.all() or walk.twice.any():
        return None
    if not walk.missing.any() and not walk.extra.any():
        return None
    if (walk.due & ~walk.visited).any():
        return None
    tile_q, tile_k = walk.tile
    query, key = np.arange(case.seqlen_q)[:, None], np.arange(case.seqlen_k)[None, :]
    full = key // tile_k * tile_k + tile_k - 1 <= query // tile_q * tile_q
    turned = query <= key
    if any((guess & walk.visited == walk.taken).all() for guess in (turned, turned | full)):
        return Sighting(
            "MASK-TRANSPOSED",
            "the mask compares queries and keys the wrong way round",
            f"seen: {_example(walk)}",
            "rows of the scores are queries, [:, None]; columns are keys, [None, :]",
            walk.mask_line,
            located=True,
        )
    for rows, columns in (
        (query % tile_q, key % tile_k),
        (query, key % tile_k),
        (query % tile_q, key),
    ):
        masked = columns <= rows
        for guess in (masked, masked | full):
            if (guess & walk.visited == walk.taken).all():
                return Sighting(
                    "MASK-INSIDE-THE-TILE",
                    "the mask compares positions inside the tile, not in the sequence",
                    f"seen: {_example(walk)}",
                    "compare key_start + offs_n with query_start + offs_m",
                    walk.mask_line,
                    located=True,
                )
    return None


def _twice(case: Case, walk: Walk) -> Sighting | None:
    if not walk.twice.any():
        return None
    batch, head, query, key = (int(i) for i in np.argwhere(walk.twice)[0])
    what = _folded(walk, query, key)
    return Sighting(
        "FOLDED-IN-TWICE",
        f"{what} twice",
        f"seen: query {query} of head {head} took {_keys(walk.twice[batch, head, query])} twice;"
        f" {int(walk.twice.any(3).sum())} queries in all",
        "two loops, or two rounds of one, visit the same tile: where does each begin and end?",
        walk.loop_line,
    )


def _wrong_pairs(case: Case, walk: Walk) -> Sighting | None:
    missing, extra = walk.missing, walk.extra
    if missing.any() and extra.any():
        return None  # more than one way to say it
    if extra.any():
        batch, head, query, _ = (int(i) for i in np.argwhere(extra)[0])
        _, _, queries, keys = np.nonzero(extra)
        if (keys > queries).all():
            id, side = "KEYS-AFTER-THE-QUERY", "keys to the right of the diagonal take part"
        elif (keys <= queries).all():
            id, side = "KEYS-BEFORE-THE-WINDOW", "keys to the left of the window take part"
        else:
            return None
        seen = f"seen: query {query} of head {head} took {_keys(extra[batch, head, query])}"
        masks = walk.masks[extra]
        if (masks == 2).all():
            return Sighting(
                "MASKED-SCORES-NOT-HIDDEN",
                "masked scores are set to a number that hides nothing",
                seen,
                'a key that is not visible has the score float("-inf")',
                walk.mask_line,
                located=True,
            )
        if (masks == 0).all():
            side += ": a tile on the edge is not masked"
            help, line = "which tiles need the mask?", walk.scores_line
        else:
            help, line = "compare the mask with the rule", walk.mask_line
        return Sighting(id, side, f"{seen}, which it does not see", help, line)
    if missing.any():
        return _missing(case, walk)
    return None


def _missing(case: Case, walk: Walk) -> Sighting | None:
    missing = walk.missing
    heads = missing.all(axis=(2, 3)) | ((missing | ~walk.due).all(axis=(2, 3)))
    if heads.any() and not heads.all():
        names = ranges(heads.any(0))
        return Sighting(
            "HEADS-NEVER-TAKEN",
            f"{walk.product} takes nothing of query heads {names}",
            f"seen: of {heads.size} query heads {int((~heads).sum())} take part in this product",
            "the gradient of a kv head is the sum over all query heads of its group",
            walk.product_line,
        )
    batch, head, query, _ = (int(i) for i in np.argwhere(missing)[0])
    seen = f"seen: query {query} of head {head} never took {_keys(missing[batch, head, query])}"
    keys = missing.any(axis=(0, 1, 2))
    beyond = np.arange(case.seqlen_k) >= case.seqlen_q
    if beyond.any() and (keys == beyond).all():
        return Sighting(
            "LOOP-OVER-SEQLEN-Q",
            "the loop over keys ends at seqlen_q, not at seqlen_k",
            seen,
            "keys are counted by seqlen_k",
            walk.loop_line,
        )
    visited = walk.visited & missing
    if not visited.any():
        return Sighting(
            "KEYS-NEVER-VISITED",
            "visible keys are never visited",
            seen,
            "where does the loop over the tiles begin and end?",
            walk.loop_line,
        )
    if (visited == missing).all():
        return Sighting(
            "VISIBLE-KEYS-MASKED",
            "the mask hides keys that are visible",
            seen,
            "compare the mask with the handout's rule, at its edges",
            walk.mask_line or walk.scores_line,
            located=True,
        )
    return None


# -- NaN, words -----------------------------------------------------------------------------------


def _nan(trace: Trace) -> Sighting | None:
    subtracted = trace.count(Counter.NAN_OPERATION) == _SUBTRACTION
    if trace.count(Counter.NAN_KINDS) != 1 or not subtracted:
        return None
    return Sighting(
        "NAN-FROM-INF-MINUS-INF",
        "-inf - (-inf) is NaN",
        "seen: the first NaN comes out of this line; the maximum of a row without a visible key so"
        " far is -inf",
        "subtract a finite number where the maximum is -inf",
        trace.count(Counter.NAN_LINE),
    )


def _narrow(case: Case, trace: Trace) -> Sighting | None:
    line = trace.count(Counter.NARROW_LINE)
    if case.dtype != "fp32" or not line:
        return None
    return Sighting(
        "OPERANDS-ROUNDED",
        "the operands of this tl.dot are rounded to 16 bits",
        "seen: the inputs are fp32, and what is multiplied has 16 bits",
        "convert the weights to the dtype of v, not to a fixed one: p.to(v.dtype)",
        line,
        located=True,
    )


def _over_queries(trace: Trace) -> Sighting | None:
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


def _accesses(trace: Trace) -> list[dict[str, int]]:
    return [dict(zip(ACCESS, row, strict=True)) for row in trace.arrays["accesses"].tolist()]


def _operand(row: dict[str, int]) -> str:
    return OPERANDS[row["operand"] - 1]


def _line_of(trace: Trace, operand: str) -> int:
    return next((row["line"] for row in _accesses(trace) if _operand(row) == operand), 0)


def _keys(keys: np.ndarray) -> str:
    return ("key " if keys.sum() == 1 else "keys ") + ranges(keys)


def _folded(walk: Walk, query: int, key: int) -> str:
    if walk.product == "out":
        return f"query {query} takes key {key}"
    return f"{walk.product} takes the pair of query {query} and key {key}"


def _example(walk: Walk) -> str:
    which = walk.missing if walk.missing.any() else walk.extra
    batch, head, query, _ = (int(i) for i in np.argwhere(which)[0])
    verb = "never took" if walk.missing.any() else "took"
    return f"query {query} {verb} {_keys(which[batch, head, query])}"


_BEFORE: tuple[Callable[[Case, Trace], Sighting | None], ...] = (_query_rows, _strides, _heads)
_OF_ROW_SUMS = (_query_rows, _strides, _elements_of_x)
_RULES: tuple[Callable[[Case, Walk], Sighting | None], ...] = (
    _pointers,
    _mismatched,
    _padding,
    _positions_in_the_tile,
    _twice,
    _wrong_pairs,
)
