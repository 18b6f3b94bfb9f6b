"""Known mistakes in the products, groups and masks of the backward pass."""

from functools import partial

import torch

from .variants import LOG2_E, attend, known, known_per_tile
from .variants_backward import differentiate

BACKWARD = ("p08", "p09")
WINDOW = ("p09",)
_CHUNK_SIZES = (64, 128, 256, 512)


def _zero(name):
    def compute(case):
        right = differentiate(case)
        return {"out": right["out"], name: torch.zeros_like(right[name])}

    return compute


def _without_far_sinks(case):
    return case.visible(num_sink_tokens=0)


def _rows_before_tail(case, tile):
    return case.visible() & (case.query < case.seqlen_q // tile * tile)


def _keys_before_tail(case, tile):
    return case.visible() & (case.key < case.seqlen_k // tile * tile)


def _without_window_edge(case):
    return case.visible() & (case.key != case.query - (case.window_size or 0) + 1)


def _everywhere(case, visible):
    return differentiate(case, visible_q=visible, visible_kv=visible)


def _chunks_averaged(case, size):
    far_queries = max(0, case.seqlen_q - (case.window_size or case.seqlen_q))
    count = max(1, -(-far_queries // size))
    right = differentiate(case)
    near = differentiate(case, visible_kv=_without_far_sinks(case))
    if count == 1 or near["dv"] is right["dv"]:
        return right
    mean = {name: near[name] + (right[name] - near[name]) / count for name in ("dk", "dv")}
    return right | mean


def _swapped(case, one, other):
    right = differentiate(case)
    if right[one].shape != right[other].shape:
        return right
    return right | {one: right[other], other: right[one]}


def _dk_dv_one_head(which):
    return lambda case: differentiate(case, dk_heads=which, dv_heads=which)


def _default_scale(case):
    scales = ("score_scale_q", "score_scale_kv", "scale_q", "scale_k")
    return differentiate(case, **dict.fromkeys(scales, case.default_scale))


def _exponent_times(case, factor, of):
    lse = factor * attend(case)["lse"]
    changes = {f"score_scale_{kernel}": factor * case.scale for kernel in of}
    return differentiate(case, **changes, **{f"lse_{kernel}": lse for kernel in of})


BACKWARD_MISTAKES = (
    known("DQ-ZERO", BACKWARD, _zero("dq")),
    known("DK-ZERO", BACKWARD, _zero("dk")),
    known("DV-ZERO", BACKWARD, _zero("dv")),
    known("GROUP-FIRST-HEAD", BACKWARD, _dk_dv_one_head("first")),
    known("GROUP-LAST-HEAD", BACKWARD, _dk_dv_one_head("last")),
    known("GROUP-MEAN", BACKWARD, _dk_dv_one_head("mean")),
    known("GROUP-SUM-INTERLEAVED", BACKWARD, _dk_dv_one_head("interleaved")),
    *(
        known(f"{id}-{name.upper()}", BACKWARD, partial(differentiate, **{f"{name}_heads": which}))
        for id, which in (("GROUP-SUM-MISSING", "last"), ("GROUP-FIRST-HEAD", "first"))
        for name in ("dk", "dv")
    ),
    known("DQ-UNSCALED", BACKWARD, lambda case: differentiate(case, scale_q=1.0)),
    known("DK-UNSCALED", BACKWARD, lambda case: differentiate(case, scale_k=1.0)),
    known("DQ-DK-UNSCALED", BACKWARD, lambda case: differentiate(case, scale_q=1.0, scale_k=1.0)),
    known(
        "DQ-DK-LOG2E",
        BACKWARD,
        lambda case: differentiate(case, scale_q=case.scale * LOG2_E, scale_k=case.scale * LOG2_E),
    ),
    known("DK-LOG2E", BACKWARD, lambda case: differentiate(case, scale_k=case.scale * LOG2_E)),
    known("BACKWARD-SCALE-OPTION-IGNORED", BACKWARD, _default_scale),
    *(
        known(f"{id}-{of_units}", BACKWARD, partial(_exponent_times, factor=factor, of=of))
        for of_units, factor in (("EXP-WITH-LOG2E", LOG2_E), ("EXP2-WITHOUT-LOG2E", 1.0 / LOG2_E))
        for id, of in (("BACKWARD", ("q", "kv")), ("DQ", ("q",)), ("DK-DV", ("kv",)))
    ),
    known("DV-OF-DS", BACKWARD, lambda case: differentiate(case, dv_of_dscores=True)),
    known(
        "DOUT-IGNORED", BACKWARD, lambda case: differentiate(case, dout=torch.ones_like(case.dout))
    ),
    *(
        known(f"{one}-{other}-SWAPPED".upper(), BACKWARD, partial(_swapped, one=one, other=other))
        for one, other in (("dk", "dv"), ("dq", "dk"), ("dq", "dv"))
    ),
    known(
        "BACKWARD-CAUSAL-IGNORED",
        BACKWARD,
        lambda case: _everywhere(case, case.window(last=case.seqlen_k)),
    ),
    known(
        "BACKWARD-DIAGONAL-EXCLUDED", BACKWARD, lambda case: _everywhere(case, case.window(last=-1))
    ),
    known(
        "DK-DV-DIAGONAL-EXCLUDED",
        BACKWARD,
        lambda case: differentiate(case, visible_kv=case.window(last=-1)),
    ),
    known(
        "DK-DV-WINDOW-ONE-SMALLER",
        WINDOW,
        lambda case: differentiate(case, visible_kv=_without_window_edge(case)),
    ),
    known(
        "BACKWARD-WINDOW-IGNORED",
        WINDOW,
        lambda case: _everywhere(case, case.visible(window_size=None)),
    ),
    known(
        "BACKWARD-SINKS-IGNORED", WINDOW, lambda case: _everywhere(case, _without_far_sinks(case))
    ),
    known(
        "SINK-KEYS-WITHOUT-GRADIENT",
        WINDOW,
        lambda case: differentiate(case, visible_kv=_without_far_sinks(case)),
    ),
    known(
        "DQ-WITHOUT-SINKS",
        WINDOW,
        lambda case: differentiate(case, visible_q=_without_far_sinks(case)),
    ),
    *known_per_tile(
        "LAST-QUERY-TILE-DROPPED",
        BACKWARD,
        lambda case, tile: differentiate(case, visible_kv=_rows_before_tail(case, tile)),
    ),
    *known_per_tile(
        "DQ-LAST-KEY-TILE-DROPPED",
        BACKWARD,
        lambda case, tile: differentiate(case, visible_q=_keys_before_tail(case, tile)),
    ),
    *(
        known("SINK-CHUNKS-AVERAGED", WINDOW, partial(_chunks_averaged, size=size), size)
        for size in _CHUNK_SIZES
    ),
)
