"""Known mistakes in what the backward pass keeps of each row: lse, delta, sink logits."""

import torch

from .mistakes_backward import BACKWARD, WINDOW
from .variants import LOG2_E, attend, known
from .variants_backward import differentiate, row_delta

_LN_2 = 1.0 / LOG2_E
_LARGEST_EXPONENT = 40.0


def _dsink(change):
    """The right gradients with dsink_logits replaced; unchanged without sink_logits."""

    def compute(case):
        right = differentiate(case)
        if case.sink_logits is None:
            return right
        return right | {"dsink_logits": change(right["dsink_logits"])}

    return compute


def _lse_without_sink(case):
    no_sink = torch.full_like(case.q[0, :, 0, 0], -torch.inf)
    return differentiate(case, lse=attend(case, sink_logits=no_sink)["lse"])


def _delta_missing(case, *where):
    """The gradients with a delta of 0 in the kernels that `where` names."""
    return differentiate(case, **dict.fromkeys(where, torch.zeros_like(case.q[..., 0])))


def _scores_unscaled(case, *where):
    """The gradients with raw scores below exp2 in the kernels that `where` names.

    NaN where P becomes so large that rounding, or the end of fp32, decides what comes out.
    """
    result = differentiate(case, **dict.fromkeys(where, _LN_2))
    exponents = case.masked(scale=1.0) - LOG2_E * attend(case)["lse"][..., None]
    large = exponents > _LARGEST_EXPONENT
    if "score_scale_q" in where:
        result["dq"] = result["dq"].masked_fill(large.any(3)[..., None], torch.nan)
    if "score_scale_kv" in where:
        keys = large.any(2).unflatten(1, (case.num_kv_heads, case.group_size)).any(2)
        for name in ("dk", "dv"):
            result[name] = result[name].masked_fill(keys[..., None], torch.nan)
    return result


def _delta_added(case):
    delta = -row_delta(case)
    return differentiate(case, delta_q=delta, delta_kv=delta)


def _delta_over_queries(case):
    """Sums down the rows of square tiles: only there does the result have a row's shape."""
    product = case.dout * attend(case)["out"]
    width = product.shape[-1]
    padded = torch.nn.functional.pad(product, (0, 0, 0, -product.shape[2] % width))
    sums = padded.unflatten(2, (-1, width)).sum(3).flatten(2)
    return differentiate(case, delta=sums[..., : product.shape[2]])


def _of_first_head(case, per_row):
    """What belongs to the first query head of each group, for all heads of the group."""
    return per_row[:, case.kv_heads * case.group_size]


def _dsink_of(compute):
    """The right gradients with dsink_logits computed anew, from lse and delta of each row."""

    def changed(case):
        right = differentiate(case)
        if case.sink_logits is None:
            return right
        terms = compute(case.sink_column(), attend(case)["lse"], row_delta(case))
        return right | {"dsink_logits": terms.sum((0, 2))}

    return changed


_DELTA = "take dS = P * (dP - delta), with delta = sum(dout * out) over the row"
_LSE_UNITS = "multiply lse by log2(e) before subtracting it from scores in units of log2"
_SCORES = "multiply the scores by scale_log2 before you subtract lse * log2(e) from them"
_DSINK = "dsink_logits[h] = -sum over batch and rows of exp(sink_logits[h] - lse) * delta"

ROW_MISTAKES = (
    known(
        "DELTA-MISSING",
        BACKWARD,
        "delta is not subtracted from dP",
        "your dq and dk equal those of dS = P * dP",
        _DELTA,
        lambda case: _delta_missing(case, "delta_q", "delta_kv"),
    ),
    known(
        "DELTA-MISSING-DQ",
        BACKWARD,
        "delta is not subtracted from dP where dq is computed",
        "your dq equals that of dS = P * dP; dk is right",
        _DELTA,
        lambda case: _delta_missing(case, "delta_q"),
    ),
    known(
        "DELTA-MISSING-DK",
        BACKWARD,
        "delta is not subtracted from dP where dk is computed",
        "your dk equals that of dS = P * dP; dq is right",
        _DELTA,
        lambda case: _delta_missing(case, "delta_kv"),
    ),
    known(
        "DELTA-ADDED",
        BACKWARD,
        "delta is added to dP instead of subtracted",
        "your dq and dk equal those of dS = P * (dP + delta)",
        _DELTA,
        _delta_added,
    ),
    known(
        "DELTA-WITHOUT-DOUT",
        BACKWARD,
        "delta lacks the upstream gradient",
        "your gradients equal those of delta = sum(out)",
        _DELTA,
        lambda case: differentiate(case, delta=attend(case)["out"].sum(-1)),
    ),
    known(
        "DELTA-OVER-QUERIES",
        BACKWARD,
        "delta is summed over queries, not over head_dim",
        "your gradients equal those of a delta summed down the rows of each tile",
        _DELTA,
        _delta_over_queries,
    ),
    known(
        "P-MISSING-IN-DS",
        BACKWARD,
        "dP is not multiplied by P",
        "your dq and dk equal those of dS = dP - delta",
        _DELTA,
        lambda case: differentiate(case, use_probs=False),
    ),
    known(
        "BACKWARD-LSE-UNITS",
        BACKWARD,
        "P is recomputed from scores and lse in different units",
        "your gradients equal those of P = 2^(scores * log2(e) - lse) with a natural lse",
        _LSE_UNITS,
        lambda case: differentiate(case, lse=attend(case)["lse"] * _LN_2),
    ),
    known(
        "DK-DV-LSE-UNITS",
        BACKWARD,
        "dk and dv recompute P from scores and lse in different units",
        "your dk and dv equal those of P = 2^(scores * log2(e) - lse) with a natural lse",
        _LSE_UNITS,
        lambda case: differentiate(case, lse_kv=attend(case)["lse"] * _LN_2),
    ),
    known(
        "DQ-LSE-UNITS",
        BACKWARD,
        "dq recomputes P from scores and lse in different units",
        "your dq equals that of P = 2^(scores * log2(e) - lse) with a natural lse",
        _LSE_UNITS,
        lambda case: differentiate(case, lse_q=attend(case)["lse"] * _LN_2),
    ),
    known(
        "BACKWARD-SCORES-UNSCALED",
        BACKWARD,
        "P is recomputed from scores that are not scaled",
        "your gradients equal those of P = 2^(q @ k - lse * log2(e))",
        _SCORES,
        lambda case: _scores_unscaled(case, "score_scale_q", "score_scale_kv"),
    ),
    known(
        "DK-DV-SCORES-UNSCALED",
        BACKWARD,
        "dk and dv recompute P from scores that are not scaled",
        "your dk and dv equal those of P = 2^(q @ k - lse * log2(e)); dq is right",
        _SCORES,
        lambda case: _scores_unscaled(case, "score_scale_kv"),
    ),
    known(
        "DQ-SCORES-UNSCALED",
        BACKWARD,
        "dq recomputes P from scores that are not scaled",
        "your dq equals that of P = 2^(q @ k - lse * log2(e)); dk and dv are right",
        _SCORES,
        lambda case: _scores_unscaled(case, "score_scale_q"),
    ),
    known(
        "BACKWARD-LSE-BASE-2",
        BACKWARD,
        "lse is multiplied by log2(e) once too often where P is recomputed",
        "your gradients equal those of P = exp(scores - lse * log2(e))",
        "keep lse in natural units from the forward pass on, and convert it once",
        lambda case: differentiate(case, lse=attend(case)["lse"] * LOG2_E),
    ),
    known(
        "GROUP-LSE-FIRST-HEAD",
        BACKWARD,
        "all query heads of a group take the lse of its first head for dk and dv",
        "your dk and dv equal those of P recomputed from the lse of each group's first query head",
        "move the pointer to lse with the query head of the group",
        lambda case: differentiate(case, lse_kv=_of_first_head(case, attend(case)["lse"])),
    ),
    known(
        "GROUP-DELTA-FIRST-HEAD",
        BACKWARD,
        "all query heads of a group take the delta of its first head for dk",
        "your dk equals that of the delta of the first query head of each group; dv is right",
        "move the pointer to delta with the query head of the group",
        lambda case: differentiate(case, delta_kv=_of_first_head(case, row_delta(case))),
    ),
    known(
        "DSINK-ZERO",
        WINDOW,
        "dsink_logits is zero",
        "your dsink_logits equals zeros; the other gradients are right",
        _DSINK,
        _dsink(torch.zeros_like),
    ),
    known(
        "DSINK-SIGN",
        WINDOW,
        "dsink_logits has the wrong sign",
        "your dsink_logits equals the right one times -1; the other gradients are right",
        _DSINK,
        _dsink(torch.neg),
    ),
    known(
        "DSINK-FIRST-BATCH",
        WINDOW,
        "dsink_logits comes from the first batch alone",
        "your dsink_logits equals that of batch 0; the other gradients are right",
        _DSINK,
        lambda case: differentiate(case, sink_batches=slice(0, 1)),
    ),
    known(
        "DSINK-LAST-BATCH",
        WINDOW,
        "dsink_logits comes from the last batch alone",
        "your dsink_logits equals that of the last batch; the other gradients are right",
        _DSINK,
        lambda case: differentiate(case, sink_batches=slice(-1, None)),
    ),
    known(
        "DSINK-MEAN",
        WINDOW,
        "dsink_logits is the mean over the batch, not the sum",
        "your dsink_logits equals the right one over the batch size; the other gradients are right",
        _DSINK,
        lambda case: _dsink(lambda dsink: dsink / case.dout.shape[0])(case),
    ),
    known(
        "BACKWARD-LSE-WITHOUT-SINK",
        WINDOW,
        "the backward pass uses an lse without the sink logit",
        "your gradients equal those of P recomputed from the scores alone",
        "store the lse that contains the sink logit in the forward pass, and recompute P from it",
        _lse_without_sink,
    ),
    known(
        "DSINK-UNITS",
        WINDOW,
        "the sink's weight in dsink_logits is exp2 of natural units",
        "your dsink_logits equals -sum of 2^(sink_logits - lse) * delta",
        _DSINK,
        _dsink_of(lambda sink, lse, delta: -torch.exp2(sink - lse) * delta),
    ),
    known(
        "DSINK-WITHOUT-DELTA",
        WINDOW,
        "dsink_logits lacks delta",
        "your dsink_logits equals -sum of exp(sink_logits - lse); the other gradients are right",
        _DSINK,
        _dsink_of(lambda sink, lse, delta: -torch.exp(sink - lse)),
    ),
    known(
        "DSINK-WITHOUT-LSE",
        WINDOW,
        "the sink's weight in dsink_logits is not normalised",
        "your dsink_logits equals -sum of exp(sink_logits) * delta; the other gradients are right",
        _DSINK,
        _dsink_of(lambda sink, lse, delta: -torch.exp(sink) * delta),
    ),
)
