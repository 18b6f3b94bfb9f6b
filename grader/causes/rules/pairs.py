"""Finds wrong pairs of a query and a key in a product, and the mask or loop that is at fault."""

from __future__ import annotations

import numpy as np

from grader.causes.rules.left_out import (
    before_the_window,
    first_odd_key,
    heads_never_taken,
    hides,
    idle_kernel,
    is_uneven,
    kernel_of_missing,
    left_to,
    missing_heads,
    odd_start,
    skipped_rows,
    uneven,
)
from grader.causes.rules.sighting import (
    Sighting,
    one_example,
    one_row,
    visible_to,
)
from grader.checks.counted_pairs import CountedPairs, accesses
from grader.kernel.observers.trace import Counter, Trace


def nothing_visited(trace: Trace) -> Sighting | None:
    """Find programs that end before they have read a key."""
    read = {row["name"] for row in accesses(trace)}
    if read & {"k", "v"} or not trace.count(Counter.PROGRAMS):
        return None
    if trace.count(Counter.UNKNOWN_READS) or trace.count(Counter.UNKNOWN_DOTS):
        return None  # keys may have been read in a form that is not recognised
    line, programs = trace.count(Counter.IDLE_LOOP_LINE), trace.count(Counter.PROGRAMS)
    return Sighting("KEYS-NEVER-VISITED", line, variant="nothing_read", programs=programs)


def mismatched(counted: CountedPairs) -> Sighting | None:
    if not counted.trace.count(Counter.MISMATCHED):
        return None
    line = counted.trace.count(Counter.MISMATCHED_LINE)
    if counted.product == "out":
        moves = None if counted.sinks else _moves_otherwise(counted)
        return moves or Sighting("K-AND-V-APART", line)  # behind sinks both may skip tiles
    pair = "k and of v" if counted.product == "dq" else "q and of dout"
    return Sighting("ROWS-APART", line, variant="of_a_product", pair=pair, product=counted.product)


def _moves_otherwise(counted: CountedPairs) -> Sighting | None:
    """Find the one of K and V that does not move by one tile, where the other does."""
    loads = [row for row in accesses(counted.trace) if row["name"] in ("k", "v")]
    moves = [row for row in loads if row["step"] != row["size"] * row["stride"]]
    if len(loads) != 2 or len(moves) != 1:
        return None
    (row,) = moves
    name, due = row["name"], row["size"] * row["stride"]
    return Sighting(
        "K-AND-V-APART",
        row["line"],
        variant="moves_otherwise",
        part="address",
        name=name,
        step=row["step"],
        size=row["size"],
        due=due,
    )


def raised(counted: CountedPairs) -> Sighting | None:
    """Find masked scores that a factor of 0 or below unmasks."""
    if not counted.raised_line:
        return None
    return Sighting("MASKED-BEFORE-SCALED", counted.raised_line, located=True)


def padding(counted: CountedPairs) -> Sighting | None:
    if not counted.trace.count(Counter.PADDING_TAKEN) or counted.product != "out":
        return None
    if counted.case.seqlen_k % counted.tile[1] == 0:  # such lanes are no keys at all
        return None
    if counted.extra.any():  # hidden keys count as well: the mask of the end is not at fault
        return None
    return Sighting(
        "PADDING-COUNTED",
        counted.mask_line or counted.trace.count(Counter.PADDING_LINE),
        located=counted.mask_line > 0,  # a mask that lets them through
        last=counted.case.seqlen_k - 1,
    )


def positions_in_the_tile(counted: CountedPairs) -> Sighting | None:
    """Find a causal mask that compares positions inside the tiles, or is transposed."""
    if before_the_window(counted).any() or counted.due.all() or counted.twice.any():
        return None
    wrong = counted.missing | counted.extra
    if not wrong.any() or not counted.masks[wrong].any():
        return None
    if (counted.due & ~counted.visited).any():
        return None
    tile_q, tile_k = counted.tile
    query, key = counted.places
    full = key // tile_k * tile_k + tile_k - 1 <= query // tile_q * tile_q
    inside, sides = "MASK-INSIDE-THE-TILE", {"queries": "rows_are_queries", "keys": "rows_are_keys"}
    for id, rows, columns, variant in (
        ("MASK-TRANSPOSED", key, query, sides.get(counted.mask_rows, "")),
        (inside, query % tile_q, key % tile_k, ""),
        (inside, query, key % tile_k, ""),
        (inside, query % tile_q, key, "of_one_side"),  # keys numbered too high look the same
    ):
        shown = columns <= rows
        if any((guess & counted.visited == counted.taken).all() for guess in (shown, shown | full)):
            line = counted.mask_of(wrong)
            return Sighting(id, line, located=True, variant=variant, example=one_example(counted))
    return None


def by_tile_number(counted: CountedPairs) -> Sighting | None:
    """Find a mask whose positions count from the number of their tile, not from its first row."""
    masked = (counted.masks > 0) & counted.visited
    if ((counted.missing | counted.extra) & ~masked).any() or counted.due.all():
        return None
    query, key = counted.places
    for axis, what, one in ((0, "queries", "query"), (1, "keys", "key")):
        size, places = counted.tile[axis], [query, key]
        places[axis] = places[axis] // size + places[axis] % size
        guess = np.broadcast_to(visible(counted, *places), masked.shape)
        if (guess == counted.taken)[masked].all() and (guess != counted.due)[masked].any():
            return Sighting(
                "MASK-BY-TILE-NUMBER",
                counted.mask_of(masked),
                what=what,
                one=one,
                size=size,
                example=one_example(counted),
            )
    return None


def visible(counted: CountedPairs, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Return whether keys are visible to queries, by their positions, in a case with a mask."""
    return (key <= query) & ((query - key < counted.window) | (key < counted.sinks))


def inverted(counted: CountedPairs) -> Sighting | None:
    """Find a mask that hides what it should show and shows what it should hide."""
    masked = (counted.masks > 0) & counted.visited
    due = np.broadcast_to(counted.due, masked.shape)[masked]
    if not due.any() or due.all() or (counted.taken[masked] == due).any():
        return None
    return Sighting(
        "MASK-INVERTED",
        counted.mask_of(masked),
        located=True,
        visible=visible_to(counted),
        example=one_example(counted),
    )


def twice(counted: CountedPairs) -> Sighting | None:
    if not counted.twice.any() or _of_several_products(counted):
        return None
    some_heads_missing = bool(missing_heads(counted).any())
    if (
        counted.product == "out"
        and some_heads_missing
        and bool((counted.twice == counted.taken).all())
    ):
        return None  # by whole programs: some heads are computed twice over, and others not at all
    if counted.over_queries and counted.missing.any():
        of_heads = heads_never_taken(counted) or (uneven(counted) if is_uneven(counted) else None)
        if of_heads is not None:
            return of_heads
    left = before_the_window(counted)
    if counted.extra.any() and not (counted.twice & ~left).any():
        return None  # a window that is too large takes sinks a second time, and other keys once
    _, _, query, key = counted.example(counted.twice)
    past_the_end = not counted.over_queries and counted.case.seqlen_k % counted.tile[1] > 0
    variant = "clamped" if past_the_end and not counted.twice[..., :-1].any() else ""
    first = counted.line_of(counted.taken_at, counted.twice)
    again = counted.line_of(counted.again_at, counted.twice) or counted.loop_line
    located, before, masks = False, bool((counted.twice & left).any()), list[int]()
    only_sinks = not counted.twice[..., counted.sinks :].any()
    of_sinks_alone = counted.over_queries and bool((counted.twice & _out_of_reach(counted)).any())
    if only_sinks and not of_sinks_alone and before != bool((counted.twice & ~left).any()):
        variant = "of_a_sink_before_the_window" if before else "of_a_sink_in_the_window"
        # The masks of the sinks and of the window, by the pairs that only one of them takes.
        masks = [counted.mask_of(counted.taken & ~counted.twice & side) for side in (left, ~left)]
        located = 0 not in masks and masks[0] != masks[1]
        first = again = masks[before] or again
    pair = f"query {query} counts key {key}"
    if counted.product != "out":
        pair = f"{counted.product} counts the pair of query {query} and key {key}"
    loops = f"; first in the loop of line {first}" if first not in (0, again) else ""
    rows = int(counted.twice.any(2 if counted.over_queries else 3).sum())
    noun = ("key", "keys") if counted.over_queries else ("query", "queries")
    return Sighting(
        "KEYS-COUNTED-TWICE",
        again,
        located=located,
        part="mask" if again in masks else None,
        through=counted.kernel_lines(counted.twice),
        variant=variant,
        pair=pair,
        row=one_row(counted, counted.twice, "counted"),
        loops=loops,
        number=f"{rows} {noun[rows != 1]}",
        query=query,
        key=key,
    )


def _out_of_reach(counted: CountedPairs) -> np.ndarray:
    """Return the pairs, (query, key), whose query is in no tile that windows of the keys reach."""
    query, key = counted.places
    tile_q, tile_k = counted.tile
    first = key // tile_k * tile_k
    end = first + tile_k - 1 + counted.window
    beyond: np.ndarray = query >= first + -(-(end - first) // tile_q) * tile_q
    return beyond


def _of_several_products(counted: CountedPairs) -> bool:
    """Whether a sum is made of several products, each with every pair once.

    dQ may be the sum of (P * dP) k and -(P * delta) k: one tile of scores, or one of each of two
    loops, is then multiplied twice by design.
    """
    if (counted.twice & counted.shared).any():
        return True
    every = bool((counted.twice == counted.taken).all()) and not counted.missing.any()
    return every and counted.product in ("dq", "dk")


def masked_but_shown(counted: CountedPairs) -> Sighting | None:
    if not counted.trace.count(Counter.SHOWN_LINE):
        return None
    return Sighting(
        "MASKED-SCORES-NOT-HIDDEN", counted.mask_line, located=True, variant="beside_others"
    )


def not_aligned(counted: CountedPairs) -> Sighting | None:
    """Find tiles that begin between two multiples of their size, and cross the mask's edge."""
    extra, unseen = counted.extra, counted.missing & ~counted.visited
    if not extra.any() or (counted.masks[extra] > 0).any() or (counted.missing & ~unseen).any():
        return None
    first = first_odd_key(counted, extra)
    if not first or not (counted.masks > 0)[counted.visited].any():  # it masks no tile at all
        return None
    return Sighting(
        "TILES-NOT-ALIGNED",
        counted.loop_line,
        first=first,
        size=counted.tile[1],
        row=one_row(counted, extra, "counted"),
    )


def wrong_pairs(counted: CountedPairs) -> Sighting | None:
    missing, extra = counted.missing, counted.extra
    if extra.any() and (counted.masks[extra] == 2).all():
        line, row = counted.mask_of(extra), one_row(counted, extra, "counted")
        return Sighting("MASKED-SCORES-NOT-HIDDEN", line, located=True, row=row)
    if missing.any() and extra.any():
        return None  # `others.other_pairs` names both
    if extra.any():
        _, _, queries, keys = np.nonzero(extra)
        if (keys > queries).all():
            id = "KEYS-AFTER-THE-QUERY"
        elif (keys <= queries).all():
            id = "KEYS-BEFORE-THE-WINDOW"
        else:
            return None
        row = one_row(counted, extra, "counted")
        masks = counted.masks[extra]
        bare = counted.line_in("bare") if counted.product != "out" and not masks.any() else 0
        if bare:
            return Sighting("NO-WEIGHTS", bare, located=True, product=counted.product)
        if not counted.trace.arrays["visits"][list(counted.kernels)].any():
            return Sighting(
                "PRODUCT-LEFT-OUT",
                counted.product_line,
                variant="of_weights",
                part="value",
                product=counted.product,
            )
        if (masks == 0).all():
            line, variant = counted.scores_line, "not_masked"
            if (
                counted.product == "out"
                and counted.mask_line
                and not counted.masks[counted.visited].any()
            ):
                line, variant = counted.mask_line, "not_of_the_product"
            elif counted.product != "out":
                line = counted.product_line
                variant = "of_queries_not_masked" if counted.over_queries else "not_masked_for_dq"
        else:
            line, variant = counted.mask_of(extra), "of_queries" if counted.over_queries else ""
        return Sighting(
            id,
            line,
            located=bool((masks > 0).all()) or variant == "not_of_the_product",
            part="mask" if (masks > 0).all() else None,
            through=counted.kernel_lines(extra),
            variant=variant,
            product=counted.product,
            row=row,
            tiles=odd_start(counted, extra),
        )
    if missing.any():
        return _missing(counted)
    return None


def _missing(counted: CountedPairs) -> Sighting | None:
    missing = counted.missing
    heads = missing_heads(counted)
    if heads.any() and not heads.all():
        return heads_never_taken(counted)
    row = one_row(counted, missing, "never counted")
    keys = missing.any(axis=(0, 1, 2))
    beyond = np.arange(counted.case.seqlen_k) >= counted.case.seqlen_q
    if beyond.any() and (keys == beyond).all():
        masked = bool((counted.met & missing == missing).all())
        return Sighting(
            "LOOP-OVER-SEQLEN-Q",
            counted.mask_of(missing) if masked else counted.loop_line,
            located=masked,
            part="mask" if masked else None,
            variant="by_a_mask" if masked else "",
            row=row,
        )
    visited = counted.visited & missing
    if not visited.any():
        skipped = skipped_rows(counted)
        if skipped is not None:
            return skipped
        return Sighting(
            "KEYS-NEVER-VISITED",
            counted.loop_line or counted.trace.count(Counter.IDLE_LOOP_LINE),
            through=kernel_of_missing(counted),
            visible=visible_to(counted),
            row=row,
            loop="queries" if counted.over_queries else "tiles",
            tiles=odd_start(counted, missing),
        )
    if (visited == missing).all() and not (counted.met & missing).any():
        return Sighting("K-AND-V-APART", counted.product_line, variant="met_no_rows", row=row)
    # Where every weight of a gradient is 0, lse or the scores made them so, and no mask.
    nothing_left = counted.product != "out" and bool((missing | ~counted.due).all())
    # A weight times a softmax_scale of 0 looks as if it were masked.
    times_zero = counted.case.kwargs.get("softmax_scale") == 0.0 and not counted.taken.any()
    masked = counted.met & missing  # else its weights met other rows than those of its keys
    every = bool((masked == missing).all())
    other = left_to(counted)
    loop = counted.line_of(counted.taken_at, counted.taken & other)
    idle, of_idle = idle_kernel(counted)
    if other.any() and (idle or hides(counted, other) or (missing & ~visited).any()):
        return Sighting(
            "KEYS-NEVER-VISITED",
            loop or idle or counted.loop_line,
            through=of_idle or kernel_of_missing(counted),
            visible=visible_to(counted),
            row=row,
            loop="queries" if counted.over_queries else "tiles",
            tiles="",
        )
    if every and not (nothing_left or times_zero or counted.drowned.any()):
        return Sighting(
            "VISIBLE-KEYS-MASKED",
            counted.mask_of(missing),
            located=True,
            visible=visible_to(counted),
            variant="left_to_another" if loop else "",
            either=bool(other.any()),
            row=row,
            loop=loop,
            keys="keys and queries" if counted.over_queries else "keys",
        )
    return None
