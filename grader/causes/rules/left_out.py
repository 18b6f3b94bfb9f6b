"""Finds queries and query heads that a product leaves out, or counts in place of others."""

from __future__ import annotations

import numpy as np

from grader.causes.rules.sighting import Sighting, line_of
from grader.checks.correctness import named_ranges, ranges
from grader.checks.counted_pairs import CountedPairs, accesses
from grader.kernel.observers.trace import OTHER, SCORES


def is_uneven(counted: CountedPairs) -> bool:
    """Whether pairs that are missing or count twice differ between the query heads of a group.

    Bounds of loops do not explain that, as they do not depend on the head.
    """
    of_groups = (counted.twice.shape[0], -1, counted.group, *counted.twice.shape[2:])
    twice, missing = counted.twice.reshape(of_groups), counted.missing.reshape(of_groups)
    return bool((twice != twice[:, :, :1]).any() and (missing != missing[:, :, :1]).any())


def uneven(counted: CountedPairs) -> Sighting:
    batch, head, _, key = counted.example(counted.twice)
    twice = named_ranges("query", counted.twice[batch, head, :, key])
    pairs = f"key {key} counted {twice} of query head {head} twice"
    first = head // counted.group * counted.group
    for other in (head, *range(first, first + counted.group)):
        missing = counted.missing[batch, other, :, key]
        if missing.any():
            pairs += f", and never {named_ranges('query', missing)} of query head {other}"
            break
    return Sighting(
        "HEADS-WITH-OTHER-PAIRS", counted.loop_line, product=counted.product, pairs=pairs
    )


def skipped_rows(counted: CountedPairs) -> Sighting | None:
    """Find queries that met no key, but whose tile did: no loop over keys skips those alone."""
    if counted.over_queries:
        return None
    shape, line = counted.trace.shape, line_of(counted.trace, "q") or counted.scores_line
    left_out = counted.missing.any(axis=(0, 1, 3))
    past = np.arange(shape.seqlen_q) >= shape.seqlen_k
    if past.any() and (left_out == past).all():
        return Sighting(
            "QUERIES-NEVER-LOADED",
            line,
            variant="by_seqlen_k",
            queries=named_ranges("query", past),
            head=0,
            neighbours="those before them",
        )
    nothing = ~counted.visited.any(-1)
    if (
        nothing.any()
        and not (counted.missing & ~nothing[..., None]).any()
        and _all_loops_ran(counted)
    ):
        batch, head, *_ = counted.example(counted.missing)
        return Sighting(
            "QUERIES-NEVER-LOADED",
            line,
            variant="of_whole_tiles",
            queries=named_ranges("query", nothing[batch, head]),
            head=head,
        )
    most = counted.tile[0] // (shape.num_q_heads // shape.num_kv_heads)  # if a tile holds a group
    for batch, head in np.ndindex(counted.visited.shape[:2]):
        rows = np.flatnonzero(counted.visited[batch, head].any(-1))
        if not rows.size:
            continue
        # Gaps end at the latest with the tile of the last row: the next tile may begin anywhere.
        end = min(-(-(int(rows[-1]) + 1) // max(most, 1)) * most, shape.seqlen_q)
        around = np.append(rows, end)
        gaps = np.flatnonzero((np.diff(around) > 1) & (np.diff(around) <= most))
        if gaps.size:
            before, after = int(around[gaps[0]]), int(around[gaps[0] + 1])
            among = np.zeros(shape.seqlen_q, bool)
            among[before + 1 : after] = True
            neighbours = f"query {before}" if after == end else f"queries {before} and {after}"
            return Sighting(
                "QUERIES-NEVER-LOADED",
                line,
                queries=named_ranges("query", among),
                head=head,
                neighbours=neighbours,
            )
    return None


def _all_loops_ran(counted: CountedPairs) -> bool:
    """Whether tiles of queries were multiplied with keys as often as the mask requires."""
    if counted.product != "out":
        return False  # products of the forward pass would count as well
    # The products of a tile of q whose load is masked entirely are not recognised: OTHER.
    of_scores = [d for d in counted.trace.rows("dots") if d["product"] in (SCORES, OTHER)]
    heads, (tile_q, tile_k) = counted.visited.shape[0] * counted.visited.shape[1], counted.tile
    by_keys = np.logical_or.reduceat(
        counted.due, np.arange(0, counted.due.shape[1], tile_k), axis=1
    )
    due = np.logical_or.reduceat(by_keys, np.arange(0, counted.due.shape[0], tile_q), axis=0)
    ran = max((dot["count"] for dot in of_scores), default=0)
    return ran >= heads * int(due.sum())


def odd_start(counted: CountedPairs, pairs: np.ndarray) -> str:
    """Say at which key tiles begin that is no multiple of their size, "" if there is none.

    It is no mistake where every tile is masked; elsewhere such a tile may cross a mask's edge.
    """
    odd = first_odd_key(counted, pairs)
    return (
        f"; its tiles begin at key {odd}, which is no multiple of {counted.tile[1]}" if odd else ""
    )


def first_odd_key(counted: CountedPairs, pairs: np.ndarray) -> int:
    """Return the first key at which tiles begin that is no multiple of their size, 0 if none is."""
    batch, head, query, _ = counted.example(pairs)
    keys = np.flatnonzero(counted.visited[batch, head, query])
    starts = keys[np.diff(keys, prepend=-2) > 1]
    odd = starts[starts % counted.tile[1] > 0]
    return 0 if counted.over_queries or not odd.size else int(odd[0])


def missing_heads(counted: CountedPairs) -> np.ndarray:
    """Return which query heads have no pair in a product, (batch, q head)."""
    return (counted.missing | ~counted.due).all(axis=(2, 3))


def heads_never_taken(counted: CountedPairs) -> Sighting | None:
    """Find query heads that add nothing to a gradient of kv heads."""
    heads = missing_heads(counted)
    if not heads.any() or heads.all():
        return None
    if not counted.over_queries or (heads.any(0) != heads.all(0)).any():
        return None  # no sum over a group, or heads that differ between batch entries
    more = ""
    again = counted.twice.any(axis=(0, 2, 3))
    if again.any():
        more = f", {named_ranges('query head', again)} more than once"
    return Sighting(
        "HEADS-LEFT-OUT",
        counted.product_line,
        part="pointer",
        pointer="q",
        product=counted.product,
        heads=ranges(heads.any(0)),
        of=heads.size,
        number=int((~heads).sum()),
        again=more,
    )


def kernel_of_missing(counted: CountedPairs) -> tuple[int, ...]:
    """Return lines of the kernel that should count the missing pairs: all sinks, or all windows."""
    far, missing = before_the_window(counted), counted.missing
    for side in (far, ~far):
        if not (missing & ~side).any():
            alike = counted.taken & side
            of_others = not alike.any()
            return counted.kernel_lines(
                counted.taken & ~side if of_others else alike, other=of_others
            )
    return ()


def before_the_window(counted: CountedPairs) -> np.ndarray:
    """Return which pairs, (query, key), are of a key before the window of the query."""
    query, key = counted.places
    return query - key >= counted.window


def left_to(counted: CountedPairs) -> np.ndarray:
    """Return the pairs, (query, key), that a loop may leave to another by its mask, as some miss.

    One of the loops is over pairs inside the window, the other over sinks before it. A loop that
    counts all of one kind that it meets, and none of the other, leaves these to another loop.
    """
    far, missing = before_the_window(counted), counted.missing
    number = int(np.bincount(counted.masked_at[missing & counted.visited], minlength=1).argmax())
    own = counted.masked_at == number
    other: np.ndarray = far if (missing & far).any() else ~far  # the pairs of the other loop
    apart = bool(number) and not (missing & ~other).any()
    if (counted.taken & other & own).any() or not (counted.taken & ~other & own).any():
        apart = False
    return other & apart


def idle_kernel(counted: CountedPairs) -> tuple[int, tuple[int, ...]]:
    """Return the loop of a kernel that reads keys and has no round, and lines of this kernel.

    0 and none where there is no such kernel.
    """
    trace = counted.trace
    loops = [row["idle_loop"] for row in trace.rows("kernels")]
    reads = {row["kernel"] for row in accesses(trace) if row["name"] in ("k", "v")}
    idle = [n for n in reads - {dot["kernel"] for dot in trace.rows("dots")} if loops[n]]
    return (loops[idle[0]], counted.lines_of(idle[0])) if len(idle) == 1 else (0, ())


def hides(counted: CountedPairs, other: np.ndarray) -> bool:
    """Whether the loop over the pairs of `other` also meets those of the first loop and masks them.

    Then the masks part the loops, and this one ends too early. Where it meets none, the loops are
    over different tiles, and the mask of the first must show all that is visible in its own.
    """
    visits = counted.trace.arrays["visits"][list(counted.kernels)].sum(0, dtype=np.int64)
    met_twice = visits.reshape(counted.taken.shape) > 1
    return bool((counted.taken & ~counted.twice & ~other & met_twice).any())
