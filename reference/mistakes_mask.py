"""Known mistakes in which keys, heads and batches a query sees."""

import math

import torch

from .variants import attend, known, known_per_tile

ATTENTION = ("p01", "p03", "p04", "p05", "p06", "p07", "p08", "p09")
CAUSAL = ("p01", "p04", "p05", "p06", "p07", "p08", "p09")
NONCAUSAL = ("p01", "p03")
GROUPED = ("p05", "p06", "p07", "p08", "p09")
WINDOW = ("p06", "p07", "p09")
SINKS = ("p07", "p09")


def _one_future_key(case):
    # The last query's next key does not exist: padding, hidden or not, decides what it adds.
    result = attend(case, case.window(last=1))
    last = (case.query == case.seqlen_q - 1)[:, 0]
    rows = {"out": last[:, None], "lse": last}
    return {name: value.masked_fill(rows[name], math.nan) for name, value in result.items()}


def _window_of(case, size):
    if case.window_size is None:
        return attend(case)
    return attend(case, case.window(size=size))


def _window_centred(case):
    if case.window_size is None:
        return attend(case)
    near = (case.key - case.query).abs() <= case.window_size // 2
    sinks = (case.key < case.num_sink_tokens) & (case.key <= case.query)
    return attend(case, near | sinks)


def _window_edge_unmasked(case, tile):
    if case.window_size is None:
        return attend(case)
    first_key = (case.query // tile * tile - case.window_size + 1).clamp(min=0)
    whole_tiles = case.key >= first_key // tile * tile
    return attend(case, case.visible() | (whole_tiles & (case.key <= case.query)))


def _sinks(case, num_sink_tokens):
    return attend(case, case.visible(num_sink_tokens=max(0, num_sink_tokens)))


def _sinks_counted_twice(case):
    in_window = case.visible(num_sink_tokens=0)
    twice = in_window & (case.key < case.num_sink_tokens)
    return attend(case, case.visible().double() + twice.double())


def _padded_keys_counted(case, tile):
    # A causal mask hides the padding too, since it lies after every query.
    return attend(case, zero_keys=0 if case.is_causal else -case.seqlen_k % tile)


def _heads_divided_by_kv_heads(case):
    kv_heads = torch.arange(case.num_q_heads, device=case.q.device) // case.num_kv_heads
    outside = kv_heads >= case.num_kv_heads
    result = attend(case, kv_heads=kv_heads.clamp(max=case.num_kv_heads - 1))
    if not outside.any():
        return result
    heads = {"out": outside[:, None, None], "lse": outside[:, None]}
    return {name: value.masked_fill(heads[name], math.nan) for name, value in result.items()}


def _batch_zero(case):
    k, v = (x[:1].expand_as(x) for x in (case.k, case.v))
    return attend(case, k=k, v=v)


_DIAGONAL = "let a query see its own key and no later one: the visible side is key <= query"
_WINDOW = "let the window hold window_size keys with the query's own: query - window_size < key"
_SINKS = "keep exactly the first num_sink_tokens keys visible, beside the window"
_ONCE = "let every visible key enter one tile only: the sink tiles end where the window begins"
_HEADS = "share a kv head among neighbours: kv_head = q_head // group_size"

MASK_MISTAKES = (
    known(
        "DIAGONAL-EXCLUDED",
        CAUSAL,
        "queries do not see their own key",
        "your output equals attention with the mask key < query",
        _DIAGONAL,
        lambda case: attend(case, case.window(last=-1)),
    ),
    known(
        "DIAGONAL-SHIFTED",
        CAUSAL,
        "queries see one key of the future",
        "your output equals attention with the mask key <= query + 1",
        _DIAGONAL,
        _one_future_key,
    ),
    known(
        "CAUSAL-IGNORED",
        CAUSAL,
        "queries see all keys of the future",
        "your output equals attention without the condition key <= query",
        "set the scores of keys after the query to minus infinity in the tiles on the diagonal",
        lambda case: attend(case, case.window(last=case.seqlen_k)),
    ),
    known(
        "CAUSAL-TRANSPOSED",
        CAUSAL,
        "queries see the future instead of the past",
        "your output equals attention with the mask transposed: key >= query",
        "compare positions the right way round: queries are the rows of a tile, keys its columns",
        lambda case: attend(case, case.visible().mT if case.is_causal else None),
    ),
    known(
        "CAUSAL-NOT-ASKED",
        NONCAUSAL,
        "queries do not see later keys, although attention is not causal here",
        "your output equals causal attention",
        "apply the causal mask only where attention is causal",
        lambda case: attend(case, case.key <= case.query),
    ),
    known(
        "WINDOW-ONE-SMALLER",
        WINDOW,
        "the window is one key too small",
        "your output equals attention with window_size - 1",
        _WINDOW,
        lambda case: _window_of(case, (case.window_size or 0) - 1),
    ),
    known(
        "WINDOW-ONE-LARGER",
        WINDOW,
        "the window is one key too large",
        "your output equals attention with window_size + 1",
        _WINDOW,
        lambda case: _window_of(case, (case.window_size or 0) + 1),
    ),
    known(
        "WINDOW-IGNORED",
        WINDOW,
        "queries see keys left of the window",
        "your output equals causal attention without a window",
        "hide the keys left of the window in the tiles that its left edge cuts",
        lambda case: attend(case, case.visible(window_size=None)),
    ),
    known(
        "WINDOW-SHIFTED",
        WINDOW,
        "the window lies one key too far left",
        "your output equals attention to the window_size keys before the query",
        _WINDOW,
        lambda case: attend(case, case.window(first=-1, last=-1)),
    ),
    known(
        "WINDOW-CENTRED",
        WINDOW,
        "the window lies around the query instead of before it",
        "your output equals attention to the keys within window_size // 2 on either side",
        _WINDOW,
        _window_centred,
    ),
    *known_per_tile(
        "WINDOW-EDGE-UNMASKED",
        WINDOW,
        "the tiles at the left edge of the window are not masked",
        "your output equals attention with the window begun at a multiple of {tile} keys",
        "mask the tiles that the left edge of the window cuts: only part of their keys is visible",
        _window_edge_unmasked,
    ),
    known(
        "SINKS-IGNORED",
        SINKS,
        "queries do not see the sink tokens outside of the window",
        "your output equals attention with num_sink_tokens = 0",
        _SINKS,
        lambda case: _sinks(case, 0),
    ),
    known(
        "SINKS-ONE-FEWER",
        SINKS,
        "one sink token too few is visible",
        "your output equals attention with num_sink_tokens - 1",
        _SINKS,
        lambda case: _sinks(case, case.num_sink_tokens - 1),
    ),
    known(
        "SINKS-ONE-MORE",
        SINKS,
        "one sink token too many is visible",
        "your output equals attention with num_sink_tokens + 1",
        _SINKS,
        lambda case: _sinks(case, case.num_sink_tokens + 1),
    ),
    *known_per_tile(
        "SINKS-WHOLE-TILE",
        SINKS,
        "all keys of the sink tile are visible",
        "your output equals attention with num_sink_tokens rounded up to a multiple of {tile}",
        "mask the sink tile: keys from num_sink_tokens on are visible only inside the window",
        lambda case, tile: _sinks(case, -(-case.num_sink_tokens // tile) * tile),
    ),
    known(
        "SINKS-COUNTED-TWICE",
        SINKS,
        "sink tokens inside the window are counted twice",
        "your output equals attention in which the sinks that the window covers have double weight",
        _ONCE,
        _sinks_counted_twice,
    ),
    known(
        "SINKS-NOT-CAUSAL",
        SINKS,
        "queries see sink tokens that come after them",
        "your output equals attention with the sinks visible to every query",
        "keep key <= query in force for the sink tokens too",
        lambda case: attend(case, case.visible() | (case.key < case.num_sink_tokens)),
    ),
    *known_per_tile(
        "PADDED-KEYS-COUNTED",
        NONCAUSAL,
        "keys past the end of the sequence take part in the softmax",
        "your output equals attention with keys of score 0 up to the next multiple of {tile}",
        "set the scores of keys past the end to minus infinity: a masked load of 0 is a score of 0",
        _padded_keys_counted,
    ),
    *known_per_tile(
        "LAST-KEY-TILE-DROPPED",
        ATTENTION,
        "the last, partial tile of keys is not visited",
        "your output equals attention to the first seqlen // {tile} * {tile} keys",
        "round the number of key tiles up, and mask the keys past the end of the last one",
        lambda case, tile: attend(case, case.visible() & (case.key < case.walk_end // tile * tile)),
    ),
    known(
        "SKIPPED-WITHOUT-CAUSAL",
        ("p01",),
        "key tiles after the query tile are skipped even without is_causal",
        "your output equals attention to the keys before the end of each query tile",
        "stop early only with is_causal: without it every query sees every key",
        lambda case: attend(case, case.visible() & (case.key < case.query_tile_end)),
    ),
    *known_per_tile(
        "FIRST-KEY-TILE-ONLY",
        ATTENTION,
        "only the first tile of keys is visited",
        "your output equals attention to the first {tile} keys",
        "advance the key and value pointers in every iteration over key tiles",
        lambda case, tile: attend(case, case.visible() & (case.key < tile)),
    ),
    known(
        "HEADS-INTERLEAVED",
        GROUPED,
        "query heads are mapped to kv heads in turn instead of in groups",
        "your output equals attention with kv_head = q_head % num_kv_heads",
        _HEADS,
        lambda case: attend(
            case,
            kv_heads=torch.arange(case.num_q_heads, device=case.q.device) % case.num_kv_heads,
        ),
    ),
    known(
        "HEADS-DIVIDED-BY-KV-HEADS",
        GROUPED,
        "the query head is divided by the number of kv heads instead of by the group size",
        "your output equals attention with kv_head = q_head // num_kv_heads",
        _HEADS,
        _heads_divided_by_kv_heads,
    ),
    known(
        "HEADS-ZERO",
        ATTENTION,
        "every head reads the keys and values of kv head 0",
        "your output equals attention with kv_head = 0",
        "add the offset of the kv head, by its stride, to the key and value pointers",
        lambda case: attend(case, kv_heads=torch.zeros_like(case.kv_heads)),
    ),
    known(
        "BATCH-ZERO",
        ATTENTION,
        "every batch reads the keys and values of batch 0",
        "your output equals attention with k[0] and v[0] in every batch",
        "add the offset of the batch, by its stride, to the key and value pointers",
        _batch_zero,
    ),
    known(
        "K-V-SWAPPED",
        ATTENTION,
        "keys and values have changed places",
        "your output equals attention(q, v, k)",
        "take scores from q and k, and multiply the weights by v",
        lambda case: attend(case, k=case.v, v=case.k),
    ),
)
