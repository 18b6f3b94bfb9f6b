"""Known mistakes in the backward pass's values per row: lse, delta, sink logits."""

import torch

from .mistakes_backward import BACKWARD, WINDOW
from .variants import LOG2_E, attend, known
from .variants_backward import differentiate, row_delta

_LN_2 = 1.0 / LOG2_E
_LARGEST_EXPONENT = 40.0


def _dsink(change):
    """Return a function for the right gradients with dsink_logits, if there is one, changed."""

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
    """Return the gradients with a delta of 0 in the kernels that `where` names."""
    return differentiate(case, **dict.fromkeys(where, torch.zeros_like(case.q[..., 0])))


def _scores_unscaled(case, *where):
    """Return the gradients with unscaled scores in exp2 in the kernels that `where` names.

    They are NaN where P is so large that rounding or overflow determines the result.
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
    """Return the gradients with delta summed down the queries, which square tiles permit."""
    product = case.dout * attend(case)["out"]
    width = product.shape[-1]
    padded = torch.nn.functional.pad(product, (0, 0, 0, -product.shape[2] % width))
    sums = padded.unflatten(2, (-1, width)).sum(3).flatten(2)
    return differentiate(case, delta=sums[..., : product.shape[2]])


def _of_first_head(case, per_row):
    """Return values per row in which all heads of a group have those of its first query head."""
    return per_row[:, case.kv_heads * case.group_size]


def _dsink_of(compute):
    """Return a function for the right gradients with dsink_logits computed by `compute`."""

    def changed(case):
        right = differentiate(case)
        if case.sink_logits is None:
            return right
        terms = compute(case.sink_column(), attend(case)["lse"], row_delta(case))
        return right | {"dsink_logits": terms.sum((0, 2))}

    return changed


ROW_MISTAKES = (
    known("DELTA-MISSING", BACKWARD, lambda case: _delta_missing(case, "delta_q", "delta_kv")),
    known("DELTA-MISSING-DQ", BACKWARD, lambda case: _delta_missing(case, "delta_q")),
    known("DELTA-MISSING-DK", BACKWARD, lambda case: _delta_missing(case, "delta_kv")),
    known("DELTA-ADDED", BACKWARD, _delta_added),
    known(
        "DELTA-WITHOUT-DOUT",
        BACKWARD,
        lambda case: differentiate(case, delta=attend(case)["out"].sum(-1)),
    ),
    known("DELTA-OVER-QUERIES", BACKWARD, _delta_over_queries),
    known("P-MISSING-IN-DS", BACKWARD, lambda case: differentiate(case, use_probs=False)),
    known(
        "BACKWARD-LSE-UNITS",
        BACKWARD,
        lambda case: differentiate(case, lse=attend(case)["lse"] * _LN_2),
    ),
    known(
        "DK-DV-LSE-UNITS",
        BACKWARD,
        lambda case: differentiate(case, lse_kv=attend(case)["lse"] * _LN_2),
    ),
    known(
        "DQ-LSE-UNITS",
        BACKWARD,
        lambda case: differentiate(case, lse_q=attend(case)["lse"] * _LN_2),
    ),
    known(
        "BACKWARD-SCORES-UNSCALED",
        BACKWARD,
        lambda case: _scores_unscaled(case, "score_scale_q", "score_scale_kv"),
    ),
    known("DK-DV-SCORES-UNSCALED", BACKWARD, lambda case: _scores_unscaled(case, "score_scale_kv")),
    known("DQ-SCORES-UNSCALED", BACKWARD, lambda case: _scores_unscaled(case, "score_scale_q")),
    known(
        "BACKWARD-LSE-BASE-2",
        BACKWARD,
        lambda case: differentiate(case, lse=attend(case)["lse"] * LOG2_E),
    ),
    known(
        "GROUP-LSE-FIRST-HEAD",
        BACKWARD,
        lambda case: differentiate(case, lse_kv=_of_first_head(case, attend(case)["lse"])),
    ),
    known(
        "GROUP-DELTA-FIRST-HEAD",
        BACKWARD,
        lambda case: differentiate(case, delta_kv=_of_first_head(case, row_delta(case))),
    ),
    known("DSINK-ZERO", WINDOW, _dsink(torch.zeros_like)),
    known("DSINK-SIGN", WINDOW, _dsink(torch.neg)),
    known("DSINK-FIRST-BATCH", WINDOW, lambda case: differentiate(case, sink_batches=slice(0, 1))),
    known(
        "DSINK-LAST-BATCH", WINDOW, lambda case: differentiate(case, sink_batches=slice(-1, None))
    ),
    known(
        "DSINK-MEAN", WINDOW, lambda case: _dsink(lambda dsink: dsink / case.dout.shape[0])(case)
    ),
    known("BACKWARD-LSE-WITHOUT-SINK", WINDOW, _lse_without_sink),
    known(
        "DSINK-UNITS", WINDOW, _dsink_of(lambda sink, lse, delta: -torch.exp2(sink - lse) * delta)
    ),
    known(
        "DSINK-WITHOUT-DELTA", WINDOW, _dsink_of(lambda sink, lse, delta: -torch.exp(sink - lse))
    ),
    known(
        "DSINK-WITHOUT-LSE", WINDOW, _dsink_of(lambda sink, lse, delta: -torch.exp(sink) * delta)
    ),
)
