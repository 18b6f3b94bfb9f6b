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


_GROUP = "sum dk and dv over all query heads of the group that shares the kv head"
_SCALE = "multiply dq and dk by softmax_scale once, in natural units"
_MASK = "apply the forward pass's mask when P is recomputed in the backward pass"
_SINKS = "visit the sink tokens for every later query in the backward pass, however far it is"

BACKWARD_MISTAKES = (
    known(
        "DQ-ZERO",
        BACKWARD,
        "dq is zero everywhere",
        "your dq equals zeros; out is right",
        "add dS K of every key tile to dq, store it, and return it from backward",
        _zero("dq"),
    ),
    known(
        "DK-ZERO",
        BACKWARD,
        "dk is zero everywhere",
        "your dk equals zeros; out is right",
        "add dS^T Q of every query tile to dk, store it, and return it from backward",
        _zero("dk"),
    ),
    known(
        "DV-ZERO",
        BACKWARD,
        "dv is zero everywhere",
        "your dv equals zeros; out is right",
        "add P^T dO of every query tile to dv, store it, and return it from backward",
        _zero("dv"),
    ),
    known(
        "GROUP-FIRST-HEAD",
        BACKWARD,
        "dk and dv come from the first query head of each group alone",
        "your dk and dv equal those of the first query head of each group",
        _GROUP,
        _dk_dv_one_head("first"),
    ),
    known(
        "GROUP-LAST-HEAD",
        BACKWARD,
        "dk and dv come from the last query head of each group alone",
        "your dk and dv equal those of the last query head of each group",
        _GROUP,
        _dk_dv_one_head("last"),
    ),
    known(
        "GROUP-MEAN",
        BACKWARD,
        "dk and dv are averaged over the group",
        "your dk and dv equal the mean over the query heads of each group",
        _GROUP,
        _dk_dv_one_head("mean"),
    ),
    known(
        "GROUP-SUM-INTERLEAVED",
        BACKWARD,
        "dk and dv are summed over query heads of different groups",
        "your dk and dv of kv head j are sums over the query heads h with h % num_kv_heads == j",
        "heads of a group are neighbours: (batch, num_kv_heads, group_size, ...), sum over dim 2",
        _dk_dv_one_head("interleaved"),
    ),
    *(
        known(
            f"{id}-{name.upper()}",
            BACKWARD,
            f"{name} comes from the {which} query head of each group alone",
            f"your {name} equals that of the {which} query head of each group; {other} is right",
            _GROUP,
            partial(differentiate, **{f"{name}_heads": which}),
        )
        for id, which in (("GROUP-SUM-MISSING", "last"), ("GROUP-FIRST-HEAD", "first"))
        for name, other in (("dk", "dv"), ("dv", "dk"))
    ),
    known(
        "DQ-UNSCALED",
        BACKWARD,
        "dq lacks the scale",
        "your dq equals dS @ k; dk is right",
        _SCALE,
        lambda case: differentiate(case, scale_q=1.0),
    ),
    known(
        "DK-UNSCALED",
        BACKWARD,
        "dk lacks the scale",
        "your dk equals dS^T @ q; dq is right",
        _SCALE,
        lambda case: differentiate(case, scale_k=1.0),
    ),
    known(
        "DQ-DK-UNSCALED",
        BACKWARD,
        "dq and dk lack the scale",
        "your dq and dk equal dS @ k and dS^T @ q",
        _SCALE,
        lambda case: differentiate(case, scale_q=1.0, scale_k=1.0),
    ),
    known(
        "DQ-DK-LOG2E",
        BACKWARD,
        "dq and dk have an extra factor log2(e)",
        "your dq and dk equal the right ones times log2(e)",
        _SCALE,
        lambda case: differentiate(case, scale_q=case.scale * LOG2_E, scale_k=case.scale * LOG2_E),
    ),
    known(
        "DK-LOG2E",
        BACKWARD,
        "dk has an extra factor log2(e)",
        "your dk equals the right one times log2(e); dq is right",
        _SCALE,
        lambda case: differentiate(case, scale_k=case.scale * LOG2_E),
    ),
    known(
        "BACKWARD-SCALE-OPTION-IGNORED",
        BACKWARD,
        "the backward pass does not use the softmax_scale that was passed",
        "your gradients are computed with the default scale 1/sqrt(head_dim); out is right",
        "keep the scale of the forward pass in ctx, and use it wherever the default would be used",
        _default_scale,
    ),
    *(
        known(
            f"{id}-{of_units}",
            BACKWARD,
            f"{exponential}, where {title}",
            f"your {what} P = {p}",
            help,
            partial(_exponent_times, factor=factor, of=of),
        )
        for of_units, exponential, p, help, factor in (
            (
                "EXP-WITH-LOG2E",
                "exp is applied to numbers in units of log2",
                "exp(scores - lse), both in units of log2",
                "take exp2, not exp, of scores and lse that contain log2(e)",
                LOG2_E,
            ),
            (
                "EXP2-WITHOUT-LOG2E",
                "exp2 is applied to numbers in natural units",
                "exp2(scores - lse), neither times log2(e)",
                "exp2 needs scores and lse times log2(e); without that factor take exp",
                1.0 / LOG2_E,
            ),
        )
        for id, of, title, what in (
            ("BACKWARD", ("q", "kv"), "P is recomputed", "gradients equal those of"),
            ("DQ", ("q",), "dq is computed", "dq equals that of"),
            ("DK-DV", ("kv",), "dk and dv are computed", "dk and dv equal those of"),
        )
    ),
    known(
        "DV-OF-DS",
        BACKWARD,
        "dv is computed from dS instead of P",
        "your dv equals dS^T @ dout; dq and dk are right",
        "accumulate P^T @ dout for dv, and dS^T @ q for dk",
        lambda case: differentiate(case, dv_of_dscores=True),
    ),
    known(
        "DOUT-IGNORED",
        BACKWARD,
        "the upstream gradient is not used",
        "your gradients equal those of out.sum()",
        "use the dout that autograd passes to backward, with its own strides",
        lambda case: differentiate(case, dout=torch.ones_like(case.dout)),
    ),
    *(
        known(
            f"{one}-{other}-SWAPPED".upper(),
            BACKWARD,
            f"{one} and {other} have changed places",
            f"your {one} equals the right {other}, and your {other} the right {one}",
            "return the gradients in the order of forward's arguments: dq, dk, dv",
            partial(_swapped, one=one, other=other),
        )
        for one, other in (("dk", "dv"), ("dq", "dk"), ("dq", "dv"))
    ),
    known(
        "BACKWARD-CAUSAL-IGNORED",
        BACKWARD,
        "the backward pass lets queries see the future",
        "your gradients equal those of P recomputed without the condition key <= query",
        _MASK,
        lambda case: _everywhere(case, case.window(last=case.seqlen_k)),
    ),
    known(
        "BACKWARD-DIAGONAL-EXCLUDED",
        BACKWARD,
        "the backward pass leaves out each query's own key",
        "your gradients equal those of P recomputed with the mask key < query",
        _MASK,
        lambda case: _everywhere(case, case.window(last=-1)),
    ),
    known(
        "DK-DV-DIAGONAL-EXCLUDED",
        BACKWARD,
        "dk and dv leave out each key's own query",
        "your dk and dv equal those of P recomputed with the mask key < query; dq is right",
        _MASK,
        lambda case: differentiate(case, visible_kv=case.window(last=-1)),
    ),
    known(
        "DK-DV-WINDOW-ONE-SMALLER",
        WINDOW,
        "the window of dk and dv is one query too small",
        "your dk and dv lack the last query whose window holds the key; dq is right",
        _MASK,
        lambda case: differentiate(case, visible_kv=_without_window_edge(case)),
    ),
    known(
        "BACKWARD-WINDOW-IGNORED",
        WINDOW,
        "the backward pass ignores the window",
        "your gradients equal those of P recomputed with the causal mask alone",
        _MASK,
        lambda case: _everywhere(case, case.visible(window_size=None)),
    ),
    known(
        "BACKWARD-SINKS-IGNORED",
        WINDOW,
        "the backward pass ignores sink tokens outside of the window",
        "your gradients equal those of P recomputed with num_sink_tokens = 0",
        _SINKS,
        lambda case: _everywhere(case, _without_far_sinks(case)),
    ),
    known(
        "SINK-KEYS-WITHOUT-GRADIENT",
        WINDOW,
        "sink tokens get no gradient from queries beyond the window",
        "your dk and dv equal those of num_sink_tokens = 0; dq is right",
        _SINKS,
        lambda case: differentiate(case, visible_kv=_without_far_sinks(case)),
    ),
    known(
        "DQ-WITHOUT-SINKS",
        WINDOW,
        "dq lacks the share of sink tokens outside of the window",
        "your dq equals that of num_sink_tokens = 0; dk and dv are right",
        _SINKS,
        lambda case: differentiate(case, visible_q=_without_far_sinks(case)),
    ),
    *known_per_tile(
        "LAST-QUERY-TILE-DROPPED",
        BACKWARD,
        "the last, partial tile of queries is not visited in the backward pass",
        "your dk and dv equal those of the first seqlen // {tile} * {tile} queries; dq is right",
        "round the number of query tiles up, and mask the queries past the end of the last one",
        lambda case, tile: differentiate(case, visible_kv=_rows_before_tail(case, tile)),
    ),
    *known_per_tile(
        "DQ-LAST-KEY-TILE-DROPPED",
        BACKWARD,
        "the last, partial tile of keys is not visited for dq",
        "your dq equals that of the first seqlen // {tile} * {tile} keys; dk and dv are right",
        "round the number of key tiles up, and mask the keys past the end of the last one",
        lambda case, tile: differentiate(case, visible_q=_keys_before_tail(case, tile)),
    ),
    *(
        known(
            "SINK-CHUNKS-AVERAGED",
            WINDOW,
            "the gradient of sink tokens is averaged over chunks of queries",
            f"your dk and dv of the sinks are a mean over chunks of {size} far queries",
            "add up what the chunks give to the sinks",
            partial(_chunks_averaged, size=size),
            size,
        )
        for size in _CHUNK_SIZES
    ),
)
