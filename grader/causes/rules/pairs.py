"""Which pairs of a query and a key a product took."""

from __future__ import annotations

import numpy as np

from grader.causes.rules.left_out import (
    heads_never_taken,
    is_uneven,
    missing_heads,
    skipped_rows,
    uneven,
)
from grader.causes.rules.sighting import Sighting, accesses, key_range, operand_of, query_range
from grader.checks.walk import Walk
from grader.kernel.observers.trace import Counter, Trace
from grader.spec.cases import Case

_MASK_SIDES = {
    "queries": "rows of the scores are queries, [:, None]; columns are keys, [None, :]",
    "keys": "rows of these scores are keys, [:, None]; columns are queries, [None, :]",
    "": "rows of the scores are queries, [:, None], and columns keys, [None, :]; where they are"
    " transposed it is the other way round",
}


def nothing_visited(case: Case, trace: Trace) -> Sighting | None:
    """Programs that end before they have read a key."""
    read = {operand_of(row) for row in accesses(trace)}
    if read & {"k", "v"} or not trace.count(Counter.PROGRAMS):
        return None
    if trace.count(Counter.UNKNOWN_READS) or trace.count(Counter.UNKNOWN_DOTS):
        return None  # keys in a form that is not recognised
    return Sighting(
        "KEYS-NEVER-VISITED",
        "visible keys are never visited",
        f"seen: {trace.count(Counter.PROGRAMS)} programs ran, and none of them read k or v",
        "where does the loop over the tiles begin and end?",
    )


def mismatched(case: Case, walk: Walk) -> Sighting | None:
    if not walk.trace.count(Counter.MISMATCHED):
        return None
    line = walk.trace.count(Counter.MISMATCHED_LINE)
    if walk.product == "out":
        return Sighting(
            "K-AND-V-APART",
            "the weights of one tile of keys are multiplied by the values of another",
            "seen: the rows of k and of v in one iteration of the loop are not the same",
            "let k and v of a tile begin at the same row and move together",
            line,
        )
    pair = "k and of v" if walk.product == "dq" else "q and of dout"
    return Sighting(
        "ROWS-APART",
        f"the rows of {pair} in one iteration of the loop are not the same",
        f"seen: a product for {walk.product} combines rows of one tile or head with another's",
        "tensors of one tile begin at the same row of the same head, each by strides of its own",
        line,
    )


def raised(case: Case, walk: Walk) -> Sighting | None:
    """Masked scores that a factor of 0 or below has unmasked."""
    if not walk.raised_line:
        return None
    return Sighting(
        "MASKED-BEFORE-SCALED",
        "scores are masked before they are scaled, and the scale is not positive",
        "seen: in this line masked scores, -inf or far below 0, become +inf, a large number, NaN or"
        " 0",
        "scale the scores first, then mask them: -inf times a negative softmax_scale is +inf, and"
        " times 0 it is NaN",
        walk.raised_line,
        located=True,
    )


def padding(case: Case, walk: Walk) -> Sighting | None:
    if not walk.trace.count(Counter.PADDING_TAKEN) or walk.product != "out":
        return None
    if case.seqlen_k % walk.tile[1] == 0:  # such lanes are no keys at all
        return None
    if walk.extra.any():  # keys that are there take part as well: no mask of the end is at fault
        return None
    return Sighting(
        "PADDING-TAKEN",
        "keys beyond the end of the sequence take part",
        f"seen: the last tile reaches past key {case.seqlen_k - 1}; its empty lanes have weights"
        " other than zero",
        'set their scores to float("-inf") before you take the maximum',
        walk.trace.count(Counter.PADDING_LINE),
    )


def positions_in_the_tile(case: Case, walk: Walk) -> Sighting | None:
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
            _MASK_SIDES[walk.mask_rows],
            walk.mask_of(walk.extra | walk.missing),
            located=True,
        )
    inside = "the mask compares positions inside the tile, not in the sequence"
    # Of keys that are numbered too high the same is seen.
    apart = "the mask compares numbers that are not both positions in the sequence"
    for rows, columns, title in (
        (query % tile_q, key % tile_k, inside),
        (query, key % tile_k, inside),
        (query % tile_q, key, apart),
    ):
        masked = columns <= rows
        for guess in (masked, masked | full):
            if (guess & walk.visited == walk.taken).all():
                return Sighting(
                    "MASK-INSIDE-THE-TILE",
                    title,
                    f"seen: {_example(walk)}",
                    "compare positions in the sequence: add the tile's first key to the number of a"
                    " key in the tile, and its first query to that of a query",
                    walk.mask_of(walk.extra | walk.missing),
                    located=True,
                )
    return None


def inverted(case: Case, walk: Walk) -> Sighting | None:
    """A mask that hides what it should show and shows what it should hide."""
    masked = (walk.masks > 0) & walk.visited
    due = np.broadcast_to(walk.due, masked.shape)[masked]
    if not due.any() or due.all() or (walk.taken[masked] == due).any():
        return None
    return Sighting(
        "MASK-INVERTED",
        f"the mask hides the {_visible(walk)} and shows the others",
        f"seen: {_example(walk)}",
        "tl.where(condition, x, y) is x where the condition holds: there the scores stay",
        walk.mask_of(masked),
        located=True,
    )


def twice(case: Case, walk: Walk) -> Sighting | None:
    if not walk.twice.any() or _of_several_products(walk) or _by_programs_alike(walk):
        return None
    if walk.over_queries and walk.missing.any() and is_uneven(walk):
        return heads_never_taken(walk) or uneven(walk)
    _, _, query, key = walk.example(walk.twice)
    what = _folded(walk, query, key)
    past_the_end = not walk.over_queries and case.seqlen_k % walk.tile[1] > 0
    help = (
        "two loops, or two iterations of one, visit the same tile: where does each begin, with its"
        " pointers, and end?"
    )
    if past_the_end and not walk.twice[..., :-1].any():
        help = "lanes past the end that are clamped to the last key must have weight 0"
    first = walk.line_of(walk.taken_at, walk.twice)
    again = walk.line_of(walk.again_at, walk.twice) or walk.loop_line
    loops = f"; first in the loop of line {first}" if first not in (0, again) else ""
    rows = int(walk.twice.any(2 if walk.over_queries else 3).sum())
    noun = ("key", "keys") if walk.over_queries else ("query", "queries")
    return Sighting(
        "FOLDED-IN-TWICE",
        f"{what} twice",
        f"seen: {_row(walk, walk.twice, 'took')} twice{loops}; {rows} {noun[rows != 1]} in all",
        help,
        again,
    )


def _by_programs_alike(walk: Walk) -> bool:
    """Whether some heads are computed twice over, and others not at all: by whole programs."""
    some = bool(missing_heads(walk).any())
    return walk.product == "out" and some and bool((walk.twice == walk.taken).all())


def _of_several_products(walk: Walk) -> bool:
    """Whether a sum is made of several products, each with every pair once.

    dQ may be the sum of (P * dP) k and -(P * delta) k: one tile of scores, or one of each of two
    loops, is then multiplied twice by design.
    """
    if (walk.twice & walk.shared).any():
        return True
    every = bool((walk.twice == walk.taken).all()) and not walk.missing.any()
    return every and walk.product in ("dq", "dk")


def masked_but_shown(case: Case, walk: Walk) -> Sighting | None:
    if not walk.trace.count(Counter.SHOWN_LINE):
        return None
    return Sighting(
        "MASKED-SCORES-NOT-HIDDEN",
        "masked scores are set to a number that does not hide them here",
        "seen: weights of masked keys count beside those of the visible keys of the same query",
        'a key that is not visible has the score float("-inf")',
        walk.mask_line,
        located=True,
    )


def wrong_pairs(case: Case, walk: Walk) -> Sighting | None:
    missing, extra = walk.missing, walk.extra
    if missing.any() and extra.any():
        return None  # more than one way to say it
    if extra.any():
        _, _, queries, keys = np.nonzero(extra)
        if (keys > queries).all():
            id, side = "KEYS-AFTER-THE-QUERY", "keys to the right of the diagonal take part"
            of_keys = f"queries before the key take part in {walk.product}"
        elif (keys <= queries).all():
            id, side = "KEYS-BEFORE-THE-WINDOW", "keys to the left of the window take part"
            of_keys = f"queries whose window lies behind the key take part in {walk.product}"
        else:
            return None
        side = of_keys if walk.over_queries else side
        seen = f"seen: {_row(walk, extra, 'took')}"
        masks = walk.masks[extra]
        if (masks == 2).all():
            return Sighting(
                "MASKED-SCORES-NOT-HIDDEN",
                "masked scores are set to a number that hides nothing",
                seen,
                'a key that is not visible has the score float("-inf")',
                walk.mask_of(extra),
                located=True,
            )
        if (masks == 0).all():
            side += ": a tile on the edge is not masked"
            help, line = "which tiles need the mask?", walk.scores_line
            if walk.product != "out":
                help = "which tiles need the mask, and is what this product takes masked at all?"
        else:
            help = "compare the mask, and the numbers of its keys and queries, with the rule"
            line = walk.mask_of(extra)
        masked = bool((masks > 0).all())
        unseen = "which do not see it" if walk.over_queries else "which it does not see"
        return Sighting(id, side, f"{seen}, {unseen}", help, line, located=masked)
    if missing.any():
        return _missing(case, walk)
    return None


def _missing(case: Case, walk: Walk) -> Sighting | None:
    missing = walk.missing
    heads = missing_heads(walk)
    if heads.any() and not heads.all():
        return heads_never_taken(walk)
    seen = f"seen: {_row(walk, missing, 'never took')}"
    keys = missing.any(axis=(0, 1, 2))
    beyond = np.arange(case.seqlen_k) >= case.seqlen_q
    if beyond.any() and (keys == beyond).all():
        return Sighting(
            "LOOP-OVER-SEQLEN-Q",
            "the loop over keys ends at seqlen_q, not at seqlen_k",
            seen,
            "keys are counted by seqlen_k; are both lengths passed in the kernel's order?",
            walk.loop_line,
        )
    visited = walk.visited & missing
    if not visited.any():
        skipped = skipped_rows(walk)
        if skipped is not None:
            return skipped
        return Sighting(
            "KEYS-NEVER-VISITED",
            f"{_visible(walk)} are never visited",
            seen,
            f"where does the loop over the {'queries' if walk.over_queries else 'tiles'} begin and"
            " end?",
            walk.loop_line,
        )
    if (visited == missing).all() and not (walk.met & missing).any():
        return Sighting(
            "K-AND-V-APART",
            "the weights of visible keys meet no rows of v",
            seen,
            "let k and v of a tile begin at the same row and move together; is v multiplied in each"
            " iteration?",
            walk.product_line,
        )
    # Where every weight of a gradient is 0, lse or the scores made them so, and no mask.
    nothing_left = walk.product != "out" and bool((missing | ~walk.due).all())
    # A weight times a softmax_scale of 0 looks as if it were masked.
    times_zero = case.kwargs.get("softmax_scale") == 0.0 and not walk.taken.any()
    masked = walk.met & missing  # else its weights met other rows than those of its keys
    if (masked == missing).all() and not (nothing_left or times_zero or walk.drowned.any()):
        return Sighting(
            "VISIBLE-KEYS-MASKED",
            f"the mask hides {_visible(walk)}",
            seen,
            "compare the mask with the handout's rule, at its edges; are its keys"
            f"{' and queries' if walk.over_queries else ''} those that were loaded?",
            walk.mask_of(missing),
            located=True,
        )
    return None


def _folded(walk: Walk, query: int, key: int) -> str:
    if walk.product == "out":
        return f"query {query} takes key {key}"
    return f"{walk.product} takes the pair of query {query} and key {key}"


def _visible(walk: Walk) -> str:
    """Say what goes wrong to the row of a result: keys for a query, or queries for a key."""
    return "queries that see the key" if walk.over_queries else "visible keys"


def _row(walk: Walk, pairs: np.ndarray, verb: str) -> str:
    """Tell of one row of the result: "query 3 of head 0 took keys 4-7", or a key's queries."""
    batch, head, query, key = walk.example(pairs)
    if walk.over_queries:
        queries = query_range(pairs[batch, head, :, key])
        return f"key {key} {verb} {queries} of query head {head}"
    return f"query {query} of head {head} {verb} {key_range(pairs[batch, head, query])}"


def _example(walk: Walk) -> str:
    if walk.missing.any():
        return _row(walk, walk.missing, "never took")
    return _row(walk, walk.extra, "took")
