"""Known mistakes about which keys, heads and batches a query sees."""

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
    # The last query has no next key: what padding contributes there is undetermined.
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
    # A causal mask hides padding too, since it lies behind every query.
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


MASK_MISTAKES = (
    known("DIAGONAL-EXCLUDED", CAUSAL, lambda case: attend(case, case.window(last=-1))),
    known("DIAGONAL-SHIFTED", CAUSAL, _one_future_key),
    known("CAUSAL-IGNORED", CAUSAL, lambda case: attend(case, case.window(last=case.seqlen_k))),
    known(
        "CAUSAL-TRANSPOSED",
        CAUSAL,
        lambda case: attend(case, case.visible().mT if case.is_causal else None),
    ),
    known("CAUSAL-NOT-ASKED", NONCAUSAL, lambda case: attend(case, case.key <= case.query)),
    known("WINDOW-ONE-SMALLER", WINDOW, lambda case: _window_of(case, (case.window_size or 0) - 1)),
    known("WINDOW-ONE-LARGER", WINDOW, lambda case: _window_of(case, (case.window_size or 0) + 1)),
    known("WINDOW-IGNORED", WINDOW, lambda case: attend(case, case.visible(window_size=None))),
    known("WINDOW-SHIFTED", WINDOW, lambda case: attend(case, case.window(first=-1, last=-1))),
    known("WINDOW-CENTRED", WINDOW, _window_centred),
    *known_per_tile("WINDOW-EDGE-UNMASKED", WINDOW, _window_edge_unmasked),
    known("SINKS-IGNORED", SINKS, lambda case: _sinks(case, 0)),
    known("SINKS-ONE-FEWER", SINKS, lambda case: _sinks(case, case.num_sink_tokens - 1)),
    known("SINKS-ONE-MORE", SINKS, lambda case: _sinks(case, case.num_sink_tokens + 1)),
    *known_per_tile(
        "SINKS-WHOLE-TILE",
        SINKS,
        lambda case, tile: _sinks(case, -(-case.num_sink_tokens // tile) * tile),
    ),
    known("SINKS-COUNTED-TWICE", SINKS, _sinks_counted_twice),
    known(
        "SINKS-NOT-CAUSAL",
        SINKS,
        lambda case: attend(case, case.visible() | (case.key < case.num_sink_tokens)),
    ),
    *known_per_tile("PADDED-KEYS-COUNTED", NONCAUSAL, _padded_keys_counted),
    *known_per_tile(
        "LAST-KEY-TILE-DROPPED",
        ATTENTION,
        lambda case, tile: attend(case, case.visible() & (case.key < case.walk_end // tile * tile)),
    ),
    known(
        "SKIPPED-WITHOUT-CAUSAL",
        ("p01",),
        lambda case: attend(case, case.visible() & (case.key < case.query_tile_end)),
    ),
    *known_per_tile(
        "FIRST-KEY-TILE-ONLY",
        ATTENTION,
        lambda case, tile: attend(case, case.visible() & (case.key < tile)),
    ),
    known(
        "HEADS-INTERLEAVED",
        GROUPED,
        lambda case: attend(
            case, kv_heads=torch.arange(case.num_q_heads, device=case.q.device) % case.num_kv_heads
        ),
    ),
    known("HEADS-DIVIDED-BY-KV-HEADS", GROUPED, _heads_divided_by_kv_heads),
    known(
        "HEADS-ZERO", ATTENTION, lambda case: attend(case, kv_heads=torch.zeros_like(case.kv_heads))
    ),
    known("BATCH-ZERO", ATTENTION, _batch_zero),
    known("K-V-SWAPPED", ATTENTION, lambda case: attend(case, k=case.v, v=case.k)),
)
